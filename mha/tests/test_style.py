"""Colours can be read, and told apart, also by colour-blind readers."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_rgb

from mha import style

# sRGB to XYZ (IEC 61966-2-1), and the simulation of Viénot, Brettel and Mollon (1999).
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
LMS = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.02996, 0.18431, 1.467]]
)
SEEN_BY = {
    "everyone": np.eye(3),
    "protanopes": np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]]),
    "deuteranopes": np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]]),
}


def linear(colour: str) -> np.ndarray:
    """A colour as amounts of light."""
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(XYZ[1] @ linear(colour))


def contrast(a: str, b: str) -> float:
    """As WCAG 2 defines it, from 1 to 21; 4.5 is its bound for text."""
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, seen_by: str) -> np.ndarray:
    """CIE L*a*b*, in which a distance of 2.3 is just noticeable."""
    light = np.linalg.inv(LMS) @ SEEN_BY[seen_by] @ LMS @ linear(colour)
    x, y, z = np.cbrt(np.clip(XYZ @ light.clip(0, 1) / XYZ.sum(axis=1), 0.008856, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_the_formulas_know_black_and_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    for seen_by in SEEN_BY:
        assert lab("#ffffff", seen_by) == pytest.approx([100, 0, 0], abs=1.5)
    red_and_green = [lab(colour, "deuteranopes") for colour in ("#c03020", "#707010")]
    assert np.linalg.norm(red_and_green[0] - red_and_green[1]) < 15


@pytest.mark.parametrize("colour", style.HEAD_COLOURS)
def test_numbers_can_be_read_on_every_head_colour(colour: str) -> None:
    assert contrast(style.INK, colour) >= 4.5


def test_words_can_be_read_on_paper_and_a_lit_number_on_ink() -> None:
    assert contrast(style.INK, style.PAPER) >= 7
    assert contrast(style.QUIET, style.PAPER) >= 4.5


@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_neighbouring_heads_differ(seen_by: str) -> None:
    colours = [lab(style.head_colour(head), seen_by) for head in range(13)]
    distances = [np.linalg.norm(a - b) for a, b in pairwise(colours)]
    assert min(distances) > 18, np.round(distances, 1)


def test_twelve_heads_have_colours_of_their_own_and_then_they_repeat() -> None:
    assert len({style.head_colour(head) for head in range(12)}) == 12
    assert style.head_colour(12) == style.head_colour(0)
    assert style.head_colour(23) == style.HEAD_COLOURS[11]


def test_more_weight_is_always_darker() -> None:
    levels = ["#{:02x}{:02x}{:02x}".format(*level) for level in style.HEAT]
    assert len(levels) == style.LEVELS == 64
    assert levels[0] == style.PAPER
    assert all(luminance(light) > luminance(dark) for light, dark in pairwise(levels))
    assert contrast(levels[-1], style.PAPER) > 10


def test_both_ways_of_drawing_begin_with_the_same_font() -> None:
    assert style.FONT.split(",")[0] == rcParams["font.sans-serif"][0]
