"""Attention weights of every head, with tokens on both axes."""

from collections.abc import Sequence

import numpy as np

from mha.picture import Label, Map, Picture, fitting

WIDTH, HEIGHT, LEFT, BOTTOM, TITLE, GAP, LARGEST, LINE = 780, 600, 70, 70, 20, 8, 320, 17


def heatmap_picture(
    weights: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    titles: Sequence[str] | None = None,
    header: Sequence[Sequence[str]] = (),
    height: float = HEIGHT,
    alt: str = "",
    largest: float = LARGEST,
    axes: tuple[str, str] = ("query", "key"),
) -> Picture:
    """One map a head, all on one scale from 0 to 1, as large as they fit.

    Args:
        weights: (num_heads, seq_q, seq_k); rows are queries, columns are keys.
        queries: seq_q tokens.
        keys: seq_k tokens.
        titles: one a map; "head 0", "head 1" and so on if not given.
        header: rows of a name, a shape and strides, printed above the maps.
        height: the most that the maps may take together.
        alt: what the picture shows, in words.
        largest: the most that the longer side of a map may take.
        axes: what the rows and the columns are.

    Returns:
        A picture of one width, whatever the number of maps.

    Raises:
        ValueError: the weights have other sizes than the tokens.
    """
    if weights.ndim != 3 or weights.shape[1:] != (len(queries), len(keys)):
        raise ValueError(
            f"weights must be (num_heads, {len(queries)} queries, {len(keys)} keys), "
            f"but is {weights.shape}."
        )
    titles = titles or [f"head {head}" for head in range(len(weights))]
    columns, wide, high = _grid(len(weights), len(queries), len(keys), height, largest)
    last = len(weights) - 1
    top = TITLE + LINE * len(header) + 6
    maps: list[Map] = []
    labels = [
        Label(x, LINE * (i + 1), text, bold=x == 8)
        for i, row in enumerate(header)
        for x, text in zip((8, 150, 310), row, strict=True)
    ]
    for head, (weight, title) in enumerate(zip(weights, titles, strict=True)):
        row, column = divmod(head, columns)
        x, y = LEFT + column * (wide + GAP), top + row * (high + TITLE)
        maps.append(Map(x, y, wide, high, weight))
        size = fitting(title, wide)
        labels.append(Label(x + wide / 2, y - 5, title, size, "middle", bold=True))
        if column == 0:
            labels += _names(queries, x - 5, y, high / len(queries), upright=False)
        if head + columns > last:
            labels += _names(keys, x, y + high + 5, wide / len(keys), upright=True)
    corner = zip((f"↓ {axes[0]}", f"→ {axes[1]}"), (top - 5, y + high + 15), strict=True)
    labels += [Label(LEFT - 5, y, name, 11, "end") for name, y in corner]
    foot = max(m.y + m.height for m in maps) + min(BOTTOM, 16 + 8 * max(map(len, keys)))
    if weights.dtype != bool:  # which is all or nothing, and needs no scale
        maps.append(Map(WIDTH - 62, 3, 44, 8, np.linspace(0, 1, 22)[None]))
        labels += [Label(WIDTH - 66, 12, "0", 11, "end"), Label(WIDTH - 14, 12, "1", 11)]
    return Picture(WIDTH, foot, alt, maps=maps, labels=labels)


def _grid(
    count: int, rows: int, columns: int, height: float, largest: float
) -> tuple[int, float, float]:
    """How many maps stand side by side, and the width and height that make them largest."""

    def size(across: int) -> float:
        down = -(-count // across)
        wide = (WIDTH - LEFT) / across - GAP
        high = (height - BOTTOM) / down - TITLE
        return min(wide / columns, high / rows, largest / max(rows, columns))

    across = max(range(count, 0, -1), key=size)
    return across, size(across) * columns, size(across) * rows


def _names(tokens: Sequence[str], x: float, y: float, step: float, *, upright: bool) -> list[Label]:
    """The tokens beside the rows of a map, or under its columns: upright, if they are long."""
    labels = []
    flat = upright and max(map(len, tokens)) == 1
    for i, token in enumerate(tokens):
        size = fitting(token, LEFT - 5, min(12, step * 1.02))
        middle = i * step + step / 2 + (0 if flat else size * 0.34)
        place = (x + middle, y + 10 * flat) if upright else (x, y + middle)
        anchor = "middle" if flat else "end"
        labels.append(Label(*place, token, size, anchor, upright=upright and not flat))
    return labels


def strongest_links(
    weights: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> list[tuple[str, str, float]]:
    """The largest weight of each head, as (query, key, weight rounded to 2 decimals).

    The first key does not count where there are more: trained heads rest on it.

    >>> strongest_links(np.array([[[1.0, 0.0], [0.25, 0.75]]]), ["a", "b"], ["a", "b"])
    [('b', 'b', 0.75)]
    """
    first = min(1, len(keys) - 1)
    links = []
    for weight in np.round(weights[:, :, first:], 2):
        query, key = divmod(int(weight.argmax()), len(keys) - first)
        links.append((queries[query], keys[key + first], float(weight.max())))
    return links
