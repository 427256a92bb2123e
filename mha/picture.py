"""A picture is computed first, as plain data, and then lowered: to SVG, or to matplotlib."""

import base64
import io
import math
import re
from dataclasses import dataclass, field
from functools import cache
from html import escape
from itertools import pairwise
from unicodedata import east_asian_width

import numpy as np
from matplotlib import font_manager, rcParams
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from PIL import Image

from mha import style

BOX, HIGH = 26, 22  # the width and height of a cell
LETTER = 0.66  # how wide a usual letter is, by the font size
SMALLEST = 6.5  # the font size below which a long text is shortened
HATCH = 6


@dataclass(frozen=True)
class Cell:
    """One element of a tensor, drawn as a box; boxes of the same element light up together."""

    x: float
    y: float
    element: int
    head: int


@dataclass(frozen=True)
class Map:
    """A matrix of weights from 0 to 1, drawn as pixels; NaN is none of them, and hatched."""

    x: float
    y: float
    width: float
    height: float
    weights: np.ndarray


@dataclass(frozen=True)
class Label:
    """A line of text; `element` hides it until that element is pointed at."""

    x: float
    y: float
    text: str
    size: float = 12
    anchor: str = "start"
    colour: str = style.INK
    bold: bool = False
    upright: bool = False
    element: int | None = None


@dataclass(frozen=True)
class Picture:
    """Everything that is drawn, in pixels from the top left, and its alternative text."""

    width: float
    height: float
    alt: str
    cells: list[Cell] = field(default_factory=list)
    maps: list[Map] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def svg(self) -> str:
        """As inline SVG for a web page, which scales to the width that it is given.

        Its elements are one tab stop; arrow keys light them one by one, as pointing does.
        """
        look = (
            f"width:100%;min-width:600px;max-width:{self.width / 13:g}em;"
            f"image-rendering:pixelated;background:{style.PAPER};fill:{style.INK};font-family:{style.FONT}"
        )
        parts = [
            f'<form method="dialog" class="mha" style="overflow-x:auto;position:relative">'
            f'<svg role="img" style="{look}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" aria-label="{escape(self.alt)}">',
            f"<style>{_css(self.cells)}</style>" if self.cells else "",
            *(_svg_map(m) for m in self.maps),
            *(_svg_cell(cell) for cell in self.cells),
            *(_svg_label(label) for label in self.labels),
        ]
        return "".join([*parts, "</svg>", *self._keys(), "</form>"])

    def _keys(self) -> list[str]:
        """A button for each element, unseen, which says where the last panel shows it."""
        told = {label.element: label.text for label in self.labels if label.element is not None}
        return [
            f'<input type="radio" name="e" class="k{e}" aria-label="{e} at {escape(text)}"/>'
            for e, text in sorted(told.items())
        ]

    def figure(self) -> Figure:
        """As a matplotlib figure, which shows no element pointed at."""
        fonts, lacking = _fonts_for(
            frozenset("".join(label.text for label in self.labels)), tuple(rcParams["font.family"])
        )
        strong = font_manager.findfont(FontProperties(weight="bold"))
        codes = [f"U+{ord(letter):04X}" for letter in lacking[:6]] + ["…"] * (len(lacking) > 6)
        note = f"? is {', '.join(codes)}: not in any font here" if lacking else ""
        height = self.height + 16 * bool(note)
        figure = Figure(figsize=(self.width / 100, height / 100), dpi=100)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(height, 0))
        axes.set_axis_off()
        for m in self.maps:
            extent = (m.x, m.x + m.width, m.y + m.height, m.y)
            axes.imshow(_pixels(m.weights), extent=extent, interpolation="nearest", aspect="auto")
            axes.add_collection(LineCollection(_hatch(m), colors=style.QUIET, linewidths=0.7))
            axes.add_patch(
                Rectangle((m.x, m.y), m.width, m.height, fill=False, ec=style.QUIET, lw=0.7)
            )
        for c in self.cells:
            axes.add_patch(
                Rectangle((c.x, c.y), BOX, HIGH, fc=style.head_colour(c.head), ec=style.INK, lw=0.7)
            )
            axes.text(c.x + BOX / 2, c.y + HIGH / 2 + 4, str(c.element), ha="center", size=8.6)
        for label in self.labels:
            if label.element is None:
                text = label.text.translate(dict.fromkeys(map(ord, lacking), "?"))
                axes.text(
                    label.x,
                    label.y,
                    text,
                    family=fonts,
                    size=label.size * 0.72,
                    color=label.colour,
                    ha={"start": "left", "middle": "center", "end": "right"}[label.anchor],
                    weight="bold" if label.bold and _had(strong, {*text}) == {*text} else "normal",
                    rotation=90 if label.upright else 0,
                    rotation_mode="anchor",
                    parse_math=False,
                )
        if note:
            axes.text(8, height - 5, note, size=8, color=style.QUIET)
        axes.set(xlim=(0, self.width), ylim=(height, 0))
        return figure

    def png(self) -> bytes:
        """As the bytes of a PNG file."""
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png", facecolor=style.PAPER)
        image = Image.open(buffer).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        return _png(image)


