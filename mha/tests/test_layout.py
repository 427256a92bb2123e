"""`Layout` gives the answers that torch gives. Storage holds 0, 1, 2, ..: values are addresses."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mha.layout import Layout

SIZES = st.sampled_from([1, 1, 2, 2, 3, 4, 6])
REASON = re.compile(
    r"view: axes (\d) and (\d) cannot merge: "
    r"stride\[(\d)\] is (\d+), but size\[(\d)\]\*stride\[(\d)\] is (\d+)\*(\d+)\."
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any strides at all, or what a few ordinary operations make of fresh memory."""
    shape = draw(st.lists(SIZES, max_size=4))
    if shape and draw(st.integers(0, 9)) == 0:
        shape[draw(st.integers(0, len(shape) - 1))] = 0
    if draw(st.booleans()):
        strides = [draw(st.sampled_from([0, 1, 2, 3, 4, 6, 12])) for _ in shape]
        storage = torch.arange(5 + 6 * 12 * max(len(shape), 1))
        return storage.as_strided(shape, strides, draw(st.integers(0, 4)))
    x = torch.arange(math.prod(shape)).view(shape)
    for _ in range(draw(st.integers(0, 3)) if shape else 0):
        a, b = (draw(st.integers(0, x.ndim - 1)) for _ in "ab")
        match draw(st.sampled_from(["transpose", "every other", "rest", "unsqueeze", "repeat"])):
            case "transpose":
                x = x.transpose(a, b)
            case "every other":
                x = x[..., ::2]
            case "rest":
                x = x[1:]
            case "unsqueeze":
                x = x.unsqueeze(a)
            case "repeat":
                x = x.narrow(a, 0, min(1, x.shape[a])).expand_as(x)
    return x


