"""The mistakes that people make in split, attend, mask and merge, as code."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mha.attention import merge_heads, split_heads

Answer = Callable[..., Any]
Parts = dict[str, dict[str, Any]]


def causal(seq_q: int, seq_k: int, shift: int = 0) -> Tensor:
    """(seq_q, seq_k), the queries last; each sees `shift` tokens more than it should."""
    return torch.ones(seq_q, seq_k, dtype=torch.bool).tril(seq_k - seq_q + shift)


def attend_with(
    given: Callable[..., Sequence[Tensor]] = lambda q, k, v: (q, k, v),
    enter: Callable[[Tensor], Tensor] = lambda x: x,
    scale: Callable[[Tensor, Tensor], float] = lambda q, k: math.sqrt(q.shape[-1]),
    always: Callable[[Tensor], Tensor] = lambda s: s,
    block: Callable[[Tensor, Tensor], Tensor] = lambda s, mask: _minus_inf(s, mask),
    normalize: Callable[[Tensor], Tensor] = lambda s: s.softmax(dim=-1),
    after: Callable[[Tensor, Tensor], Tensor] = lambda attn_weights, mask: attn_weights,
    leave: Callable[[Tensor], Tensor] = lambda out: out,
) -> Answer:
    """Single-head attention with some parts replaced."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = map(enter, given(q, k, v))
        scores = always(q @ k.transpose(-1, -2) / scale(q, k))
        if mask is None:
            return leave(normalize(scores) @ v)
        return leave(after(normalize(block(scores, mask)), mask) @ v)

    return attend


def multi_head_with(
    split: Answer | Sequence[Answer] = split_heads,
    merge: Answer = merge_heads,
    heads_axis: Callable[[Tensor, int], Tensor] = lambda mask, num_heads: mask.unsqueeze(1),
    **attend: Any,
) -> Answer:
    """Multi-head attention with some parts replaced, its own or those of `attend_with`.

    `split` is one for all, or one each for q, k and v.
    """
    splits = [split] * 3 if callable(split) else split

    def attention(
        q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Tensor | None = None
    ) -> Tensor:
        heads = [cut(x, num_heads) for cut, x in zip(splits, (q, k, v), strict=True)]
        mask = None if mask is None else heads_axis(mask, num_heads)
        merged: Tensor = merge(attend_with(**attend)(*heads, mask))
        return merged

    return attention


def one_at_a_time(build: Callable[..., Answer], parts: Parts) -> dict[str, Answer]:
    """A wrong answer for each mistake, given as the parts that it replaces."""
    return {name: build(**replaced) for name, replaced in parts.items()}


def two_at_once(
    build: Callable[..., Answer], parts: Parts, masked: bool = False
) -> list[tuple[str, Answer]]:
    """A wrong answer for each two common mistakes in different parts, named by the first.

    Where there may be a mask, each softmax over another axis comes twice: a column of the scores
    that is all -inf gives NaN, one of -1e9 does not.
    """
    pairs = [
        (one, {**parts[one], **parts[other]})
        for one, other in itertools.combinations([x for x in parts if x not in RARE], 2)
        if not parts[one].keys() & parts[other].keys()
    ]
    if masked:
        over = [(name, x) for name, x in [*parts.items(), *pairs] if "normalize" in x]
        pairs += [(name, {**x, "block": _finite(x.get("block", _minus_inf))}) for name, x in over]
    return [(name, build(**replaced)) for name, replaced in pairs]


def _minus_inf(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf)


