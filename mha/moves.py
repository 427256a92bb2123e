"""Whether a torch function only moves numbers or computes some, asked of torch itself."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# The operators below all composites that move elements: relabel the values that go in, and the
# same labels come out. Torch marks views and copies of views itself, but not these.
MOVES = {
    "_to_copy", "_unsafe_view", "as_strided_scatter", "cat", "channel_shuffle", "clone", "copy",
    "copy_", "diagonal_scatter", "embedding", "flip", "gather", "index", "index_select",
    "masked_select", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d",
    "repeat", "repeat_interleave", "replication_pad1d", "replication_pad2d", "roll", "rot90",
    "select_scatter", "slice_scatter", "stack", "take", "unfold", "where",
}  # fmt: skip
known: dict[Any, bool] = {}


def tensors(x: Any) -> Iterator[Tensor]:
    """The tensors of arguments or a result, in order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for part in x:
            yield from tensors(part)
    elif isinstance(x, dict):
        yield from tensors(tuple(x.values()))


def moves(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether all that a call runs are operators that allocate, view or move.

    It is asked once for each function and kind of arguments, on tensors without memory, and the
    first operator that computes ends the question; functions that are not torch's are not asked.
    """
    if isinstance(func, types.FunctionType) and not func.__module__.startswith("torch"):
        return False
    key = func, _kind(args), _kind(kwargs)
    if key not in known:
        known[key] = _ask(func, args, kwargs)
    return known[key]


def _kind(x: Any) -> Any:
    """What decides which operators run: not sizes and numbers, but types and options."""
    if isinstance(x, Tensor):
        return x.dtype
    if isinstance(x, dict):
        return tuple((name, _kind(value)) for name, value in x.items())
    if isinstance(x, list | tuple):
        return tuple(dict.fromkeys(map(_kind, x[:8])))
    if isinstance(x, str | bool | torch.dtype | torch.memory_format | torch.device):
        return x
    return type(x)


class _Question(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.data: list[Tensor] = []  # where the numbers came from and went to; the rest is indices
        self.moved = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        touched = any(x is y for x in tensors((args, kwargs)) for y in self.data)
        if touched:
            aliases = [r.alias_info for r in func._schema.returns if r.alias_info]
            views = bool(aliases) and not any(alias.is_write for alias in aliases)
            if torch.Tag.view_copy in func.tags or name in MOVES:
                both = name == "copy_" or name.endswith("scatter")
                moved = args if both else args[1:] if name == "where" else args[:1]
                dtypes = {x.dtype for x in tensors(moved)} | {kwargs.get("dtype")} - {None}
                fills = name == "where" and not all(x.ndim for x in tensors(moved))
                self.moved = views = len(dtypes) == 1 and not fills
            if not views and "empty" not in name:
                self.moved = False
                raise NotImplementedError(f"{name} computes")
        result = func(*args, **kwargs)
        self.data += tensors(result) if touched else ()
        return result


def _ask(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    def empty(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")

    name = getattr(func, "__name__", "")
    question = _Question()
    with _disable_current_modes(), torch.no_grad():
        try:
            args, kwargs = pytree.tree_map(empty, (tuple(args), dict(kwargs)))
            leading = args[1:] if name == "new_tensor" else (*args, *kwargs.values())
            question.data += next(filter(None, ([*tensors(x)] for x in leading)), [])
            question.moved = name in MOVES
            with question:
                func(*args, **kwargs)
        except Exception:  # an operator that computes, or one that needs numbers to know its shape
            pass
    return question.moved
