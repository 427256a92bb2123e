"""The mistakes that people make in split, attend, mask and merge, as code."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from mha.attention import merge_heads, split_heads

Answer = Callable[..., Any]
Parts = dict[str, dict[str, Any]]


def attend_with(
    scale: Callable[[Tensor], float] = lambda q: math.sqrt(q.shape[-1]),
    axis: int = -1,
    block: Callable[[Tensor, Tensor], Tensor] = lambda s, mask: s.masked_fill(~mask, -math.inf),
    after: Callable[[Tensor, Tensor], Tensor] = lambda attn_weights, mask: attn_weights,
    enter: Callable[[Tensor], Tensor] = lambda x: x,
    leave: Callable[[Tensor], Tensor] = lambda out: out,
) -> Answer:
    """Single-head attention with some parts replaced."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(enter, (q, k, v))
        scores = q @ k.transpose(-1, -2) / scale(q)
        if mask is None:
            return leave(scores.softmax(axis) @ v)
        return leave(after(block(scores, mask).softmax(axis), mask) @ v)

    return attend


def multi_head_with(
    split: Answer = split_heads,
    merge: Answer = merge_heads,
    heads_axis: Callable[[Tensor], Tensor] = lambda mask: mask.unsqueeze(1),
    **attend: Any,
) -> Answer:
    """Multi-head attention with some parts replaced, its own or those of `attend_with`."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Tensor | None = None
    ) -> Tensor:
        heads = (split(x, num_heads) for x in (q, k, v))
        out_h = attend_with(**attend)(*heads, None if mask is None else heads_axis(mask))
        merged: Tensor = merge(out_h)
        return merged

    return attention


def one_at_a_time(build: Callable[..., Answer], parts: Parts) -> dict[str, Answer]:
    """A wrong answer for each mistake, given as the parts that it replaces."""
    return {name: build(**replaced) for name, replaced in parts.items()}


def two_at_once(build: Callable[..., Answer], parts: Parts) -> list[tuple[str, Answer]]:
    """A wrong answer for each two mistakes in different parts, under the name of the first."""
    return [
        (one, build(**parts[one], **parts[other]))
        for one, other in itertools.combinations(parts, 2)
        if not parts[one].keys() & parts[other].keys()
    ]


def turned(x: Tensor) -> Tensor:
    """Axes 1 and 2 in the other order."""
    return x.transpose(1, 2)


def misread(x: Tensor) -> Tensor:
    """The shape of `turned`, but nothing moved."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3])


def wrong_split(x: Tensor, num_heads: int) -> Tensor:
    """The split without its transpose, straight into the right shape."""
    return x.reshape(x.shape[0], num_heads, x.shape[1], x.shape[2] // num_heads)


def no_transpose(x: Tensor, num_heads: int) -> Tensor:
    """(batch, seq, num_heads, head_dim), and no further."""
    return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads)


def dh_split(x: Tensor, num_heads: int) -> Tensor:
    """A head is every num_heads-th feature."""
    return x.reshape(*x.shape[:2], x.shape[2] // num_heads, num_heads).permute(0, 3, 1, 2)


def dh_merge(x: Tensor) -> Tensor:
    """The heads of a feature side by side, not the features of a head."""
    return x.permute(0, 2, 3, 1).flatten(2)


def wrong_merge(x: Tensor) -> Tensor:
    """The merge without its transpose, straight into the right shape."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def view_raises(x: Tensor) -> Tensor:
    """The merge without the copy between transpose and view."""
    return x.transpose(1, 2).view(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


SPLITS: Mapping[str, Answer] = {
    "wrong split": wrong_split,
    "no transpose": no_transpose,
    "seq and head_dim swapped": lambda x, n: no_transpose(x, n).permute(0, 2, 3, 1),
    "(d h) order": dh_split,
    "heads before batch": lambda x, n: no_transpose(x, n).permute(2, 0, 1, 3),
}
MERGES: Mapping[str, Answer] = {
    "wrong merge": wrong_merge,
    "view raises": view_raises,
    "mean over heads": lambda x: x.mean(dim=1),
    "sum over heads": lambda x: x.sum(dim=1),
    "one head only": lambda x: x[:, 0],
    "(d h) order": dh_merge,
    "seq and head_dim swapped": lambda x: x.permute(0, 3, 1, 2).flatten(2),
    "num_heads and head_dim swapped": lambda x: x.transpose(1, 3).reshape(
        x.shape[0], x.shape[2], x.shape[1] * x.shape[3]
    ),
}
SCALES: Parts = {
    "no scale": {"scale": lambda q: 1.0},
    "scaled twice": {"scale": lambda q: float(q.shape[-1])},
}
HEAD_SCALES: Parts = {
    **SCALES,
    "scale by d_model": {"scale": lambda q: math.sqrt(q.shape[1] * q.shape[-1])},
    "scale by num_heads": {"scale": lambda q: math.sqrt(q.shape[1])},
    "softmax over queries": {"axis": -2},
    "softmax over heads": {"axis": 1},
}
MASKS: Parts = {
    "mask ignored": {"block": lambda s, mask: s},
    "mask added": {"block": lambda s, mask: s + mask},
    "mask multiplied": {"block": lambda s, mask: s * mask},
    "mask after softmax": {"block": lambda s, mask: s, "after": lambda w, mask: w * mask},
    "mask reversed": {"block": lambda s, mask: s.masked_fill(mask, -math.inf)},
}
HEADS: Parts = {
    **HEAD_SCALES,
    "heads attend to heads": {"enter": turned, "leave": turned},
    "one head only": {"leave": lambda out: out[:, :1]},
    "mean over heads": {"leave": lambda out: out.mean(dim=1, keepdim=True)},
}
MULTI_HEADS: Parts = {
    "wrong split": {"split": wrong_split},
    "wrong merge": {"merge": wrong_merge},
    "wrong split and merge": {"split": wrong_split, "merge": wrong_merge},
    "no transpose": {"split": no_transpose, "merge": lambda x: x.flatten(2)},
    "(d h) order": {"split": dh_split, "merge": dh_merge},
    **{
        name: {"merge": MERGES[name]}
        for name in ("view raises", "mean over heads", "sum over heads", "one head only")
    },
    **HEAD_SCALES,
    **MASKS,
    "mask without heads axis": {"heads_axis": lambda mask: mask},
}
