"""Watch the memory of any PyTorch code: shape, strides and storage after every tensor operation."""

import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from mha.axes import axes_of
from mha.calls import call_of, name_of, reason_of
from mha.moves import moves, tensors
from mha.steps import Step, Steps

VIEW_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag", "data"}


@contextmanager
def trace(**sizes: int) -> Iterator[Steps]:
    """Record every tensor operation inside a `with` block, also of code that you did not write.

    The code runs as it does without it: a fast path of torch stays one call and is one row, and a
    compiled graph stays compiled. No row have the kernels that inductor makes, other threads, the
    backward pass, `x.data = y`, NumPy and DLPack; what they make counts as outside. A generator
    that is suspended inside the block records the code that waits for it.

    Args:
        sizes: names for axes by their sizes, as `batch=2, seq=5`. A tensor from outside is named by
            its sizes, where equal sizes share their names; a result by the axes it came from.

    Yields:
        The steps, which fill as the block runs; after an error, all up to the failing call.

    Raises:
        TypeError: a size is not a whole number.

    >>> x = torch.arange(24).view(1, 4, 6)
    >>> with trace(seq=4, num_heads=3, head_dim=2) as steps:
    ...     heads = x.view(1, 4, 3, 2).transpose(1, 2)
    >>> steps
    call              shape         strides        contiguous  memory  axes
    view(1, 4, 3, 2)  (1, 4, 3, 2)  (24, 6, 2, 1)  yes         same    1 seq num_heads head_dim
    transpose(1, 2)   (1, 3, 4, 2)  (24, 2, 6, 1)  no          same    1 num_heads seq head_dim
    """
    names: dict[str, str] = {}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | torch.SymInt):
            raise TypeError(f"{name} must be a whole number, but is {size!r}; give int({name}).")
        other = names.get(str(size))
        names[str(size)] = f"{other}/{name}" if other else name
    recorder = _Recorder(names)
    with recorder:
        yield recorder.steps


