"""The pictures of `images/` are what `images/draw.py` draws now, and the README shows them."""

import importlib.util
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
STORED = sorted(path.name for path in IMAGES.iterdir() if path.suffix != ".py" and path.is_file())


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every picture drawn again."""
    spec = importlib.util.spec_from_file_location("draw", IMAGES / "draw.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("images")
    module.draw(folder)
    return folder


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"), dtype=int)


def test_every_picture_is_drawn_by_the_script_and_none_is_left_over(drawn: Path) -> None:
    assert sorted(path.name for path in drawn.iterdir()) == STORED
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize("name", STORED)
def test_a_stored_picture_is_the_one_drawn_now(name: str, drawn: Path) -> None:
    """Other builds of FreeType may move the grey edge of a letter, so bytes may differ a little."""
    if matplotlib.__version_info__ < (3, 11):
        pytest.skip("matplotlib before 3.11 shapes letters in another way")
    stored, now = pixels(IMAGES / name), pixels(drawn / name)
    assert stored.shape == now.shape, "run `python images/draw.py`"
    differs = np.abs(stored - now).max(axis=2) > 48
    assert differs.mean() < 0.0005, "run `python images/draw.py`"


def test_pictures_are_small() -> None:
    assert sum((IMAGES / name).stat().st_size for name in STORED) < 200_000


def test_every_image_of_the_readme_exists_and_says_in_words_what_it_shows() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    images = re.findall(r"!\[(.*?)\]\((.*?)\)", text, re.DOTALL)
    assert images
    for words, target in images:
        assert (ROOT / target).is_file(), target
        assert len(words.split()) >= 10, words
    assert "<img" not in text, "then this test must read its alt too"
