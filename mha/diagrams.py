"""Stride diagrams: the storage as a tape, and every view of it, coloured by head."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mha import style
from mha.layout import Layout
from mha.picture import BOX, HIGH, Cell, Label, Picture, fitting
from mha.trace import Step

WIDTH, LEFT, GAP = 760, 86, 12
ORDER_KEEPING = {"clone", "contiguous", "flatten", "reshape"}


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


def panels_of(title: str, start: Layout, axes: Sequence[str], steps: Iterable[Step]) -> list[Panel]:
    """The panels of a trace, for as long as its calls only view or copy what it started from.

    Args:
        title: the name of the first tensor.
        start: its layout; it fills its storage, whose elements are numbered from 0.
        axes: a name for each of its axes.
        steps: what `trace` recorded, each call on the result of the one before.

    Returns:
        One panel for `start` and one for each step.

    Raises:
        ValueError: a step fails, or computes new numbers, which have no place in the storage.
    """
    panels = [Panel(title, start, axes, range(start.numel))]
    for step in steps:
        before = panels[-1]
        layout, storage = Layout(step.shape, step.strides, step.offset), before.storage
        if step.memory == "copied" and step.call.split("(")[0] in ORDER_KEEPING:
            moved = zip(layout.elements(), before.layout.elements(), strict=True)
            storage = [before.storage[place] for _, place in sorted(moved)]
        elif step.memory != "same":
            reason = step.error or "it makes new numbers; a stride diagram follows old ones."
            raise ValueError(f"{step.call}: {reason}")
        panels.append(
            Panel(step.call, layout, step.axes or tuple(map(str, step.shape)), storage, step.memory)
        )
    return panels