def _finite(block: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, mask: block(scores, mask).clamp(min=-1e9)


def two_wrong_splits(build: Callable[..., Answer]) -> list[tuple[str, Answer]]:
    """Two of q, k and v split wrongly, and one as it should be."""
    splits = [[split_heads if i == j else wrong_split for i in range(3)] for j in range(3)]
    return [("wrong split", build(split=split)) for split in splits]


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


def one_wide_head(x: Tensor, num_heads: int) -> Tensor:
    """A heads axis, but a single head on it."""
    return x.unsqueeze(1)


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
    "num_heads and head_dim swapped": lambda x, n: turned(no_transpose(x, x.shape[2] // n)),
    "num_heads ignored": one_wide_head,
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
    "not merged": turned,
}
SCALES: Parts = {
    "no scale": {"scale": lambda q, k: 1.0},
    "scaled twice": {"scale": lambda q, k: float(q.shape[-1])},
    "scale multiplied": {"scale": lambda q, k: q.shape[-1] ** -0.5},
    "scale by seq": {"scale": lambda q, k: math.sqrt(k.shape[-2])},
}
SOFTMAX: Parts = {
    "softmax over queries": {"normalize": lambda s: s.softmax(dim=-2)},
    "no softmax": {"normalize": lambda s: s},
}
ORDERS: Parts = {
    "k and v swapped": {"given": lambda q, k, v: (q, v, k)},
    "q and k swapped": {"given": lambda q, k, v: (k, q, v)},
    "q and v swapped": {"given": lambda q, k, v: (v, k, q)},
    "v forgotten": {"given": lambda q, k, v: (q, k, k)},
}
# What can go wrong without heads and without a mask.
ATTENTION: Parts = {
    **SCALES,
    **SOFTMAX,
    **ORDERS,
    "always causal": {
        "always": lambda s: s.masked_fill(~causal(s.shape[-2], s.shape[-1]), -math.inf)
    },
}
HEAD_ATTENTION: Parts = {
    **ATTENTION,
    "scale by d_model": {"scale": lambda q, k: math.sqrt(q.shape[1] * q.shape[-1])},
    "scale by num_heads": {"scale": lambda q, k: math.sqrt(q.shape[1])},
    "softmax over heads": {"normalize": lambda s: s.softmax(dim=1)},
}
MASKS: Parts = {
    "mask ignored": {"block": lambda s, mask: s},
    "mask added": {"block": lambda s, mask: s + mask},
    "mask multiplied": {"block": lambda s, mask: s * mask},
    "mask after softmax": {"block": lambda s, mask: s, "after": lambda w, mask: w * mask},
    "mask reversed": {"block": lambda s, mask: s.masked_fill(mask, -math.inf)},
}
# Alone they have a name; two at once cost each first failing check the time to run them.
RARE = {
    *("no softmax", "scale multiplied", "scale by seq", "first mask for all", *ORDERS),
    *("repeat for repeat_interleave", *(f"wrong split of {x}" for x in "qkv")),
}
HEADS: Parts = {
    **HEAD_ATTENTION,
    "heads attend to heads": {"enter": turned, "leave": turned},
    "one head only": {"leave": lambda out: out[:, :1]},
    "mean over heads": {"leave": lambda out: out.mean(dim=1, keepdim=True)},
}
# Those that show whatever the mask is.
CAUSAL_HEADS: Parts = {
    "wrong split": {"split": wrong_split},
    "wrong merge": {"merge": wrong_merge},
    "wrong split and merge": {"split": wrong_split, "merge": wrong_merge},
    "wrong split of q": {"split": (wrong_split, split_heads, split_heads)},
    "wrong split of k": {"split": (split_heads, wrong_split, split_heads)},
    "wrong split of v": {"split": (split_heads, split_heads, wrong_split)},
    "no transpose": {"split": no_transpose, "merge": lambda x: x.flatten(2)},
    "(d h) order": {"split": dh_split, "merge": dh_merge},
    "num_heads ignored": {"split": one_wide_head},
    **{
        name: {"merge": MERGES[name]}
        for name in ("view raises", "mean over heads", "sum over heads", "one head only")
    },
    **{name: parts for name, parts in HEAD_ATTENTION.items() if name != "always causal"},
    **MASKS,
}
MULTI_HEADS: Parts = {
    **CAUSAL_HEADS,
    "always causal": ATTENTION["always causal"],
    "mask without heads axis": {"heads_axis": lambda mask, num_heads: mask},
    "repeat for repeat_interleave": {
        "heads_axis": lambda mask, num_heads: mask.repeat(num_heads, 1, 1).unflatten(
            0, (len(mask), num_heads)
        )
    },
    "first mask for all": {"heads_axis": lambda mask, num_heads: mask[:1].unsqueeze(1)},
}
CAUSALS: Mapping[str, Callable[[int, int], Tensor]] = {
    "upper-left": lambda seq_q, seq_k: causal(seq_q, seq_k, seq_q - seq_k),
    "strictly causal": lambda seq_q, seq_k: causal(seq_q, seq_k, -1),
    "sees the next token": lambda seq_q, seq_k: causal(seq_q, seq_k, 1),
    "diagonal the wrong way": lambda seq_q, seq_k: causal(seq_q, seq_k, 2 * (seq_q - seq_k)),
    "sees the future": lambda seq_q, seq_k: ~causal(seq_q, seq_k, -1),
    "mask reversed": lambda seq_q, seq_k: ~causal(seq_q, seq_k),
}
# A row that may attend to nothing becomes zeros, NaN, or a plain mean.
EMPTY_ROWS: Sequence[dict[str, Any]] = (
    {"after": lambda w, mask: w.masked_fill(~mask, 0.0)},
    {},
    {"block": lambda s, mask: s.masked_fill(~mask, -1e9)},
)


def not_boolean(*masks: Answer) -> list[tuple[str, Answer]]:
    """Such a mask as numbers: 0 and 1, or what is added to the scores."""
    lows = (-math.inf, -1e9, torch.finfo(torch.float32).min)
    kinds: list[Callable[[Tensor], Tensor]] = [
        *(lambda m, dtype=dtype: m.to(dtype) for dtype in (torch.int, torch.long, torch.float)),
        *(lambda m, low=low: torch.zeros(m.shape).masked_fill(~m, low) for low in lows),
    ]
    return [
        ("not boolean", lambda *args, kind=kind, mask=mask: kind(mask(*args)))
        for mask in masks
        for kind in kinds
    ]
