"""A picture says the same as SVG and as a matplotlib figure, whatever the words in it."""

import base64
import io
import re
import xml.etree.ElementTree as ET
from dataclasses import astuple, replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import font_manager, pyplot
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from PIL import Image

from mha import style
from mha.picture import BOX, HIGH, Cell, Label, Map, Picture, _fonts_for, fitting

NASTY = [
    "<b>", "&", '"', "'", "$x$", "_a_", "&lt;", "</svg>", "<style>", "{x}", "%s", r"\alpha",
    "naïve", "→", "Ġthe", "▁keys", "a  b",
]  # fmt: skip
WEIGHTS = np.random.default_rng(0).random((3, 5)) ** 3
PICTURE = Picture(
    200,
    100,
    "three boxes and a map",
    cells=[Cell(10, 20, 4, 0), Cell(36.5, 20, 7, 1), Cell(10, 60, 4, 0)],
    maps=[Map(80, 10, 50, 30, WEIGHTS), Map(80, 60, 30, 50, WEIGHTS.T)],
    labels=[
        Label(8, 12, "x"),
        Label(190, 12, "head 0", 9, "end", style.QUIET, bold=True),
        Label(70, 90, "them", 10.5, "middle", upright=True),
        Label(190, 30, "[0]: 0*1 = 0", anchor="end", element=4),
    ],
)


def svg(picture: Picture) -> ET.Element:
    """The parsed SVG; parsing fails where the markup is not well-formed."""
    return ET.fromstring(picture.svg())[0]


def place(element: ET.Element) -> tuple[float, float, bool]:
    """x, y, and whether it is turned."""
    if transform := element.get("transform"):
        x, y = map(float, re.findall(r"translate\((\S+) (\S+)\)", transform)[0])
        return x, y, "rotate(-90)" in transform
    return float(element.get("x", "")), float(element.get("y", "")), False


def shown_labels(root: ET.Element) -> list[Label]:
    """The labels that the SVG shows before anything is pointed at."""
    assert f"fill:{style.INK};" in root.get("style", "")
    found = []
    for text in root.findall("text"):
        if text.get("class") is None:
            x, y, upright = place(text)
            size, anchor = float(text.get("font-size", "")), text.get("text-anchor", "")
            label = Label(x, y, text.text or "", size, anchor, text.get("fill", style.INK))
            found.append(replace(label, bold=bool(text.get("font-weight")), upright=upright))
    return found


def decoded(image: ET.Element) -> np.ndarray:
    """The weights that the pixels of an SVG image stand for, by its colours."""
    data = base64.b64decode(image.get("href", "").removeprefix("data:image/png;base64,"))
    pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    levels = [style.HEAT.index(tuple(pixel)) for pixel in pixels.reshape(-1, 3).tolist()]
    return np.reshape(levels, pixels.shape[:2]) / (style.LEVELS - 1)


@pytest.mark.parametrize("word", NASTY)
def test_any_word_survives_in_the_markup(word: str) -> None:
    root = svg(replace(PICTURE, alt=word, labels=[Label(8, 12, word)]))
    assert root.get("role") == "img"
    assert root.get("aria-label") == word
    assert [label.text for label in shown_labels(root)] == [word]


def test_any_word_is_drawn_letter_for_letter() -> None:
    """Without warnings, which would be errors here: every letter is in the font."""
    picture = Picture(200, 400, "", labels=[Label(8, 20 * i, w) for i, w in enumerate(NASTY, 1)])
    texts = picture.figure().axes[0].texts
    assert [text.get_text() for text in texts] == NASTY
    assert not any(text.get_parse_math() for text in texts)
    assert picture.png()


