"""Stride diagrams: the storage as a tape, and every view of it, coloured by head."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mha import style
from mha.layout import Layout
from mha.picture import BOX, HIGH, Cell, Label, Picture, fitting
from mha.steps import Step

WIDTH, LEFT, GAP = 760, 86, 12
# Copies that leave the elements in the order of their indices.
ORDER_KEEPING = {"clone", "contiguous", "flatten", "ravel", "reshape", "reshape_as", "to"}
REFUSALS = {
    "copied": "it moves numbers to an order that shape and strides do not tell; a stride diagram "
    f"follows views, and copies by {', '.join(sorted(ORDER_KEEPING))}.",
    "same, written": "it writes new numbers into the storage; a stride diagram follows old ones.",
    "new": "it makes new numbers; a stride diagram follows old ones.",
}


@dataclass(frozen=True)
class Panel:
    """One tensor of a diagram.

    Args:
        title: the code that made it.
        layout: its shape, strides and offset.
        axes: a name for each axis.
        storage: the element that lies at each place of its storage.
        memory: "same" or "copied", as `trace` says it.
    """

    title: str
    layout: Layout
    axes: Sequence[str]
    storage: Sequence[int]
    memory: str = ""


def stride_picture(panels: Sequence[Panel], heads: Sequence[int], height: float = 0) -> Picture:
    """Draw each storage as a tape, followed by the tensors that view it.

    Args:
        panels: the tensors, in the order in which the code makes them.
        heads: the head that each element belongs to, which gives it its colour.
        height: the least height, so that pictures of different sizes do not make a page jump.

    Returns:
        The picture; pointing at an element lights it in every panel and shows how its index and
        the strides lead to its place in storage.
    """
    cells: list[Cell] = []
    labels: list[Label] = []
    y = 0.0
    tape: Sequence[int] = ()
    for panel in panels:
        if panel.storage is not tape:
            labels.append(Label(8, y + 20, "storage", bold=True))
            name = "as it lies in memory, one number beside the next"
            labels.append(Label(LEFT, y + 20, name, colour=style.QUIET))
            tape = panel.storage
            cells += [
                Cell(LEFT + BOX * place, y + 28, element, heads[element])
                for place, element in enumerate(tape)
            ]
            y += 28 + HIGH + 8
        y = _draw(panel, y, heads, cells, labels)
    alt = "; ".join(
        f"{p.title}: shape {p.layout.shape}, strides {p.layout.strides}" for p in panels
    )
    width = max(WIDTH, *(cell.x + BOX + 8 for cell in cells))
    return Picture(width, max(y + 6, height), f"Stride diagram. {alt}.", cells=cells, labels=labels)


def _draw(
    panel: Panel, y: float, heads: Sequence[int], cells: list[Cell], labels: list[Label]
) -> float:
    """Add one panel below `y`, and return where the next one begins."""
    layout, strides = panel.layout, panel.layout.strides
    *outer, rows, columns = (1, 1, *layout.shape)[-max(len(layout.shape), 2) :]
    labels.append(Label(8, y + 18, panel.title, 13, bold=True))
    memory = panel.memory and f"   {panel.memory} memory"
    note = f"shape {layout.shape}   strides {strides}{memory}   ({', '.join(panel.axes)})"
    labels.append(Label(8, y + 35, note, fitting(note, WIDTH - 16), colour=style.QUIET))
    top = y + (62 if max(outer, default=1) > 1 else 44)
    for block, index in enumerate(itertools.product(*map(range, outer))):
        left = LEFT + block * (columns * BOX + GAP)
        if max(outer, default=1) > 1:
            text = ", ".join(str(i) for i, size in zip(index, outer, strict=True) if size > 1)
            labels.append(Label(left + columns * BOX / 2, top - 6, text, 11, "middle", style.QUIET))
        for row, column in itertools.product(range(rows), range(columns)):
            place = (*index, row, column)[len(outer) + 2 - len(layout.shape) :]
            element = panel.storage[layout.element(place)]
            cells.append(Cell(left + column * BOX, top + row * HIGH, element, heads[element]))
            terms = [str(layout.offset)] if layout.offset else []
            terms += [f"{i}*{s}" for i, s in zip(place, strides, strict=True)]
            text = f"{list(place)}: {' + '.join(terms)} = {layout.element(place)}"
            labels.append(Label(WIDTH - 8, y + 18, text, 12, "end", element=element))
    blocks = [n for n, size in zip(panel.axes[:-2], outer, strict=True) if size > 1]
    for low, name in ((-6, " ".join(blocks)), (15, "".join(panel.axes[-2:-1]))):
        size = fitting(name, LEFT - 8, 11)
        labels.append(Label(LEFT - 8, top + low, name, size, "end", style.QUIET))
    return top + rows * HIGH + 8


def panels_of(title: str, start: Tensor, axes: Sequence[str], steps: Iterable[Step]) -> list[Panel]:
    """The panels of a trace, for as long as its calls only view or copy what it started from.

    Args:
        title: the name of the first tensor.
        start: the first tensor; it fills its storage, whose elements are numbered from 0.
        axes: a name for each of its axes.
        steps: what `trace` recorded; each on `start` or on the result of any step among them.

    Returns:
        One panel for `start` and one for each step, which says what it was made of where that is
        not the panel above it.

    Raises:
        ValueError: `axes` does not fit, or a step fails, starts from another tensor, or puts
            numbers where shape and strides do not tell.
    """
    if len(axes) != start.ndim:
        raise ValueError(
            f"axes must name the {start.ndim} axes of {title}, whose shape is "
            f"{tuple(start.shape)}, but is {tuple(axes)}."
        )
    panels = [Panel(title, Layout.of(start), axes, range(start.numel()))]
    memory = start.untyped_storage()
    tapes: dict[int, Sequence[int]] = {memory._cdata: panels[0].storage}
    made: dict[int, Panel] = {}
    for step in steps:
        source = step.inputs[0] if step.inputs else step
        parent = made.get(id(source))
        tape = tapes.get(source.storage.cdata) if source.storage else None
        if step.error:
            raise ValueError(f"{step.call}: {step.error}")
        if tape is None:
            raise ValueError(f"{step.call}: it starts from another tensor than {title}.")
        layout = Layout(step.shape or (), step.strides or (), step.offset)
        if not layout.numel:
            raise ValueError(f"{step.call}: it has no elements that could be drawn.")
        if step.memory == "copied" and step.call.split("(")[0] in ORDER_KEEPING:
            before = Layout(source.shape or (), source.strides or (), source.offset)
            moved = zip(layout.elements(), before.elements(), strict=True)
            tape = [tape[place] for _, place in sorted(moved)]
            tapes[step.storage.cdata] = tape
        elif step.memory != "same":
            raise ValueError(f"{step.call}: {REFUSALS.get(step.memory, REFUSALS['new'])}")
        if (
            parent is None
            and Layout(source.shape or (), source.strides or (), source.offset) == panels[0].layout
        ):
            parent = panels[0]
        name = (
            step.call
            if parent is panels[-1]
            else f"{step.call} of {parent.title if parent else source.call}"
        )
        panel = Panel(name, layout, step.axes or tuple(map(str, layout.shape)), tape, step.memory)
        made[id(step)] = panel
        panels.append(panel)
    return panels