class _Recorder(TorchFunctionMode):
    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self.steps = Steps()
        self.names = names
        self.made: dict[int, tuple[weakref.ref[Tensor], Step]] = {}  # by the id of the tensor
        self.storages: dict[int, StorageWeakRef] = {}  # while one is here, no other gets its place

    def __enter__(self) -> "_Recorder":
        _open_traces(+1)
        torch._C._push_on_torch_function_stack(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the stack of modes, also from below: generators close in any order."""
        above = []
        while torch._C._len_torch_function_stack():
            mode = torch._C._pop_torch_function_stack()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            torch._C._push_on_torch_function_stack(mode)
        _open_traces(-1)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # which leaves nothing of this in its graph
            return func(*args, **kwargs)
        kind = getattr(func, "__name__", "")
        if kind == "__set__" or (kind == "__get__" and name_of(func) not in VIEW_PROPERTIES):
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return _opened(func)(*args, **kwargs)
        before = self._note(self._look, func, args, kwargs) or []
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._note(self._fail, func, args, kwargs, before, error)
            raise
        self._note(self._record, func, args, kwargs, before, result)
        return result

    def _note(self, work: Callable[..., Any], func: Any, *args: Any) -> Any:
        """Do bookkeeping, which no outer trace may see and whose errors may not reach the code."""
        with torch._C.DisableTorchFunction():
            try:
                return work(func, *args)
            except Exception:
                if work != self._look:
                    self.steps.append(Step(f"{name_of(func)}(..)"))

    def _look(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[Tensor, Step, int]]:
        """The tensors that go in, the steps that made them, and how often they were written to."""
        return [(x, self._origin(x), _version(x)) for x in tensors((args, kwargs))]

    def _fail(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        before: list[tuple[Tensor, Step, int]],
        error: Exception,
    ) -> None:
        inputs = tuple(step for _, step, _ in before)
        reason = reason_of(func, args, kwargs, error)
        self.steps.append(Step(call_of(func, args, kwargs), error=reason, inputs=inputs))

    def _record(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        before: list[tuple[Tensor, Step, int]],
        result: Any,
    ) -> None:
        name = name_of(func)
        returned = list(tensors(args[0] if name == "__setitem__" else result))
        if not returned:
            return
        call = call_of(func, args, kwargs)
        inputs = tuple(step for _, step, _ in before)
        for i, x in enumerate(returned):
            storage = self._storage(x)
            owners = [(y, n) for y, step, n in before if storage and step.storage is storage]
            if not _has_memory(x):
                memory = "-"
            elif any(_wrote(name, kwargs, y, n) for y, n in owners):
                memory = "same, written"
            elif owners:
                memory = "same"
            else:
                memory = "copied" if before and moves(func, args, kwargs) else "new"
            text = f"{call}[{i}]" if len(returned) > 1 else call
            step = self._step(text, x, memory, inputs)
            if self.names and step.shape:
                step = replace(step, axes=axes_of(name, args, step, self.names))
            self.made[id(x)] = weakref.ref(x), step
            self.steps.append(step)

    def _origin(self, x: Tensor) -> Step:
        """The step that made `x`, or one for a tensor from outside."""
        ref, step = self.made.get(id(x), (None, None))
        if step is None or ref is None or ref() is not x:
            step = self._step("outside", x)
            if self.names and step.shape:
                step = replace(step, axes=axes_of("outside", (), step, self.names))
            self.made[id(x)] = weakref.ref(x), step
        return step

    def _step(self, call: str, x: Tensor, memory: str = "-", inputs: tuple[Step, ...] = ()) -> Step:
        storage = self._storage(x)
        if x.layout != torch.strided or x.is_nested:
            shape = None if x.layout == torch.strided else tuple(x.shape)
            return Step(call, shape, memory=memory, inputs=inputs, storage=storage)
        shape, strides, offset = tuple(x.shape), tuple(x.stride()), int(x.storage_offset())
        contiguous = x.is_contiguous()
        return Step(
            call, shape, strides, offset, contiguous, memory, inputs=inputs, storage=storage
        )

    def _storage(self, x: Tensor) -> StorageWeakRef | None:
        """What identifies the storage of `x` while the trace or any of its steps is there."""
        try:
            storage = x.untyped_storage()
        except RuntimeError:  # it has none, as inside of vmap
            return None
        if storage._cdata not in self.storages:
            self.storages[storage._cdata] = StorageWeakRef(storage)
        return self.storages[storage._cdata]


def _has_memory(x: Tensor) -> bool:
    """Whether there are numbers in memory of its own, as the meta device has none."""
    try:
        storage = x.untyped_storage()
        strided = x.layout == torch.strided
        return strided and storage.device.type != "meta" and storage.data_ptr() != 0
    except RuntimeError:
        return False


def _version(x: Tensor) -> int:
    """How often torch counted that numbers were written into `x`; in inference it does not."""
    return -1 if x.is_inference() else x._version


def _wrote(name: str, kwargs: Mapping[str, Any], x: Tensor, version: int) -> bool:
    """Whether a call changed the numbers of an input, and not its shape alone as `squeeze_`."""
    if version == -1:
        wrote = name == "__setitem__" or "out" in kwargs or (name[-1] == "_" != name[-2:-1])
    else:
        wrote = _version(x) != version
    return wrote and not _changes_shape(name)


@functools.cache
def _changes_shape(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, key) for key in packet.overloads()] if packet else []
    return any(torch.Tag.inplace_view in overload.tags for overload in overloads)


_plain_has_torch_function = torch.overrides.has_torch_function
_lock, _open = threading.Lock(), [0]


def _open_traces(more: int) -> None:
    """Keep traces out of sight of torch's fast paths, for as long as one is open."""
    with _lock:
        _open[0] += more
        watched = _has_torch_function if _open[0] else _plain_has_torch_function
        torch.overrides.has_torch_function = watched


def _has_torch_function(args: Iterable[Any]) -> bool:
    """Torch's own, but its modules, which ask before they take a fast path, hear of no trace."""
    if torch.compiler.is_dynamo_compiling():
        return any(type(x) not in (Tensor, Parameter, types.NoneType) for x in args)
    if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch.nn.modules."):
        return _plain_has_torch_function(args)
    modes = []
    while torch._C._len_torch_function_stack():
        modes.append(torch._C._pop_torch_function_stack())
    try:
        for mode in reversed(modes):
            if not isinstance(mode, _Recorder):
                torch._C._push_on_torch_function_stack(mode)
        return _plain_has_torch_function(args)
    finally:
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


# While dynamo compiles the code around it, the recorder and what it calls runs as it is written.
_SKIP = torch._C._dynamo.eval_frame._FrameAction.SKIP
torch._C._dynamo.eval_frame.set_code_exec_strategy(
    _Recorder.__torch_function__.__code__,
    torch._C._dynamo.eval_frame._FrameExecStrategy(_SKIP, _SKIP),
)


def _opened(func: Any) -> Any:
    """A copy of a torch function that does not hand itself to the mode as one opaque call."""
    scope = {**func.__globals__, "has_torch_function": lambda _: False}
    copy = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
