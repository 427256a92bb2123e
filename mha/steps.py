"""What `trace` recorded: steps that know where they came from, and the table that they print."""

from __future__ import annotations

import html
import itertools
from collections import UserList
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

HEADER = ("call", "shape", "strides", "contiguous", "memory")
MOST_ROWS, WIDEST_CALL = 100, 56


@dataclass(frozen=True)
class Step:
    """One tensor that one operation returned.

    Args:
        call: the operation as it was written; tensors after the first as their sizes, 2×5×12, and
            without what stands at its default.
        shape: its shape; None where it has none, as a nested tensor.
        strides: its strides in elements; None where it has none, as a sparse tensor.
        offset: where in its storage it begins, in elements.
        contiguous: whether its elements lie in storage in the order of their indices.
        memory: "same" as one of the inputs, and "same, written" where the call wrote numbers into
            it; "copied" where it only moved them, or "new" numbers; "-" where there is no memory
            to compare, as on the meta device.
        axes: a name for each axis, as far as the sizes given to `trace` and the axes that it came
            from tell.
        error: why the call failed, for the last step of code that raised.
        inputs: where its tensors came from, in the order of the call: earlier steps, or, for
            tensors made outside of the trace, steps whose call is "outside".
        storage: what identifies its memory, without keeping it.
    """

    call: str
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    offset: int = 0
    contiguous: bool = False
    memory: str = "-"
    axes: tuple[str, ...] = ()
    error: str = ""
    inputs: tuple[Step, ...] = field(default=(), repr=False, compare=False)
    storage: Any = field(default=None, repr=False, compare=False)

    def cells(self) -> tuple[str, ...]:
        """The row of this step: one text a column of the table, or the call and its error."""
        call = self.call
        if len(call) > WIDEST_CALL:
            call = f"{call[: WIDEST_CALL - 11]}..{call[-9:]}"
        if self.error:
            return call, self.error
        shape, strides = ("-" if x is None else str(x) for x in (self.shape, self.strides))
        contiguous = "-" if self.strides is None else "yes" if self.contiguous else "no"
        row = (call, shape, strides, contiguous, self.memory)
        return (*row, " ".join(self.axes)) if self.axes else row


class Steps(UserList[Step]):
    """The steps that `trace` recorded: a list that prints itself as a table.

    Of more than 100 steps it prints the first 50 and the last 50.
    """

    def header(self) -> tuple[str, ...]:
        """The titles of the columns; axes have one only where `trace` was given sizes."""
        return (*HEADER, "axes") if any(step.axes for step in self) else HEADER

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of all rows; the steps that are left out are one row of one cell."""
        half = MOST_ROWS // 2
        if len(self) <= MOST_ROWS:
            return [step.cells() for step in self]
        left_out = (f"... {len(self) - 2 * half:,} steps ...",)
        ends = [[step.cells() for step in part] for part in (self[:half], self[-half:])]
        return [*ends[0], left_out, *ends[1]]

    def __repr__(self) -> str:
        rows = [self.header(), *self.rows()]
        full = [row for row in rows if len(row) > 2]
        widths = [max(map(len, column)) for column in itertools.zip_longest(*full, fillvalue="")]
        widths[0] = max(len(row[0]) for row in rows)
        return "\n".join(
            "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        header = self.header()

        def line(tag: str, row: Sequence[str]) -> str:
            cells = [f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row]
            if len(row) < len(HEADER):  # an error, or the steps left out, takes the rest of the row
                span = f'<{tag} colspan="{len(header) - len(row) + 1}">'
                cells[-1] = cells[-1].replace(f"<{tag}>", span)
            return f"<tr>{''.join(cells)}</tr>"

        head = line("th", header)
        body = "\n".join(line("td", row) for row in self.rows())
        return f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"
