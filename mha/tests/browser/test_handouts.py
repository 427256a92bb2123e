"""The handouts, opened from the disk in a browser that has no network."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from mha.layout import Layout

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
PAGES = ["index", *(path.stem for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")))]


@pytest.fixture(scope="module")
def handouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All handouts, in a folder of their own."""
    spec = importlib.util.spec_from_file_location("handouts", NOTEBOOKS / "handouts.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("handouts")
    assert {path.stem for path in module.write(folder)} == set(PAGES)
    return folder


@pytest.fixture
def offline(browser: Browser) -> Iterator[Page]:
    """A page without network; no request may leave it, and its console may show no error."""
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 800})
    page = context.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert errors == []


@pytest.mark.parametrize("name", PAGES)
def test_a_handout_is_whole_and_accessible(handouts: Path, offline: Page, name: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    path = handouts / f"{name}.html"
    assert path.stat().st_size < 3_000_000
    offline.goto(path.as_uri())
    violations = axe.Axe().run(offline).response["violations"]
    assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []
    pictures = offline.locator("svg, img")
    words = pictures.evaluate_all("all => all.map(x => x.getAttribute('aria-label') || x.alt)")
    assert all(words)
    for link in offline.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))"):
        file, _, anchor = unquote(link).partition("#")
        target = handouts / file if file else path
        assert target.exists(), link
        assert f'id="{anchor}"' in target.read_text(encoding="utf-8") or not anchor, link


@pytest.mark.parametrize("name", PAGES)
def test_every_slider_of_a_handout_shows_one_frame_at_each_position(
    handouts: Path, offline: Page, name: str
) -> None:
    offline.goto((handouts / f"{name}.html").as_uri())
    for slider in offline.locator("input[type=range]").all():
        options = (slider.get_attribute("data-options") or "").split("|")
        stacks = offline.locator(f'[data-slider="{slider.get_attribute("id")}"]')
        slider.focus()
        offline.keyboard.press("Home")
        for place, option in enumerate(options):
            assert slider.get_attribute("aria-valuetext") in (option, None) or place == 0
            shown = stacks.evaluate_all("all => all.map(s => [...s.children].map(c => !c.hidden))")
            assert shown == [[i == place for i in range(len(options))]] * len(shown)
            offline.keyboard.press("ArrowRight")
        assert len(shown) > 0


def test_the_first_slider_of_a_handout_changes_heads_and_shapes(
    handouts: Path, offline: Page
) -> None:
    offline.goto((handouts / "00_start_here.html").as_uri())
    slider = offline.locator("input[type=range]").first
    slider.focus()
    for num_heads in (8, 6, 4):
        offline.keyboard.press("ArrowLeft")
        svg = offline.locator("svg:visible").first
        assert f"(1, {num_heads}, 15, {384 // num_heads})" in (svg.text_content() or "")
        assert svg.locator("image").count() == num_heads + 1, "one a head, and the scale"


def test_an_element_lights_by_mouse_and_by_keyboard_with_its_arithmetic(
    handouts: Path, offline: Page
) -> None:
    offline.goto((handouts / "03_split_heads.html").as_uri())
    diagram = offline.locator("form.mha:visible").first
    dark = "all => all.map(r => getComputedStyle(r).fill == 'rgb(27, 31, 36)')"
    last = Layout.contiguous((1, 4, 6)).view((1, 4, 3, 2)).transpose(1, 2)
    diagram.locator("g.e9").first.hover()
    assert set(diagram.locator("g.e9 rect").evaluate_all(dark)) == {True}
    assert set(diagram.locator("g:not(.e9) rect").evaluate_all(dark)) == {False}
    texts = diagram.locator("text.a9:visible").all_text_contents()
    assert len(texts) == 3
    assert texts[-1] == "[0, 1, 1, 1]: 0*24 + 1*2 + 1*6 + 1*1 = 9"
    assert last.element((0, 1, 1, 1)) == 9

    offline.mouse.move(0, 0)
    assert not any(diagram.locator("g rect").evaluate_all(dark))
    diagram.locator("input").first.focus()
    for element in (1, 2, 3):
        offline.keyboard.press("ArrowRight")
        assert set(diagram.locator(f"g.e{element} rect").evaluate_all(dark)) == {True}
        assert sum(diagram.locator("g rect").evaluate_all(dark)) == 4, "the tape, and three views"
    assert diagram.locator("text.a3:visible").count() == 3
    offline.keyboard.press("Tab")
    assert not any(diagram.locator("g rect").evaluate_all(dark)), "one tab stop a diagram"
