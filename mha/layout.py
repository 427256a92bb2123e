"""What `view` does, without a tensor: shape, strides and offset in pure Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """How the axes of a tensor walk through its storage.

    Args:
        shape: the size of each axis.
        strides: for each axis, how many elements further in storage its next index lies.
        offset: where in storage the first element lies.

    >>> x = Layout.contiguous((2, 5, 12))
    >>> x.view((2, 5, 3, 4)).transpose(1, 2)
    Layout(shape=(2, 3, 5, 4), strides=(60, 4, 12, 1), offset=0)
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ValueError(
                f"strides must have one number for each axis of shape {self.shape}, "
                f"but is {self.strides}."
            )

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> Layout:
        """The layout of fresh memory: the last axis has stride 1, the others step over the rest.

        >>> Layout.contiguous((2, 5, 12)).strides
        (60, 12, 1)
        """
        sizes = [max(size, 1) for size in shape]
        return cls(tuple(shape), tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))))

    @classmethod
    def of(cls, tensor: Any) -> Layout:
        """The layout of a torch tensor, whose storage nobody reads."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())

    @property
    def numel(self) -> int:
        """How many elements the layout shows; an expanded one shows some of them repeatedly."""
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        """Whether the elements, in the order of their indices, lie side by side in storage."""
        fresh = Layout.contiguous(self.shape).strides
        return self.numel == 0 or all(
            size == 1 or stride == expected
            for size, stride, expected in zip(self.shape, self.strides, fresh, strict=True)
        )

    def element(self, index: Sequence[int]) -> int:
        """The place in storage of the element at `index`: its offset plus one stride a step.

        Raises:
            IndexError: the index has another number of axes, or lies outside.

        >>> Layout.contiguous((1, 4, 6)).view((1, 4, 3, 2)).transpose(1, 2).element((0, 2, 1, 1))
        11
        """
        if len(index) != len(self.shape) or not all(
            0 <= i < size for i, size in zip(index, self.shape, strict=True)
        ):
            raise IndexError(f"index {tuple(index)} lies outside shape {self.shape}.")
        return self.offset + sum(i * stride for i, stride in zip(index, self.strides, strict=True))

    def elements(self) -> list[int]:
        """The place in storage of every element, in the order of their indices."""
        return [self.element(i) for i in itertools.product(*map(range, self.shape))]

    def transpose(self, a: int, b: int) -> Layout:
        """Swap two axes: their sizes and their strides. No element moves.

        Raises:
            IndexError: there is no such axis; axes may also be counted from the end, -1 the last.
        """
        order = list(range(len(self.shape)))
        for axis in (a, b):
            if axis not in range(-len(order), len(order)):
                raise IndexError(f"transpose: there is no axis {axis} in shape {self.shape}.")
        order[a], order[b] = order[b], order[a]
        return Layout(
            tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset
        )

    def expand(self, shape: Sequence[int]) -> Layout:
        """Repeat axes of size 1 by giving them stride 0; new axes may come in front.

        A size of -1 keeps the axis as it is.

        Raises:
            ValueError: an axis that is not 1 would change its size.

        >>> Layout.contiguous((2, 1, 5, 5)).expand((2, 3, 5, 5)).strides
        (25, 0, 5, 1)
        """
        asked, new = tuple(shape), len(shape) - len(self.shape)
        olds = (-1,) * new + self.shape  # so that a new axis of -1 stays negative
        shape = [old if size == -1 else size for old, size in zip(olds, asked, strict=False)]
        if (
            new < 0
            or min(shape, default=0) < 0
            or any(old not in (1, size) for old, size in zip(self.shape, shape[new:], strict=True))
        ):
            raise ValueError(
                f"expand: {self.shape} cannot become {asked}; only axes of size 1 grow."
            )
        strides: list[int] = []
        for axis in reversed(range(len(shape))):
            if axis >= new:
                size, stride = self.shape[axis - new], self.strides[axis - new]
            else:  # a new axis; torch gives it the stride that fresh memory would have
                size, stride = 1, shape[axis + 1] * strides[0] if strides else 0
            strides.insert(0, stride if size == shape[axis] else 0)
        return Layout(tuple(shape), tuple(strides), self.offset)

    def view(self, shape: Sequence[int]) -> Layout:
        """The same elements in the same order under another shape, if strides can say it.

        Splitting an axis always works. Two neighbours merge only where a step of the first is as
        long as the whole of the second: `strides[a] == shape[b] * strides[b]`. One size may be -1,
        which stands for what is left.

        Raises:
            ValueError: another number of elements, or two axes that cannot merge; the message
                names them, and the two numbers that disagree. Or a -1 that could be any size.

        >>> Layout((2, 4, 3, 2), (24, 2, 8, 1)).view((2, 4, 6))
        Traceback (most recent call last):
        ...
        ValueError: view: axes 2 and 3 cannot merge: stride[2] is 8, but size[3]*stride[3] is 2*1.
        """
        asked, known = tuple(shape), math.prod(size for size in shape if size != -1)
        if asked.count(-1) > 1 or (-1 in asked and known == self.numel == 0):
            raise ValueError(
                f"view: -1 in {asked} could be any size; "
                "only one size may be left open, and no other be 0."
            )
        shape = [self.numel // max(known, 1) if size == -1 else size for size in asked]
        if min(shape, default=0) < 0 or math.prod(shape) != self.numel:
            raise ValueError(
                f"view: {asked} does not have the {self.numel} elements of {self.shape}."
            )
        if self.numel == 0:
            same = tuple(shape) == self.shape
            fresh = Layout.contiguous(shape).strides
            return Layout(tuple(shape), self.strides if same else fresh, self.offset)
        strides: list[int] = []
        todo = list(shape)
        for first, last in self._runs():
            size = math.prod(self.shape[first : last + 1])
            filled = 1
            while todo and (filled < size or todo[-1] == 1):
                strides.insert(0, filled * self.strides[last])
                filled *= todo.pop()
            if filled != size:
                raise ValueError(self._seam(first))
        return Layout(
            tuple(shape), tuple(strides) if self.shape else (1,) * len(shape), self.offset
        )

    def _runs(self) -> list[tuple[int, int]]:
        """The runs of axes that together are evenly spaced, as (first, last), from the last one."""
        runs = []
        last = len(self.shape) - 1
        for axis in reversed(range(len(self.shape))):
            length = math.prod(self.shape[axis : last + 1]) * self.strides[last]
            if axis == 0 or (self.shape[axis - 1] != 1 and self.strides[axis - 1] != length):
                runs.append((axis, last))
                last = axis - 1
        return runs

    def _seam(self, b: int) -> str:
        """Why the axis before `b` does not merge with the next one that is longer than 1."""
        a = b - 1
        while self.shape[b] == 1:
            b += 1
        return (
            f"view: axes {a} and {b} cannot merge: stride[{a}] is {self.strides[a]}, "
            f"but size[{b}]*stride[{b}] is {self.shape[b]}*{self.strides[b]}."
        )
