"""Colours and sizes of every picture, in one place."""

from matplotlib import colormaps

INK = "#1b1f24"
QUIET = "#57606a"
PAPER = "#ffffff"
FONT = "DejaVu Sans, Verdana, sans-serif"

# Light enough for dark numbers on top; neighbours differ in lightness, for colour-blind eyes too.
HEAD_COLOURS = (
    "#c994c7", "#c7e9e4", "#fdae61", "#fff3b0", "#e0a37e", "#a6cee3",
    "#b3b36b", "#e5d8f0", "#9fa8da", "#f1dcc0", "#80b1a9", "#d9f0a3",
)  # fmt: skip

LEVELS = 64
# Attention weight 0 is paper and 1 is dark blue, the same in every picture.
HEAT = [
    tuple(round(255 * part) for part in colormaps["Blues"](level / (LEVELS - 1))[:3])
    for level in range(LEVELS)
]
HEAT[0] = (255, 255, 255)
NO_WEIGHT = (234, 234, 234)  # under the hatching of NaN, and on the scale nowhere


def head_colour(head: int) -> str:
    """The fill of everything that belongs to a head; colours repeat after twelve."""
    return HEAD_COLOURS[head % len(HEAD_COLOURS)]
