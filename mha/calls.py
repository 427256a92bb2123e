"""A call of torch as a reader wants it: what was written, without defaults and in few words."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mha.layout import Layout

LONGEST_LIST = 6


def name_of(func: Any) -> str:
    """The name of a torch function, and of the property where it reads one."""
    name = getattr(func, "__name__", type(func).__name__)
    named = func.__self__ if name in ("__get__", "__set__") else func
    return str(getattr(named, "__name__", "property" if named is not func else name))


def call_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The call as it was written, `view(2, 5, 3, 4)`; the tensor it is a method of is left out.

    >>> call_of(torch.Tensor.softmax, (torch.zeros(2, 3),), {"dim": -1, "dtype": None})
    'softmax(dim=-1)'
    """
    name = name_of(func)
    if getattr(func, "__name__", "") == "__get__":
        return f".{name}"
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return f"[{', '.join(map(text_of, index))}]{' =' if name == '__setitem__' else ''}"
    method = bool(args) and isinstance(args[0], Tensor)
    defaults = _defaults(func, len(args), tuple(kwargs))
    names = [*defaults][: len(args)]
    while names and len(names) == len(args) > method and _is_default(names[-1], args[-1], defaults):
        args, names = args[:-1], names[:-1]
    shown = [text_of(x) for x in args[method:]]
    shown += [
        f"{key}={text_of(x)}"
        for key, x in kwargs.items()
        if x is not None and not key.startswith("_") and not _is_default(key, x, defaults)
    ]
    return f"{name.strip('_') if name.startswith('__') else name}({', '.join(shown)})"


def text_of(x: Any) -> str:
    """An argument: tensors as sizes, numbers rounded, slices as written, long lists shortened.

    >>> text_of([torch.zeros(2, 5), 0.12345678, (12,), slice(1, None)])
    '[2×5, 0.1235, (12,), 1:]'
    """
    if isinstance(x, Tensor):
        if x.is_nested and x.layout == torch.strided:
            return "nested"
        return "×".join(map(str, x.shape)) or "scalar"
    if isinstance(x, float):
        return f"{x:.4g}"
    if isinstance(x, slice):
        ends = ["" if end is None else str(end) for end in (x.start, x.stop, x.step)]
        return ":".join(ends[:2] if x.step is None else ends)
    if isinstance(x, list | tuple):
        inside = ", ".join(map(text_of, x[:LONGEST_LIST]))
        if len(x) > LONGEST_LIST:
            inside = f"{', '.join(map(text_of, x[:3]))}, .. {len(x)} in all"
        comma = "," if len(x) == 1 and isinstance(x, tuple) else ""
        return f"[{inside}]" if isinstance(x, list) else f"({inside}{comma})"
    text = "..." if x is ... else getattr(x, "__name__", None) or str(x)
    opaque = isinstance(x, dict) or " at 0x" in text or "\n" in text  # no reader wants an address
    return type(x).__name__ if opaque else text


def reason_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> str:
    """Why a call failed; for `view`, the two axes that cannot merge."""
    text = str(error).partition("\n")[0]
    if name_of(func) == "view" and "not compatible" in text:
        fresh = torch.empty(args[0].shape, device="meta")  # whose view knows what -1 stands for
        try:
            Layout.of(args[0]).view(fresh.view(*args[1:], **kwargs).shape)
        except ValueError as reason:
            text = str(reason)
    return f"{type(error).__name__}: {text}"


def _is_default(name: str, x: Any, defaults: Mapping[str, Any]) -> bool:
    """Whether an argument says nothing new; an axis always does."""
    default = defaults.get(name, inspect.Parameter.empty)
    if isinstance(x, list | tuple) and isinstance(default, list | tuple):
        return list(x) == list(default)
    return name.startswith("_") or (
        "dim" not in name.removeprefix("keepdim") and type(x) is type(default) and x == default
    )


@functools.lru_cache(maxsize=1024)
def _defaults(func: Any, count: int, names: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of a torch function in order, with their defaults where they have one."""
    empty = inspect.Parameter.empty
    try:
        return {p.name: p.default for p in inspect.signature(func).parameters.values()}
    except (TypeError, ValueError):  # a builtin, whose overloads the schemas of torch list
        pass
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name_of(func)}"):
        found = {
            x.name: x.default_value if x.has_default_value() else empty for x in schema.arguments
        }
        if count <= len(found) and {*names} <= {*found}:
            return found
    return {}