def test_what_no_font_has_is_named_in_the_still_and_never_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [f for f in font_manager.fontManager.ttflist if f.name.startswith("DejaVu Sans")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    _fonts_for.cache_clear()
    labels = [Label(8, 20, "漢字 keys"), Label(8, 40, "漢", bold=True)]
    picture = Picture(200, 60, "", labels=labels)
    figure = picture.figure()
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["?? keys", "?", "? is U+5B57, U+6F22: not in any font here"]
    assert Image.open(io.BytesIO(picture.png())).size == (200, 76), "with a line for the note"
    assert shown_labels(svg(picture)) == labels, "the page has fonts of its own"
    assert not caplog.records
    _fonts_for.cache_clear()


def test_a_font_that_is_installed_draws_what_the_usual_one_lacks() -> None:
    entries = font_manager.fontManager.ttflist
    usual = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    (other, *_) = (
        f for f in entries if f.name == "STIXGeneral" and (f.weight, f.style) == (400, "normal")
    )
    has = set(font_manager.get_font(other.fname).get_charmap())
    letter = chr(min(has - set(usual.get_charmap()) - set(range(0xE000, 0xF900))))
    fonts, lacking = _fonts_for(frozenset(f"a{letter}"), ("sans-serif",))
    assert fonts[0] == "sans-serif"
    assert len(fonts) == 2
    assert not lacking
    picture = Picture(99, 40, "", labels=[Label(8, 20, f"a{letter}", bold=True)])
    (text,) = picture.figure().axes[0].texts
    assert (text.get_text(), text.get_fontweight()) == (f"a{letter}", "normal")
    assert picture.png()


def test_both_ways_show_the_same_boxes() -> None:
    in_svg = []
    for g in svg(PICTURE).findall("g"):
        names = re.fullmatch(r"e(\d+) h(\d+)", g.get("class", ""))
        assert names
        assert [text.text for text in g.iter("text")] == [names[1]]
        in_svg.append((*place(g)[:2], int(names[1]), int(names[2])))
    assert in_svg == [astuple(cell) for cell in PICTURE.cells]
    axes = PICTURE.figure().axes[0]
    rectangles = [r for r in axes.patches if isinstance(r, Rectangle) and r.get_fill()]
    assert [(*r.get_xy(), r.get_width(), r.get_height()) for r in rectangles] == [
        (cell.x, cell.y, BOX, HIGH) for cell in PICTURE.cells
    ]
    assert [to_hex(r.get_facecolor()) for r in rectangles] == [
        style.head_colour(cell.head) for cell in PICTURE.cells
    ]
    for rectangle, cell, text in zip(rectangles, PICTURE.cells, axes.texts[:3], strict=True):
        assert text.get_text() == str(cell.element)
        x, y = axes.transData.transform(text.get_position())
        assert rectangle.contains_point((x, y))


def test_both_ways_show_the_same_labels() -> None:
    shown = [label for label in PICTURE.labels if label.element is None]
    assert shown_labels(svg(PICTURE)) == shown
    texts = PICTURE.figure().axes[0].texts[len(PICTURE.cells) :]
    sides = {"left": "start", "center": "middle", "right": "end"}
    assert [
        Label(
            *text.get_position(),
            text.get_text(),
            round(float(text.get_fontsize()) / 0.72, 6),  # 100 dots to 72 points
            sides[text.get_horizontalalignment()],
            to_hex(text.get_color()),
            bold=text.get_fontweight() == "bold",
            upright=text.get_rotation() == 90,
        )
        for text in texts
    ] == shown


def test_both_ways_show_the_same_maps() -> None:
    images = svg(PICTURE).findall("image")
    drawn = PICTURE.figure().axes[0].images
    for m, image, other in zip(PICTURE.maps, images, drawn, strict=True):
        assert place(image)[:2] == (m.x, m.y)
        assert (image.get("width"), image.get("height")) == (f"{m.width:g}", f"{m.height:g}")
        assert list(other.get_extent()) == [m.x, m.x + m.width, m.y + m.height, m.y]
        colours = np.array(style.HEAT)[np.rint(decoded(image) * (style.LEVELS - 1)).astype(int)]
        assert np.array_equal(np.asarray(other.get_array()), colours)


@pytest.mark.parametrize("shape", [(1, 1), (1, 32), (32, 1), (5, 12), (32, 32)])
def test_pixels_decode_back_to_weights(shape: tuple[int, int]) -> None:
    weights = np.random.default_rng(1).random(shape)
    (image,) = svg(Picture(9, 9, "", maps=[Map(0, 0, 9, 9, weights)])).findall("image")
    assert np.abs(decoded(image) - weights).max() <= 0.5 / 63 + 1e-9


def test_weights_that_are_none_stay_on_the_scale() -> None:
    weights = np.array([[-0.5, 0.0, 1.0, 1.5, 0.004]])
    (image,) = svg(Picture(9, 9, "", maps=[Map(0, 0, 9, 9, weights)])).findall("image")
    assert decoded(image).tolist() == [[0, 0, 1, 1, 0]]


def test_nan_is_no_colour_of_the_scale_and_is_hatched_where_it_is() -> None:
    weights = np.linspace(0, 1, 63).reshape(7, 9)
    weights[1, 2:5] = weights[4:6] = weights[0, 8] = np.nan
    picture = Picture(90, 90, "", maps=[Map(0, 10, 90, 70, weights)])
    (image,), (path,) = (svg(picture).findall(tag) for tag in ("image", "path"))
    data = base64.b64decode(image.get("href", "").removeprefix("data:image/png;base64,"))
    grey = (np.array(Image.open(io.BytesIO(data)).convert("RGB")) == style.NO_WEIGHT).all(-1)
    assert np.array_equal(grey, np.isnan(weights))
    assert style.NO_WEIGHT not in style.HEAT
    lines = re.findall(r"M(\S+) (\S+)L(\S+) ([^M]+)", path.get("d", ""))
    found = np.zeros_like(grey)
    for line in lines:
        x0, y0, x1, y1 = map(float, line)
        for part in np.linspace(0.01, 0.99, 99):
            x, y = x0 + part * (x1 - x0), y0 + part * (y1 - y0)
            found[int((y - 10) // 10), int(x // 10)] = True
    assert np.array_equal(found, np.isnan(weights)), "lines in every such cell, and in no other"
    (drawn,) = picture.figure().axes[0].collections
    assert len(drawn.get_paths()) == len(lines)
    assert not svg(PICTURE).findall("path")


def test_pointing_at_a_box_lights_its_element_and_shows_its_arithmetic() -> None:
    root = svg(PICTURE)
    css = root.findtext("style", "")
    for cell in PICTURE.cells:
        e = cell.element
        lit = f".mha:is(:has(.e{e}:hover),:not(:has(g:hover)):has(.k{e}:focus)) :is(.e{e},.a{e})"
        assert f"{lit}{{--box:{style.INK};--ink:{style.PAPER};display:inline}}" in css
        assert f".mha .h{cell.head}{{--box:{style.head_colour(cell.head)}}}" in css
    assert re.search(r"\.mha \.a\{[^}]*display:none\}", css)
    (arithmetic,) = root.findall("text[@class='a a4']")
    assert arithmetic.text == "[0]: 0*1 = 0"
    texts = [text.get_text() for text in PICTURE.figure().axes[0].texts]
    assert "[0]: 0*1 = 0" not in texts, "a still has nothing pointed at"


def test_no_rule_reaches_the_page_outside() -> None:
    selectors = re.findall(r"(?:^|\})([^{}]+)\{", svg(PICTURE).findtext("style", ""))
    assert len(selectors) > 5
    assert all(selector.startswith(".mha") for selector in selectors)


def test_a_still_is_a_small_png_of_the_picture_s_size() -> None:
    data = PICTURE.png()
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.size) == ("PNG", (200, 100))
    pixel = image.convert("RGB").getpixel((199, 99))
    assert isinstance(pixel, tuple)
    assert "#{:02x}{:02x}{:02x}".format(*pixel) == style.PAPER
    assert len(image.convert("RGB").getcolors(10_000) or []) <= 64
    assert len(data) < 4_000
    assert pyplot.get_fignums() == [], "no figure stays open"
    again = replace(PICTURE)
    assert (again.svg(), again.png()) == (PICTURE.svg(), data)


def test_a_small_window_scrolls_and_a_large_one_does_not_enlarge() -> None:
    div = ET.fromstring(PICTURE.svg())
    assert "overflow-x:auto" in div.get("style", "")
    look = div[0].get("style", "")
    assert "width:100%" in look
    assert f"max-width:{200 / 13:g}em" in look
    assert div[0].get("viewBox") == "0 0 200 100"


@pytest.mark.parametrize("word", ["", "a", "drawer", "num_heads/head_dim", "shape (2, 3, 5, 4)"])
def test_a_fitting_text_has_room(word: str) -> None:
    sizes = [fitting(word, room) for room in (20, 60, 180)]
    for room, size in zip((20, 60, 180), sizes, strict=True):
        assert 0 < size <= 12
        assert not word or TextPath((0, 0), word, size=size).get_extents().width <= room
    assert all(small <= large for small, large in pairwise(sizes))
    assert fitting(word, 1000, most=9) == 9
