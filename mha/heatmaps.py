"""Attention weights of every head, with tokens on both axes."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mha.picture import Label, Map, Picture, fitting, letters, shortened

WIDTH, HEIGHT, LEFT, BOTTOM, TITLE, GAP, LARGEST, LINE = 780, 600, 70, 70, 20, 8, 320, 17
SMALLEST, READABLE = 4, 9  # of rows up to the first only some have a name, of the second size
MOST = 1024  # numbers in a text: those of one head of 32 tokens
ROUNDING = 0.01  # bfloat16 goes from 1 to 1.0078 in one step


def heatmap_picture(
    weights: Any,
    queries: Any = None,
    keys: Any = None,
    titles: Any = None,
    header: Sequence[Sequence[str]] = (),
    height: float = HEIGHT,
    alt: str = "",
    largest: float = LARGEST,
    axes: tuple[str, str] = ("query", "key"),
) -> Picture:
    """One map a head, all on one scale from 0 to 1, as large as they fit; NaN is hatched.

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
        TypeError, ValueError: as `checked`.
    """
    weights, queries, keys, titles = checked(weights, queries, keys, titles)
    columns, wide, high = _grid(len(weights), len(queries), len(keys), height, largest)
    last = len(weights) - 1
    nan = bool(np.isnan(weights).any())
    top = TITLE + LINE * max(len(header), nan) + 6
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
        title = shortened(title, wide)
        labels.append(Label(x + wide / 2, y - 5, title, fitting(title, wide), "middle", bold=True))
        if column == 0:
            labels += _names(queries, x - 5, y, high / len(queries), upright=False)
        if head + columns > last:
            labels += _names(keys, x, y + high + 5, wide / len(keys), upright=True)
    corner = zip((f"↓ {axes[0]}", f"→ {axes[1]}"), (top - 5, y + high + 15), strict=True)
    labels += [Label(LEFT - 5, y, name, 11, "end") for name, y in corner]
    foot = max(m.y + m.height for m in maps) + min(BOTTOM, 16 + 8 * max(map(letters, keys)))
    if weights.dtype != bool:  # which is all or nothing, and needs no scale
        maps.append(Map(WIDTH - 62, 3, 44, 8, np.linspace(0, 1, 22)[None]))
        if nan:
            maps.insert(-1, Map(WIDTH - 170, 3, 44, 8, np.full((1, 1), np.nan)))
            labels.append(Label(WIDTH - 118, 12, "NaN", 11))
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
    """The tokens beside the rows of a map, or under its columns: upright, if they are long.

    Where all of them would be too small to be read, every second, third and so on.
    """
    labels = []
    flat = upright and max(map(len, tokens)) == 1
    every = 1 if step > SMALLEST else math.ceil(READABLE / step)
    for i, token in list(enumerate(tokens))[::every]:
        name = shortened(token, LEFT - 5)
        size = fitting(name, LEFT - 5, min(12, step * every * 1.02))
        middle = i * step + step / 2 + (0 if flat else size * 0.34)
        place = (x + middle, y + 10 * flat) if upright else (x, y + middle)
        anchor = "middle" if flat else "end"
        labels.append(Label(*place, name, size, anchor, upright=upright and not flat))
    return labels


def strongest_links(
    weights: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> list[tuple[str, str, float] | None]:
    """The largest weight of each head, as (query, key, weight rounded to 2 decimals).

    The first key does not count where there are more: trained heads rest on it. NaN does not
    count either, and a head of nothing else has None.

    >>> strongest_links(np.array([[[1.0, 0.0], [0.25, 0.75]]]), ["a", "b"], ["a", "b"])
    [('b', 'b', 0.75)]
    """
    first = min(1, len(keys) - 1)
    queries, keys = told_apart(queries), told_apart(keys)
    links: list[tuple[str, str, float] | None] = []
    for weight in np.round(weights[:, :, first:], 2):
        known = np.where(np.isnan(weight), -1, weight)
        query, key = divmod(int(known.argmax()), len(keys) - first)
        found = (queries[query], keys[key + first], float(known.max()))
        links.append(found if found[2] >= 0 else None)
    return links


def in_words(
    weights: Any, queries: Any = None, keys: Any = None, titles: Any = None, most: int = MOST
) -> str:
    """Every weight, a line a query, or if they are more than `most` the strongest of each head.

    >>> print(in_words([[[0.5, 0.5], [np.nan, np.nan]]], ["the", "keys"], ["the", "the"]))
    head 0: the -> the (0) 0.50, the (1) 0.50
    head 0: query keys has no weights: NaN
    """
    weights, queries, keys, titles = checked(weights, queries, keys, titles)
    links = strongest_links(weights, queries, keys)
    queries, keys = told_apart(queries), told_apart(keys)
    lines = []
    for title, head, link in zip(titles, weights, links, strict=True):
        nan, empty = np.isnan(head).any(-1), np.isnan(head).all(-1)
        if weights.size > most:
            lines += [f"{title}: {link[0]} -> {link[1]} {link[2]:.2f}"] if link else []
        else:
            for i in np.flatnonzero(~empty):
                row = ", ".join(f"{key} {w:.2f}" for key, w in zip(keys, head[i], strict=True))
                lines.append(f"{title}: {queries[i]} -> {row}")
        for rows, what in ((empty, "no weights:"), (nan & ~empty, "weights that are")):
            found = [queries[i] for i in np.flatnonzero(rows)]
            if found:
                found[8:] = [f"{len(found) - 8} more"] if len(found) > 8 else []
                who, have = ("query", "has") if len(found) == 1 else ("queries", "have")
                lines.append(f"{title}: {who} {', '.join(found)} {have} {what} NaN")
    return "\n".join(lines)


def told_apart(tokens: Sequence[str]) -> list[str]:
    """Tokens with their position where they occur more than once.

    >>> told_apart(["the", "keys", "the"])
    ['the (0)', 'keys', 'the (2)']
    """
    count = Counter(tokens)
    return [f"{token} ({i})" if count[token] > 1 else token for i, token in enumerate(tokens)]


def checked(
    weights: Any, queries: Any = None, keys: Any = None, titles: Any = None
) -> tuple[np.ndarray, list[str], list[str], list[str]]:
    """Weights as an array, and tokens and titles as words that can be drawn.

    Args:
        weights: tensor, array or lists, (num_heads, seq_q, seq_k), boolean or from 0 to 1. NaN
            stays; what lies outside by rounding is brought inside.
        queries: seq_q tokens, as `words` takes them.
        keys: seq_k tokens.
        titles: num_heads titles; "head 0", "head 1" and so on if not given.

    Raises:
        TypeError: weights that are no numbers, or tokens that have no order.
        ValueError: sizes that disagree, nothing to draw, or numbers that are no weights.
    """
    array = _array(weights)
    if array.ndim != 3 or not array.size:
        fix = {2: " Of one head, give weights[None].", 4: " Choose a sequence: weights[0]."}
        raise ValueError(
            "weights must be (num_heads, seq_q, seq_k), each at least 1, but is "
            f"{array.shape}.{fix.get(array.ndim, '')}"
        )
    num_heads, seq_q, seq_k = array.shape
    titles = [f"head {head}" for head in range(num_heads)] if titles is None else titles
    return (
        array if array.dtype == bool else _from_0_to_1(array),
        words("queries", queries, seq_q, "a row of weights"),
        words("keys", keys, seq_k, "a column of weights"),
        words("titles", titles, num_heads, "a head"),
    )


def _array(x: Any) -> np.ndarray:
    """A tensor of any dtype, an array, or lists of them, as booleans, float32 or float64."""
    try:
        if isinstance(x, list | tuple) and any(hasattr(part, "detach") for part in x):
            x = np.stack([_array(part) for part in x])
        if hasattr(x, "detach"):
            x = x.detach().cpu()
            x = x.float() if x.is_floating_point() else x  # NumPy has no bfloat16
        array = np.asarray(x)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"its dtype is {array.dtype}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            "weights must be a tensor, an array or lists of real numbers, but is "
            f"{type(x).__name__}: {error}."
        ) from error
    return array if array.dtype == bool else array.astype(np.result_type(array, np.float32))


def _from_0_to_1(weights: np.ndarray) -> np.ndarray:
    known = weights[~np.isnan(weights)]
    low, high = (known.min(), known.max()) if known.size else (0, 0)
    if low < -ROUNDING or high > 1 + ROUNDING:
        dropout = "" if low < -ROUNDING else " If dropout made them larger, call model.eval()."
        raise ValueError(
            f"weights must be from 0 to 1, but are from {low:.4g} to {high:.4g}. "
            f"They look like scores: mask them, and take scores.softmax(dim=-1).{dropout}"
        )
    return weights.clip(0, 1)


def words(name: str, tokens: Any, count: int, each: str) -> list[str]:
    r"""Tokens (words, ids, a tensor of them; positions if None) as words that can be seen.

    >>> words("tokens", np.array([101, 7]), 2, "a key"), words("tokens", ("the", "\n"), 2, "a key")
    (['101', '7'], ['the', "'\\n'"])
    """
    tokens = range(count) if tokens is None else tokens
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    if not hasattr(tokens, "__getitem__"):
        raise TypeError(f"{name} must be a list of {count} words, but is {tokens!r:.60}.")
    found = [token.tolist() if hasattr(token, "tolist") else token for token in tokens]
    nested = any(isinstance(token, list | tuple) for token in found)
    if len(found) != count or nested:
        fix = f": choose {name}[0]" if nested else ""
        raise ValueError(f"{name} must be {count} words, one {each}, but are {len(found)}{fix}.")
    return [_seen(str(token)) for token in found]


def _seen(token: str) -> str:
    """A token as it is, or in quotes with escapes where nothing, or no line, would be seen."""
    plain = token.replace("\u200c", "").replace("\u200d", "")  # joiners, of Persian and of emoji
    return token if plain.isprintable() and plain.strip() else repr(token)
