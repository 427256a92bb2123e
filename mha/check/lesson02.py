"""The exercises of lesson 02, shape and strides."""

import math
from collections.abc import Sequence

import torch

from mha.check.verdict import Exercise


def _element(index: Sequence[int], strides: Sequence[int], offset: int) -> int:
    return offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


contiguous_strides = Exercise(
    "contiguous_strides",
    lambda shape: torch.empty(shape).stride(),
    [((2, 3),), ((2, 5, 12),), ((2, 5, 3, 4),), ((7,),), ((2, 1, 3),), ((3, 3),)],
    {
        "reversed": lambda shape: tuple(math.prod(shape[:i]) for i in range(len(shape))),
        "back to front": lambda shape: torch.empty(shape).stride()[::-1],
        "its own size too": lambda shape: tuple(math.prod(shape[i:]) for i in range(len(shape))),
        "bytes": lambda shape: tuple(4 * stride for stride in torch.empty(shape).stride()),
        "next size only": lambda shape: (*shape[1:], 1),
    },
)
element = Exercise(
    "element",
    _element,
    [
        ((1, 2), (4, 1), 0),
        ((1, 2, 0, 3), (60, 4, 12, 1), 0),
        ((2, 1), (1, 7), 5),
        ((3, 2, 1), (0, 5, 1), 4),
    ],
    {
        "offset forgotten": lambda index, strides, offset: _element(index, strides, 0),
        "strides ignored": lambda index, strides, offset: _element(index, [1] * len(index), offset),
        "reversed": lambda index, strides, offset: _element(index, strides[::-1], offset),
        "bytes": lambda index, strides, offset: 4 * _element(index, strides, offset),
    },
)
can_merge = Exercise(
    "can_merge",
    lambda sizes, strides, i: 1 in sizes[i : i + 2] or strides[i] == sizes[i + 1] * strides[i + 1],
    [
        ((4, 3), (3, 1), 0),
        ((3, 4), (1, 3), 0),
        ((2, 5, 3, 4), (60, 4, 20, 1), 2),
        ((5, 2, 3), (1, 15, 5), 1),
        ((2, 5, 1, 12), (60, 12, 60, 1), 2),
        ((4, 1), (1, 9), 0),
        ((3, 3), (3, 1), 0),
        ((2, 3, 1, 4), (1, 8, 4, 1), 0),
        ((3, 4), (0, 1), 0),
        ((2, 3, 4), (7, 0, 0), 1),
        ((3, 2), (4, 1), 0),
    ],
    {
        "must be contiguous": lambda sizes, strides, i: strides == torch.empty(sizes).stride(),
        "size 1 forgotten": lambda sizes, strides, i: strides[i] == sizes[i + 1] * strides[i + 1],
        "wrong axis's size": lambda s, t, i: 1 in s[i : i + 2] or t[i] == s[i] * t[i + 1],
        "always": lambda sizes, strides, i: True,
        "never": lambda sizes, strides, i: False,
    },
)