@dataclass(frozen=True)
class Still(Picture):
    """A picture that matplotlib has drawn already."""

    data: bytes = b""

    @classmethod
    def of(cls, figure: Figure, alt: str) -> "Still":
        """What a matplotlib figure looks like."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", facecolor=style.PAPER, metadata={"Software": None})
        width, height = figure.get_size_inches() * figure.dpi
        return cls(width, height, alt, data=buffer.getvalue())

    def svg(self) -> str:
        """As an image for a web page."""
        data = base64.b64encode(self.data).decode()
        look = f"width:100%;max-width:{self.width / 13:g}em"
        return f'<img style="{look}" alt="{escape(self.alt)}" src="data:image/png;base64,{data}">'

    def png(self) -> bytes:
        """As the bytes of a PNG file."""
        return self.data


def letters(text: str) -> float:
    """How long a text is, in usual letters; those of Chinese and emoji are wider.

    >>> letters("keys"), letters("漢字")
    (4, 3.0)
    """
    return sum(1.5 if east_asian_width(letter) in "WF" else 1 for letter in text)


def fitting(text: str, room: float, most: float = 12) -> float:
    """The font size, up to `most`, at which a text of usual letters is no longer than `room`."""
    return min(most, room / (LETTER * max(letters(text), 1)))


def shortened(text: str, room: float) -> str:
    """A text that would be too small to be read in `room`, with both ends and without its middle.

    >>> shortened("internationalization", 65), shortened("internal", 65)
    ('interna…ization', 'internal')
    """
    most = max(15, int(room / (LETTER * SMALLEST)))
    if letters(text) <= most:
        return text
    keep = next(n for n in range(most // 2, 0, -1) if letters(text[:n] + text[-n:]) < most)
    return f"{text[:keep]}…{text[-keep:]}"


@cache
def _fonts_for(letters: frozenset[str], first: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Fonts that together have some letters, after the `first` ones, and letters that none has."""
    files: dict[str, str] = {"": font_manager.findfont(FontProperties(family=first))}
    for entry in font_manager.fontManager.ttflist:
        outlines = not re.search("color|resort", entry.name, re.IGNORECASE)  # not pixels, or boxes
        if outlines and (entry.weight, entry.style) == (400, "normal"):
            files.setdefault(entry.name, entry.fname)
    fonts, missing = [*first], set(letters)
    for name, path in files.items():
        had = _had(path, missing)
        if name and had:  # another file of that name may be the one that is used
            had = _had(font_manager.findfont(FontProperties(family=[name])), missing)
            fonts.append(name)
        missing -= had
        if not missing:
            break
    return fonts, sorted(missing)


def _had(path: str, letters: set[str]) -> set[str]:
    try:
        font = font_manager.get_font(path)
    except (OSError, RuntimeError):  # not every font is one that matplotlib can read
        return set()
    return {letter for letter in letters if font.get_char_index(ord(letter))}