@st.composite
def shapes_for(draw: st.DrawFn, x: Tensor) -> tuple[int, ...]:
    """A shape to view `x` in: its axes merged and split, or any factors of its size."""
    if x.numel() == 0:
        return tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4)))
    if draw(st.booleans()):
        shape: list[int] = []
        left = x.numel()
        while left > 1 and len(shape) < 4:
            shape.append(draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
            left //= shape[-1]
        return (*shape, left)
    groups: list[list[int]] = [[]]
    for size in x.shape:
        if draw(st.booleans()):
            groups.append([])
        groups[-1].append(size)
    merged = [math.prod(group) for group in groups if group]
    split = ((2, n // 2) if n % 2 == 0 and draw(st.booleans()) else (n,) for n in merged)
    return tuple(itertools.chain.from_iterable(split))


def torch_says(x: Tensor, method: str, *args: Any) -> Layout | None:
    """The layout that torch gives, None where it refuses, or gives an axis of negative size."""
    try:
        layout = Layout.of(getattr(x, method)(*args))
    except (RuntimeError, IndexError):
        return None
    return layout if min(layout.shape, default=0) >= 0 else None


def layout_says(x: Tensor, method: str, *args: Any) -> Layout | None:
    try:
        answer = getattr(Layout.of(x), method)(*args)
    except (ValueError, IndexError):
        return None
    assert isinstance(answer, Layout)
    return answer


def check_view(x: Tensor, shape: tuple[int, ...]) -> None:
    assert layout_says(x, "view", shape) == torch_says(x, "view", shape), (Layout.of(x), shape)


def check_reason(x: Tensor, shape: tuple[int, ...], message: str) -> None:
    """The message names two axes that torch cannot merge either, and that `shape` merges."""
    found = REASON.fullmatch(message)
    assert found, message
    a, b, also_a, stride_a, also_b, again_b, size_b, stride_b = map(int, found.groups())
    assert (also_a, also_b, again_b) == (a, b, b)
    assert (stride_a, size_b, stride_b) == (x.stride(a), x.shape[b], x.stride(b))
    assert stride_a != size_b * stride_b
    assert a < b
    assert set(x.shape[a + 1 : b]) <= {1}, "between them only axes of size 1"
    ends = [math.prod(shape[axis:]) for axis in range(len(shape))]
    assert math.prod(x.shape[b:]) not in ends, "the new shape has a boundary there: no merge"
    just_these = x[tuple(slice(None) if axis in (a, b) else 0 for axis in range(x.ndim))]
    assert just_these.ndim == 2
    with pytest.raises(RuntimeError, match="not compatible"):
        just_these.view(just_these.numel())


@settings(max_examples=800)
@given(st.data())
def test_view_answers_as_torch_does(data: st.DataObject) -> None:
    x = data.draw(tensors())
    check_view(x, data.draw(shapes_for(x)))
    check_view(x, tuple(x.shape))


@settings(max_examples=800)
@given(st.data())
def test_a_refusal_names_two_axes_that_cannot_merge(data: st.DataObject) -> None:
    x = data.draw(tensors())
    shape = data.draw(shapes_for(x))
    if math.prod(shape) == x.numel():
        try:
            Layout.of(x).view(shape)
        except ValueError as error:
            check_reason(x, shape, str(error))


def test_every_order_of_axes_in_every_shape() -> None:
    """No luck involved: all 24 orders of four axes, one of size 1, under every shape of 24."""
    fits = [n for n in range(1, 25) if 24 % n == 0]
    shapes = [s for k in range(1, 5) for s in itertools.product(fits, repeat=k)]
    shapes = [s for s in shapes if math.prod(s) == 24]
    answers = {True: 0, False: 0}
    for order in itertools.permutations(range(4)):
        x = torch.arange(24).view(2, 3, 1, 4).permute(order)
        for shape in shapes:
            expected = torch_says(x, "view", shape)
            answers[expected is None] += 1
            try:
                assert Layout.of(x).view(shape) == expected
            except ValueError as error:
                assert expected is None
                check_reason(x, shape, str(error))
    assert min(answers.values()) > 500, "the shapes must try both answers"


@settings(max_examples=300)
@given(st.data())
def test_splitting_an_axis_never_fails(data: st.DataObject) -> None:
    x = data.draw(tensors().filter(lambda x: x.ndim > 0 and x.numel() > 0))
    axis = data.draw(st.integers(0, x.ndim - 1))
    size = x.shape[axis]
    part = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    shape = (*x.shape[:axis], part, size // part, *x.shape[axis + 1 :])
    assert Layout.of(x).view(shape) == Layout.of(x.view(shape))


@settings(max_examples=300)
@given(tensors())
def test_elements_are_where_torch_reads_them(x: Tensor) -> None:
    layout = Layout.of(x)
    assert layout.elements() == x.flatten().tolist()
    assert layout.numel == x.numel()
    for index in itertools.product(*map(range, x.shape)):
        assert layout.element(index) == x[index].item()


@settings(max_examples=300)
@given(tensors())
def test_is_contiguous_agrees_with_torch(x: Tensor) -> None:
    assert Layout.of(x).is_contiguous() == x.is_contiguous()


@given(st.lists(st.integers(0, 5), max_size=5))
@example([0, 3])
@example([3, 0])
def test_contiguous_has_the_strides_of_fresh_memory(shape: list[int]) -> None:
    layout = Layout.contiguous(shape)
    assert layout == Layout.of(torch.empty(shape))
    assert layout.is_contiguous()


@settings(max_examples=300)
@given(tensors().filter(lambda x: x.ndim > 0), st.integers(-5, 4), st.integers(-5, 4))
def test_transpose_answers_as_torch_does_with_negative_axes_too(x: Tensor, a: int, b: int) -> None:
    assert layout_says(x, "transpose", a, b) == torch_says(x, "transpose", a, b)


@settings(max_examples=500)
@given(st.data())
def test_expand_answers_as_torch_does(data: st.DataObject) -> None:
    x = data.draw(tensors())
    front = data.draw(st.lists(st.integers(0, 3), max_size=2))
    sizes = [data.draw(st.sampled_from([n, n, n, 3]) if n == 1 else st.just(n)) for n in x.shape]
    if sizes and data.draw(st.integers(0, 9)) == 0:
        sizes[data.draw(st.integers(0, len(sizes) - 1))] = 5
    shape = [*front, *sizes]
    assert layout_says(x, "expand", shape) == torch_says(x, "expand", shape)
    assert layout_says(x, "expand", shape[1:]) == torch_says(x, "expand", shape[1:])


@settings(max_examples=800)
@given(st.data())
def test_any_sizes_at_all_are_taken_or_refused_as_torch_does(data: st.DataObject) -> None:
    """Sizes left open (-1), negative, zero, too many or too few, for `view` and for `expand`."""
    x = data.draw(tensors())
    shape = list(data.draw(st.one_of(shapes_for(x), st.just(tuple(x.shape)))))
    for _ in range(data.draw(st.integers(0, 2))):
        if shape:
            i = data.draw(st.integers(0, len(shape) - 1))
            shape[i] = data.draw(st.sampled_from([-1, -1, -1, -2, 0, 1, 3]))
    shape = shape[data.draw(st.sampled_from([0, 0, 0, 1])) :]
    shape = data.draw(st.sampled_from([[], [], [1], [-1], [3], [0]])) + shape
    check_view(x, tuple(shape))
    assert layout_says(x, "expand", shape) == torch_says(x, "expand", shape), (Layout.of(x), shape)


def test_a_layout_without_axes_has_one_element() -> None:
    x = torch.arange(9)[7]
    layout = Layout.of(x)
    assert layout == Layout((), (), 7)
    assert (layout.numel, layout.elements(), layout.element(())) == (1, [7], 7)
    assert layout.is_contiguous()
    assert layout.view((1, 1)) == Layout.of(x.view(1, 1))
    assert Layout.of(x.view(1, 1)).view(()) == layout


def test_the_merge_of_the_lessons() -> None:
    """Strides of (2, 4, 6) with 3 heads, as a learner meets them."""
    x = Layout.contiguous((2, 4, 6))
    heads = x.view((2, 4, 3, 2)).transpose(1, 2)
    assert heads.strides == (24, 2, 6, 1)
    assert heads.transpose(1, 2).view((2, 4, 6)) == x, "never copied, so it still merges"
    product = Layout.contiguous((2, 3, 4, 2)).transpose(1, 2)
    with pytest.raises(ValueError, match=r"stride\[2\] is 8, but size\[3\]\*stride\[3\] is 2\*1\."):
        product.view((2, 4, 6))
    one_head = Layout.contiguous((2, 1, 4, 6)).transpose(1, 2)
    assert one_head.view((2, 4, 6)).is_contiguous()


def test_a_layout_is_a_value() -> None:
    layout = Layout.contiguous([2, 3])
    assert layout == Layout((2, 3), (3, 1))
    assert len({layout, Layout((2, 3), (3, 1)), Layout((2, 3), (3, 1), 1)}) == 2
    assert layout.view([6]).shape == (6,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.offset = 1  # type: ignore[misc]


X = Layout.contiguous((2, 5, 12))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: Layout((2, 3), (1,)),
            "strides must have one number for each axis of shape (2, 3), but is (1,).",
        ),
        (
            lambda: X.view((2, 5, 13)),
            "view: (2, 5, 13) does not have the 120 elements of (2, 5, 12).",
        ),
        (lambda: X.view(()), "view: () does not have the 120 elements of (2, 5, 12)."),
        (
            lambda: X.view((-10, -12)),
            "view: (-10, -12) does not have the 120 elements of (2, 5, 12).",
        ),
        (lambda: X.view((7, -1)), "view: (7, -1) does not have the 120 elements of (2, 5, 12)."),
        (lambda: X.view((2, -2)), "view: (2, -2) does not have the 120 elements of (2, 5, 12)."),
        (
            lambda: X.view((-1, 5, -1)),
            "view: -1 in (-1, 5, -1) could be any size; "
            "only one size may be left open, and no other be 0.",
        ),
        (
            lambda: X.expand((-1, 2, 5, 12)),
            "expand: (2, 5, 12) cannot become (-1, 2, 5, 12); only axes of size 1 grow.",
        ),
        (
            lambda: X.expand((2, 3, 12)),
            "expand: (2, 5, 12) cannot become (2, 3, 12); only axes of size 1 grow.",
        ),
        (
            lambda: X.expand((5, 12)),
            "expand: (2, 5, 12) cannot become (5, 12); only axes of size 1 grow.",
        ),
        (
            lambda: Layout((1,), (1,)).expand((-2,)),
            "expand: (1,) cannot become (-2,); only axes of size 1 grow.",
        ),
        (lambda: X.transpose(1, 3), "transpose: there is no axis 3 in shape (2, 5, 12)."),
        (lambda: X.transpose(-4, 1), "transpose: there is no axis -4 in shape (2, 5, 12)."),
        (lambda: X.element((0, 5, 0)), "index (0, 5, 0) lies outside shape (2, 5, 12)."),
        (lambda: X.element((0, -1, 0)), "index (0, -1, 0) lies outside shape (2, 5, 12)."),
        (lambda: X.element((0, 1)), "index (0, 1) lies outside shape (2, 5, 12)."),
        (lambda: Layout((), ()).element((0,)), "index (0,) lies outside shape ()."),
    ],
)
def test_an_error_is_a_sentence_with_the_numbers(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, IndexError)) as caught:
        wrong()
    assert str(caught.value) == message
