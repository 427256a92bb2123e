"""Watch the memory of any PyTorch code: shape, strides and storage after every tensor operation."""

import html
import itertools
import types
from collections import UserList
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from mha.layout import Layout

# These move values but compute none, so new memory under them means a copy.
LAYOUT_CALLS = {
    "__getitem__", "cat", "clone", "concat", "contiguous", "flatten", "flip", "gather",
    "index_select", "masked_select", "ravel", "repeat", "repeat_interleave", "reshape",
    "reshape_as", "roll", "stack", "take", "tile",
}  # fmt: skip
VIEW_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}
HEADER = ("call", "shape", "strides", "contiguous", "memory")


@dataclass(frozen=True)
class Step:
    """One tensor that one operation returned.

    Args:
        call: the operation as it was written; tensors after the first as their sizes, 2×5×12.
        shape: its shape.
        strides: its strides in elements.
        offset: where in its storage it begins, in elements.
        contiguous: whether its elements lie in storage in the order of their indices.
        memory: "same" as one of the inputs, "copied" by a layout call, or "new" numbers;
            "-" where there is no memory to compare, as on the meta device.
        axes: a name for each axis, as far as the sizes given to `trace` tell them apart.
        error: why the call failed, for the last step of code that raised.
    """

    call: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    contiguous: bool = False
    memory: str = "-"
    axes: tuple[str, ...] = ()
    error: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row of this step: one text a column of the table, or the call and its error."""
        if self.error:
            return self.call, self.error
        contiguous = "yes" if self.contiguous else "no"
        row = (self.call, str(self.shape), str(self.strides), contiguous, self.memory)
        return (*row, " ".join(self.axes)) if self.axes else row


class Steps(UserList[Step]):
    """The steps that `trace` recorded: a list that prints itself as a table."""

    def header(self) -> tuple[str, ...]:
        """The titles of the columns; axes have one only where `trace` was given sizes."""
        return (*HEADER, "axes") if any(step.axes for step in self) else HEADER

    def __repr__(self) -> str:
        rows = [self.header(), *(step.cells() for step in self)]
        full = [row for row in rows if len(row) > 2]
        widths = [max(map(len, column)) for column in itertools.zip_longest(*full, fillvalue="")]
        widths[0] = max(len(row[0]) for row in rows)
        return "\n".join(
            "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        def line(tag: str, row: Sequence[str]) -> str:
            cells = [f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row]
            if len(row) == 2:
                cells[1] = cells[1].replace("<td>", f'<td colspan="{len(self.header()) - 1}">')
            return f"<tr>{''.join(cells)}</tr>"

        head = line("th", self.header())
        body = "\n".join(line("td", step.cells()) for step in self)
        return f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


@contextmanager
def trace(**sizes: int) -> Iterator[Steps]:
    """Record every tensor operation inside a `with` block, also of code that you did not write.

    Args:
        sizes: names for axes by their sizes, as `batch=2, seq=5`. Sizes that are equal cannot tell
            axes apart; such an axis gets both names.

    Yields:
        The steps, which fill as the block runs; after an error, all up to the failing call.

    >>> x = torch.arange(24).view(1, 4, 6)
    >>> with trace(seq=4, num_heads=3, head_dim=2) as steps:
    ...     heads = x.view(1, 4, 3, 2).transpose(1, 2)
    >>> steps
    call              shape         strides        contiguous  memory  axes
    view(1, 4, 3, 2)  (1, 4, 3, 2)  (24, 6, 2, 1)  yes         same    1 seq num_heads head_dim
    transpose(1, 2)   (1, 3, 4, 2)  (24, 2, 6, 1)  no          same    1 num_heads seq head_dim
    """
    recorder = _Recorder(sizes)
    with recorder:
        yield recorder.steps


class _Recorder(TorchFunctionMode):
    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        self.steps = Steps()
        self.names: dict[str, str] = {}  # by the text of a size, as not every size is a plain int
        for name, size in sizes.items():
            other = self.names.get(str(size))
            self.names[str(size)] = f"{other}/{name}" if other else name

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _opened(func)(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # an outer trace must not see this bookkeeping
            before = {_storage(x) for x in pytree.tree_leaves((args, kwargs))} - {None}
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            with torch._C.DisableTorchFunction():
                reason = _reason(func, args, kwargs, error)
                self.steps.append(Step(_call(func, args, kwargs), error=reason))
            raise
        with torch._C.DisableTorchFunction():
            self._record(func, args, kwargs, before, result)
        return result

    def _record(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], before: set[Any], result: Any
    ) -> None:
        name = _name(func)
        if func.__name__ == "__get__" and name not in VIEW_PROPERTIES:
            return
        written = args[0] if name == "__setitem__" else result
        tensors = [x for x in pytree.tree_leaves(written) if isinstance(x, Tensor)]
        for i, x in enumerate(tensors):
            call = _call(func, args, kwargs) + (f"[{i}]" if len(tensors) > 1 else "")
            self.steps.append(self._step(call, name, x, before))

    def _step(self, call: str, name: str, x: Tensor, before: set[Any]) -> Step:
        shape = tuple(x.shape)
        axes = tuple(self.names.get(size, size) for size in map(str, shape)) if self.names else ()
        if x.layout != torch.strided or _storage(x) is None:
            memory = "-"
        elif _storage(x) in before:
            memory = "same"
        else:
            memory = "copied" if name in LAYOUT_CALLS else "new"
        if x.layout != torch.strided:
            return Step(call, shape, axes=axes)
        offset = int(x.storage_offset())
        return Step(call, shape, x.stride(), offset, x.is_contiguous(), memory, axes)


def _storage(x: Any) -> int | None:
    """The address of the storage of `x`, None where it has no memory of its own."""
    if not isinstance(x, Tensor):
        return None
    try:
        storage = x.untyped_storage()
        return None if storage.device.type == "meta" else storage.data_ptr() or None
    except RuntimeError:
        return None


def _name(func: Any) -> str:
    """The name of a torch function, and of the property where it reads one."""
    named = func.__self__ if func.__name__ == "__get__" else func
    return str(getattr(named, "__name__", "property"))


def _call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    name = _name(func)
    if func.__name__ == "__get__":
        return f".{name}"
    method = bool(args) and isinstance(args[0], Tensor)
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return f"[{', '.join(map(_text, index))}]{' =' if name == '__setitem__' else ''}"
    shown = [_text(x) for x in args[method:]]
    shown += [f"{key}={_text(x)}" for key, x in kwargs.items() if x is not None]
    return f"{name.strip('_') if name.startswith('__') else name}({', '.join(shown)})"


def _text(x: Any) -> str:
    """An argument as a reader wants it: tensors as sizes, numbers rounded, slices as written."""
    if isinstance(x, Tensor):
        return "×".join(map(str, x.shape)) or "scalar"
    if isinstance(x, float):
        return f"{x:.4g}"
    if isinstance(x, slice):
        ends = ["" if end is None else str(end) for end in (x.start, x.stop, x.step)]
        return ":".join(ends[:2] if x.step is None else ends)
    if isinstance(x, list | tuple):
        inside = ", ".join(map(_text, x))
        return f"[{inside}]" if isinstance(x, list) else f"({inside})"
    text = "..." if x is ... else getattr(x, "__name__", None) or str(x)
    opaque = isinstance(x, dict) or " at 0x" in text or "\n" in text  # no reader wants an address
    return type(x).__name__ if opaque else text


def _reason(func: Any, args: Sequence[Any], kwargs: dict[str, Any], error: Exception) -> str:
    """Why a call failed; for `view`, the two axes that cannot merge."""
    text = str(error).partition("\n")[0]
    if _name(func) == "view" and "not compatible" in text:
        fresh = torch.empty(args[0].shape, device="meta")  # whose view knows what -1 stands for
        try:
            Layout.of(args[0]).view(fresh.view(*args[1:], **kwargs).shape)
        except ValueError as reason:
            text = str(reason)
    return f"{type(error).__name__}: {text}"


def _opened(func: Any) -> Any:
    """A copy of a torch function that does not hand itself to the mode as one opaque call."""
    scope = {**func.__globals__, "has_torch_function": lambda _: False}
    copy = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
