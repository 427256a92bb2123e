"""Axis names: an axis is called after the axis that it came from, and by its size only at first."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mha.layout import Layout
from mha.steps import Step

Names = tuple[str, ...]  # an axis without a name is called by its size
Given = Mapping[str, str]  # from the text of a size to its name, as not every size is a plain int


# The axes that a product of two tensors keeps: the last but one of the first, and which of the
# second. Where the tensors begin among the inputs differs.
PRODUCTS = {
    "matmul": 0, "__matmul__": 0, "mm": 0, "bmm": 0, "baddbmm": 1, "addmm": 1, "addbmm": 1,
}  # fmt: skip
KEEP_ORDER = {"clone", "contiguous", "flatten", "ravel", "reshape", "reshape_as", "to"}


def axes_of(name: str, args: Sequence[Any], step: Step, given: Given) -> Names:
    """A name for each axis of what a call returned, from the axes of the steps that went in."""
    inputs = [x for x in step.inputs if _is_plain(x)]
    if not inputs or not _is_plain(step):
        return sized(step.shape or (), given)
    shape, first = step.shape or (), inputs[0]
    for x in inputs:
        if x.storage is step.storage is not None:
            return viewed(_layout(x), x.axes, _layout(step), given)
    names, shapes = [x.axes for x in inputs], [x.shape or () for x in inputs]
    a = PRODUCTS.get(name, 0)
    if step.memory == "copied" and name in KEEP_ORDER:
        return regrouped(shapes[0], names[0], shape, given)
    if name in PRODUCTS and all(len(x) > 1 for x in shapes[a : a + 2]):
        batch = joined([x[:-2] for x in names[a:]], [x[:-2] for x in shapes[a:]], shape[:-2])
        return (*batch, names[a][-2], names[a + 1][-1])
    if name == "linear":
        return (*names[0][:-1], names[1][0])
    if name == "embedding":
        return (*names[0], names[1][-1])
    if name == "scaled_dot_product_attention":
        return (*names[0][:-1], names[2][-1])
    if name == "einsum" and len(letters := _letters(args)) == len(names) + 1:
        called = dict(zip("".join(letters[:-1]), itertools.chain(*names), strict=False))
        return tuple(called[letter] for letter in letters[-1])
    if _broadcast(shapes) == shape:
        return joined(names, shapes, shape)
    if step.storage is None:  # inside of a transform, where a view cannot be told from a copy
        return viewed(_layout(first), first.axes, _layout(step), given)
    moved = given if step.memory == "copied" else {}
    found = positional(names[0], shapes[0], shape, moved)
    if name in ("cat", "concat", "concatenate") and len(set(names)) == 1:
        times = [
            (f"{len(names)}*{n}" if x.isdigit() and not n.isdigit() and x != s else x)
            for x, n, s in zip(found, names[0], map(str, shapes[0]), strict=True)
        ]
        return tuple(times)
    return found


def sized(shape: Sequence[int], given: Given) -> Names:
    """Names by size alone. Every tensor has axes of size 1: their name is given out once."""
    sizes = [str(size) for size in shape]
    once = sizes.index("1") if "1" in sizes else -1
    return tuple(
        size if size == "1" and i != once else given.get(size, size) for i, size in enumerate(sizes)
    )


def viewed(old: Layout, names: Names, new: Layout, given: Given) -> Names:
    """The names after a view: axes are told by their strides.

    >>> given = {"5": "seq", "12": "d_model", "3": "num_heads", "4": "head_dim"}
    >>> x = Layout.contiguous((2, 5, 12))
    >>> viewed(x, ("2", "seq", "d_model"), x.view((2, 5, 3, 4)), given)
    ('2', 'seq', 'num_heads', 'head_dim')
    """
    axes = list(zip(old.shape, old.strides, names, strict=True))
    wanted = list(zip(new.shape, new.strides, strict=True))
    if sorted(wanted) != sorted((size, stride) for size, stride, _ in axes):
        try:
            if old.view(new.shape) == new:
                return regrouped(old.shape, names, new.shape, given)
        except ValueError:
            pass
    found: list[str] = []
    for size, stride in wanted:
        same = [axis for axis in axes if axis[:2] == (size, stride)]
        longer = [axis for axis in axes if axis[1] == stride and axis[0] > size]
        if same:
            axes.remove(same[0])
            found.append(same[0][2])
        elif longer:
            found.append(_part(longer[0][2], size, given))
        else:  # stride 0 where `expand` repeats
            found.append(given.get(str(size), str(size)) if stride == 0 and size > 1 else str(size))
    return tuple(found)


def regrouped(old: Sequence[int], names: Names, new: Sequence[int], given: Given) -> Names:
    """The names after a reshape, in which every axis of `new` splits or merges axes of `old`.

    >>> regrouped((2, 3, 5, 5), ("batch", "num_heads", "seq", "seq"), (6, 5, 5), {})
    ('batch*num_heads', 'seq', 'seq')
    """
    if math.prod(old) == 0:
        return positional(names, old, new)
    ones = [(low, name) for (low, high), name in zip(_ends(old), names, strict=True) if low == high]
    axes = [(*end, name) for end, name in zip(_ends(old), names, strict=True) if end[0] != end[1]]
    marks = sorted({end for low, high, _ in axes for end in (low, high)} | {*sum(_ends(new), ())})
    found: list[str] = []
    for (low, high), size in zip(_ends(new), new, strict=True):
        if size == 1:
            same = [one for one in ones if one[0] == low]
            found.append(same[0][1] if same else "1")
            if same:
                ones.remove(same[0])
            continue
        pieces: list[str | None] = []
        inside = [mark for mark in marks if low <= mark <= high]
        for a, b in itertools.pairwise(inside):
            bottom, top, name = next(axis for axis in axes if axis[0] <= a and b <= axis[1])
            if (bottom, top) == (a, b):
                pieces.insert(0, name)
            elif a % bottom or b % a or top % b:  # it mixes the ends of two axes
                pieces = [None]
                break
            else:
                pieces.insert(0, given.get(str(b // a), str(b // a)))
        merged = len(pieces) > 1 and str(size) not in given
        named = [piece for piece in pieces if piece and not piece.isdigit()]
        if None in pieces or not named:
            found.append(str(size))
        elif merged:
            found.append("*".join(filter(None, pieces)))
        else:
            found.append(named[0] if len(pieces) == 1 else given[str(size)])
    return tuple(found)


def positional(names: Names, old: Sequence[int], new: Sequence[int], given: Given = {}) -> Names:  # noqa: B006
    """The names by position for as long as sizes agree; one that grew may have a given name."""
    if len(old) != len(new):
        return _aligned(names, old, new)
    return tuple(
        name if a == b else given.get(str(b), str(b)) if b > a else _part(name, b, given)
        for name, a, b in zip(names, old, new, strict=True)
    )


def joined(names: Sequence[Names], shapes: Sequence[Sequence[int]], new: Sequence[int]) -> Names:
    """The names after arithmetic, which lines up the last axes of its inputs.

    >>> joined([("batch", "seq", "5"), ("seq", "d_model")], [(2, 3, 5), (3, 5)], (2, 3, 5))
    ('batch', 'seq', 'd_model')
    """
    found = []
    for axis in range(-len(new), 0):
        there = [
            name[axis]
            for name, shape in zip(names, shapes, strict=True)
            if len(shape) >= -axis and shape[axis] == new[axis]
        ]
        named = (name for name in there if not name.isdigit())
        found.append(next(named, str(new[axis])))
    return tuple(found)


def _part(name: str, size: int, given: Given) -> str:
    """The name of a part of an axis: only a factor of its own name, as d_model of 3*d_model."""
    factor = given.get(str(size), "")
    return factor if size != 1 and factor in name.split("*")[1:] else str(size)


def _aligned(names: Names, old: Sequence[int], new: Sequence[int]) -> Names:
    """The names where axes came or went, if reading from both ends gives the same."""

    def read(names: Sequence[str], old: Sequence[int], new: Sequence[int]) -> Iterator[str]:
        left = list(zip(old, names, strict=True))
        for size in new:
            there = [i for i, axis in enumerate(left) if axis[0] == size]
            yield left[there[0]][1] if there else str(size)
            left = left[there[0] + 1 :] if there else left

    ahead = list(read(names, old, new))
    back = list(read(names[::-1], old[::-1], new[::-1]))[::-1]
    return tuple(a if a == b else str(size) for a, b, size in zip(ahead, back, new, strict=True))


def _ends(shape: Sequence[int]) -> list[tuple[int, int]]:
    """For each axis, the number of elements that one step and that all of it take."""
    return [(math.prod(shape[i + 1 :]), math.prod(shape[i:])) for i in range(len(shape))]


def _is_plain(x: Step) -> bool:
    """Whether its layout is of numbers; sizes that a compiler keeps open may not be compared."""
    return x.strides is not None and all(type(n) is int for n in (*(x.shape or ()), *x.strides))


def _layout(x: Step) -> Layout:
    return Layout(x.shape or (), x.strides or (), x.offset)


def _letters(args: Sequence[Any]) -> list[str]:
    """The axes in an equation of einsum, where it names all of them."""
    equation = args[0].replace(" ", "") if args and isinstance(args[0], str) else ""
    return [] if "." in equation or "->" not in equation else equation.replace("->", ",").split(",")


def _broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """The shape that all of them are stretched to by arithmetic, if they can be."""
    sizes = []
    for axis in itertools.zip_longest(*(x[::-1] for x in shapes), fillvalue=1):
        longer = {*axis} - {1} or {1}
        if len(longer) > 1:
            return None
        sizes.append(longer.pop())
    return tuple(sizes[::-1])