def _hatch(m: Map) -> list[list[tuple[float, float]]]:
    """Slanted lines over the weights of a map that are NaN, from end to end."""
    lines = []
    nan = np.isnan(m.weights)
    rows, columns = (
        size / count for size, count in zip((m.height, m.width), nan.shape, strict=True)
    )
    inside = range(1, len(nan) if nan.any() else 1)
    starts = [0, *(i for i in inside if (nan[i] != nan[i - 1]).any())]
    for first, last in pairwise([*starts, len(nan)]):  # rows that are alike are one area
        top, bottom = m.y + first * rows, m.y + last * rows
        edges = np.flatnonzero(np.diff(nan[first], prepend=False, append=False)).tolist()
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            left, right = m.x + start * columns, m.x + end * columns
            for at in range(math.ceil((left + top) / HATCH), int((right + bottom) / HATCH) + 1):
                x0, x1 = max(left, at * HATCH - bottom), min(right, at * HATCH - top)
                lines.append([(x0, at * HATCH - x0), (x1, at * HATCH - x1)])
    return lines


def _pixels(weights: np.ndarray) -> np.ndarray:
    """Weights from 0 to 1 as colours, (rows, columns, 3) bytes."""
    levels = np.rint(np.clip(np.nan_to_num(weights), 0, 1) * (style.LEVELS - 1))
    pixels: np.ndarray = np.array(style.HEAT, dtype=np.uint8)[levels.astype(np.intp)]
    pixels[np.isnan(weights)] = style.NO_WEIGHT
    return pixels


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def _svg_map(m: Map) -> str:
    image = Image.fromarray(_pixels(m.weights)).quantize(style.LEVELS + 1)
    data = base64.b64encode(_png(image)).decode()
    box = f'x="{m.x:g}" y="{m.y:g}" width="{m.width:g}" height="{m.height:g}"'
    path = "".join(f"M{x:g} {y:g}L{u:g} {v:g}" for (x, y), (u, v) in _hatch(m))
    hatch = f'<path d="{path}" stroke="{style.QUIET}"/>' if path else ""
    return (
        f'<image {box} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
        f'<rect {box} fill="none" stroke="{style.QUIET}"/>{hatch}'
    )


def _svg_cell(c: Cell) -> str:
    return (
        f'<g class="e{c.element} h{c.head}" transform="translate({c.x:g} {c.y:g})">'
        f"<rect/><text>{c.element}</text></g>"
    )


def _svg_label(label: Label) -> str:
    place = f'x="{label.x:g}" y="{label.y:g}"'
    if label.upright:
        place = f'transform="translate({label.x:g} {label.y:g}) rotate(-90)"'
    if label.element is not None:
        look = f'class="a a{label.element}"'
    else:
        look = f'font-size="{label.size:g}" text-anchor="{label.anchor}"'
        look += f' fill="{label.colour}"' if label.colour != style.INK else ""
        look += ' font-weight="bold"' if label.bold else ""
    return f"<text {place} {look}>{escape(label.text)}</text>"


def _css(cells: list[Cell]) -> str:
    """Colours by head; an element pointed at lights everywhere, and shows its arithmetic."""
    colours = [
        f".mha .h{h}{{--box:{style.head_colour(h)}}}" for h in sorted({c.head for c in cells})
    ]
    lit = [
        f".mha:is(:has(.e{e}:hover),:not(:has(g:hover)):has(.k{e}:focus)) :is(.e{e},.a{e})"
        f"{{--box:{style.INK};--ink:{style.PAPER};display:inline}}"
        for e in sorted({c.element for c in cells})
    ]
    return (
        f".mha g rect{{width:{BOX}px;height:{HIGH}px;stroke:{style.INK};fill:var(--box)}}"
        f".mha g text{{font-size:12px;text-anchor:middle;fill:var(--ink,{style.INK});"
        f"transform:translate({BOX / 2}px,{HIGH / 2 + 4}px)}}"
        ".mha input{position:absolute;top:0;left:0;opacity:0}"
        f".mha:has(:focus-visible) svg{{outline:2px solid {style.INK};outline-offset:-2px}}"
        ".mha text{white-space:pre}"
        f".mha .a{{font-size:12px;text-anchor:end;fill:{style.INK};display:none}}"
        + "".join(colours + lit)
    )
