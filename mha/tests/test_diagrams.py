"""Every box, colour and sum of a stride diagram is what torch reads at that place of memory."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import Tensor

from mha import Layout, trace
from mha.diagrams import GAP, Panel, panels_of, stride_picture
from mha.explore import MergeExplorer, SplitExplorer, StrideDiagram
from mha.picture import BOX, HIGH, Cell, Label, Picture
from mha.steps import Steps

Call = Callable[[Tensor], Tensor]
X = torch.arange(24)  # a value says where in storage it lies
HEADS = [element % 6 // 2 for element in range(24)]
CASES: dict[str, tuple[Tensor, list[Call]]] = {
    "split": (X.view(2, 2, 6), [lambda x: x.view(2, 2, 3, 2), lambda x: x.transpose(1, 2)]),
    "wrong split": (X.view(1, 4, 6), [lambda x: x.view(1, 3, 4, 2)]),
    "merge": (
        X.view(1, 3, 4, 2),
        [lambda x: x.transpose(1, 2), lambda x: x.contiguous(), lambda x: x.view(1, 4, 6)],
    ),
    "two copies": (
        X.view(4, 6),
        [lambda x: x.T, lambda x: x.reshape(2, 12), lambda x: x.mT, lambda x: x.flatten()],
    ),
    "a clone that keeps its strides": (
        X.view(1, 4, 6),
        [lambda x: x.transpose(1, 2), lambda x: x.clone(), lambda x: x.transpose(1, 2)],
    ),
    "parts": (
        X.view(2, 3, 4),
        [lambda x: x[:, 1:], lambda x: x[1], lambda x: x[1], lambda x: x[2]],
    ),
    "repeated": (
        X[:12].clone().view(1, 3, 4),
        [lambda x: x.unsqueeze(1), lambda x: x.expand(1, 2, 3, 4), lambda x: x.clone()],
    ),
    "five axes": (X.view(2, 1, 3, 2, 2), [lambda x: x.permute(2, 0, 1, 4, 3)]),
}


def run(name: str) -> tuple[list[Tensor], Picture]:
    """What torch makes of a case, tensor by tensor, and the diagram of the same."""
    x, calls = CASES[name]
    tensors = [x]
    with trace() as steps:
        for call in calls:
            tensors.append(call(tensors[-1]))
    panels = panels_of("x", x, "abcde"[: x.ndim], steps)
    return tensors, stride_picture(panels, HEADS)


def storage(x: Tensor) -> Tensor:
    """All of the memory under `x`, as it lies."""
    return x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)


def drawn(tensors: list[Tensor], picture: Picture) -> Iterator[tuple[Tensor, list[Cell]]]:
    """Every tensor with its boxes, and before it its storage where that is another one."""
    cells = iter(picture.cells)
    seen = 0
    for x in tensors:
        if x.untyped_storage().data_ptr() != seen:
            seen = x.untyped_storage().data_ptr()
            yield storage(x), list(itertools.islice(cells, storage(x).numel()))
        yield x, list(itertools.islice(cells, x.numel()))
    assert not list(cells)


def arithmetic(picture: Picture) -> list[list[Label]]:
    """The labels that explain an element, panel by panel."""
    found = [label for label in picture.labels if label.element is not None]
    return [list(group) for _, group in itertools.groupby(found, key=lambda label: label.y)]


def ink(picture: Picture) -> list[tuple[str, float, float, float, float]]:
    """Every text with its left, right, top and bottom; of the hidden ones the longest."""
    longest = [max(panel, key=lambda label: len(label.text)) for panel in arithmetic(picture)]
    shown = [label for label in picture.labels if label.element is None]
    shown += [replace(label, element=None) for label in longest]
    figure = replace(picture, cells=[], labels=shown).figure()
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in figure.axes[0].texts]
    high = picture.height
    return [(text, b.x0, b.x1, high - b.y1, high - b.y0) for text, b in boxes if text]


@pytest.mark.parametrize("name", CASES)
def test_boxes_show_what_torch_reads_and_have_the_colour_of_its_head(name: str) -> None:
    for x, cells in drawn(*run(name)):
        assert [cell.element for cell in cells] == x.flatten().tolist()
        assert [cell.head for cell in cells] == [HEADS[i] for i in x.flatten().tolist()]


@pytest.mark.parametrize("name", CASES)
def test_boxes_lie_in_rows_and_columns_with_outer_axes_side_by_side(name: str) -> None:
    for x, cells in drawn(*run(name)):
        blocks = x.reshape(-1, *(1, 1, *x.shape)[-2:])
        rows = blocks.transpose(0, 1).flatten(1).tolist()
        lines = itertools.groupby(sorted(cells, key=lambda c: (c.y, c.x)), key=lambda c: c.y)
        heights = []
        for row, (y, line) in zip(rows, lines, strict=True):
            line_cells = list(line)
            assert [cell.element for cell in line_cells] == row
            steps = [b.x - a.x for a, b in itertools.pairwise(line_cells)]
            wide = blocks.shape[2]
            assert steps == [BOX + GAP * (i % wide == 0) for i in range(1, len(row))]
            heights.append(y)
        assert all(b - a == HIGH for a, b in itertools.pairwise(heights))
    assert GAP > BOX / 4, "blocks are seen to be apart"


@pytest.mark.parametrize("name", CASES)
def test_the_sum_of_every_element_leads_to_its_place_in_storage(name: str) -> None:
    tensors, picture = run(name)
    for x, labels in zip(tensors, arithmetic(picture), strict=True):
        indices = itertools.product(*map(range, x.shape))
        for index, label in zip(indices, labels, strict=True):
            said = re.fullmatch(r"\[([\d, ]*)\]: ([\d*+ ]+) = (\d+)", label.text)
            assert said, label.text
            assert said[1] == ", ".join(map(str, index))
            assert eval(said[2]) == int(said[3]) == x[index].storage_offset()
            assert label.element == x[index] == storage(x)[int(said[3])]


@pytest.mark.parametrize(("name", "tapes"), [("split", 1), ("merge", 2), ("two copies", 3)])
def test_a_copy_gets_a_tape_of_its_own(name: str, tapes: int) -> None:
    tensors, picture = run(name)
    assert [label.text for label in picture.labels].count("storage") == tapes
    assert len({x.untyped_storage().data_ptr() for x in tensors}) == tapes


def test_every_panel_says_its_code_shape_strides_and_memory() -> None:
    x = X.view(1, 4, 6)
    with trace(seq=4, num_heads=3, head_dim=2, d_model=6) as steps:
        x.view(1, 4, 3, 2).transpose(1, 2).transpose(1, 2).flatten(2)
    panels = panels_of("x", x, ("batch", "seq", "d_model"), steps)
    picture = stride_picture(panels, HEADS)
    said = [label.text for label in picture.labels]
    assert "shape (1, 4, 6)   strides (24, 6, 1)   (batch, seq, d_model)" in said
    for step in steps:
        assert step.call in said
        note = f"shape {step.shape}   strides {step.strides}   {step.memory} memory   "
        assert note + f"({', '.join(step.axes)})" in said
        assert f"{step.call}: shape {step.shape}, strides {step.strides}" in picture.alt
    assert picture.alt.startswith("Stride diagram. x: shape (1, 4, 6), strides (24, 6, 1); view(")


NEW: list[Call] = [
    lambda x: x + 1,
    lambda x: x.float(),
    lambda x: x @ x.mT,
    lambda x: x.transpose(1, 2).sum(),
]


@pytest.mark.parametrize("call", NEW)
def test_new_numbers_have_no_place_in_the_storage(call: Call) -> None:
    x = X.view(1, 4, 6)
    with trace() as steps:
        call(x)
    with pytest.raises(ValueError, match="makes new numbers; a stride diagram follows") as caught:
        panels_of("x", x, "abc", steps)
    assert str(caught.value).startswith(steps[-1].call)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.repeat(1, 2, 1), "moves numbers to an order that shape and strides do not"),
        (lambda x: x.flip(1), "flip(1): it moves numbers to an order"),
        (lambda x: torch.cat([x, x]), "it moves numbers to an order"),
        (lambda x: x.repeat_interleave(2, 1), "it moves numbers to an order"),
        (lambda x: x.clone().mul_(2), "mul_(2): it writes new numbers into the storage"),
        (lambda x: x[:0].view(0, 24), "[:0]: it has no elements"),
        (lambda x: X.view(4, 6), "view(4, 6): it starts from another tensor than x"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(call: Call, message: str) -> None:
    x = X.clone().view(1, 4, 6)
    with trace() as steps:
        call(x)
    with pytest.raises(ValueError, match=re.escape(message)):
        panels_of("x", x, "abc", steps)


def test_a_branch_is_drawn_from_what_it_came_from() -> None:
    x = torch.arange(8).view(1, 2, 4)
    with trace() as steps:
        a, _ = x.chunk(2, -1)
        c = a.contiguous()
        x.transpose(1, 2).contiguous()
        d = x.clone()
    panels = {panel.title: panel for panel in panels_of("x", x, "abc", steps)}
    for title, y in (("contiguous() of chunk(2, -1)[0]", c), ("clone() of x", d)):
        panel = panels[title]
        found = [panel.storage[place] for place in panel.layout.elements()]
        assert found == y.flatten().tolist()
        assert [*panel.storage] == storage(y).tolist()


@pytest.mark.parametrize(
    ("x", "num_heads", "message"),
    [
        (torch.arange(12).view(2, 6), 1, "axes must name the 2 axes of x"),
        (torch.tensor(1), 1, "x must have an axis and an element, but its shape is ()"),
        (torch.zeros(1, 0, 6), 1, "but its shape is (1, 0, 6)"),
        (torch.arange(24).view(1, 4, 6), 5, "num_heads must be one of [1, 2, 3, 6]"),
        (torch.arange(24).view(1, 4, 6), 0, "num_heads must be one of [1, 2, 3, 6]"),
    ],
)
def test_what_a_diagram_cannot_start_from_is_named(x: Tensor, num_heads: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        StrideDiagram(x, Steps(), num_heads)


def test_a_step_that_failed_says_why() -> None:
    with trace() as steps, pytest.raises(RuntimeError):
        X.view(1, 4, 3, 2).transpose(1, 2).view(1, 4, 6)
    with pytest.raises(ValueError, match=r"^view\(1, 4, 6\): RuntimeError: view: axes 2 and 3 can"):
        panels_of("x", X, "a", steps)


def test_a_height_that_is_asked_for_is_kept_unless_it_is_too_small() -> None:
    panels = [Panel("x", Layout.contiguous((4, 6)), "ab", range(24))]
    least = stride_picture(panels, HEADS).height
    assert stride_picture(panels, HEADS, height=least + 100).height == least + 100
    assert stride_picture(panels, HEADS, height=1).height == least


def with_long_names() -> Picture:
    x = X.view(2, 2, 6)
    with trace(batch=2, seq=2, num_heads=3, head_dim=2, d_model=6) as steps:
        x.view(2, 2, 3, 2).transpose(1, 2)
    return stride_picture(panels_of("x", x, ("batch", "seq", "d_model"), steps), HEADS)


def merge_that_raises() -> MergeExplorer:
    explorer = MergeExplorer()
    explorer.move(merge="transpose, view")
    return explorer


PICTURES: dict[str, Callable[[], Picture]] = {
    "the first of the lessons": lambda: SplitExplorer().frame.picture,
    "one long row": lambda: SplitExplorer(1, 24, 12).frame.picture,
    "one long column": lambda: SplitExplorer(24, 1, 1).frame.picture,
    "seq = num_heads = head_dim": lambda: SplitExplorer(2, 4, 2).frame.picture,
    "batch = seq = head_dim": with_long_names,
    "a merge": lambda: MergeExplorer().frame.picture,
    "a merge that raises": lambda: merge_that_raises().frame.picture,
    "a split that raises": lambda: (
        SplitExplorer(split=lambda x, n: x.mT.view(1, n, 4, 6 // n)).frame.picture
    ),
    **{name: lambda name=name: run(name)[1] for name in CASES},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_cut_off_and_no_two_texts_overlap(name: str) -> None:
    picture = PICTURES[name]()
    for cell in picture.cells:
        assert 0 <= cell.x <= picture.width - BOX
        assert 0 <= cell.y <= picture.height - HIGH
    places = {(cell.x, cell.y) for cell in picture.cells}
    assert len(places) == len(picture.cells), "two boxes lie on each other"
    texts = ink(picture)
    for text, left, right, top, bottom in texts:
        assert left >= 0, text
        assert right <= picture.width, text
        assert top >= 0, text
        assert bottom <= picture.height, text
    for a, b in itertools.combinations(texts, 2):
        apart = a[1] >= b[2] or b[1] >= a[2] or a[3] >= b[4] or b[3] >= a[4]
        assert apart, (a, b)
