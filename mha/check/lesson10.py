"""The exercises of lesson 10, spot the pattern."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from mha.attention import merge_heads, split_heads
from mha.check.inputs import qkv, random, random_mask, spread
from mha.check.mistakes import (
    ATTENTION,
    CAUSAL_HEADS,
    CAUSALS,
    EMPTY_ROWS,
    HEAD_ATTENTION,
    Answer,
    attend_with,
    causal,
    misread,
    multi_head_with,
    not_boolean,
    one_at_a_time,
    turned,
    two_at_once,
    two_wrong_splits,
)
from mha.check.verdict import Exercise


def _causal_with(align: Callable[[int, int], Tensor] = causal, **parts: Any) -> Answer:
    """Multi-head attention under the mask that `align` makes."""

    def attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
        mask = align(q.shape[1], k.shape[1]).expand(len(q), -1, -1)
        out: Tensor = multi_head_with(**parts)(q, k, v, num_heads, mask)
        return out

    return attention


def _fused_with(**parts: Any) -> Answer:
    """The same on a fused projection (batch, seq, 3 * d_model)."""
    return lambda qkv, num_heads: _causal_with(**parts)(*qkv.chunk(3, dim=-1), num_heads)


def _split_then_chunk(qkv: Tensor, num_heads: int) -> Tensor:
    qh, kh, vh = split_heads(qkv, num_heads).chunk(3, dim=-1)
    return merge_heads(attend_with()(qh, kh, vh, causal(qkv.shape[1], qkv.shape[1])))


# Each wrong mask, three times: by what becomes of the rows that it empties.
MISALIGNED = {
    name: [{"align": align, **rows} for rows in EMPTY_ROWS] for name, align in CAUSALS.items()
}
# Where seq_q is seq_k the corners agree.
SQUARE = ("strictly causal", "sees the next token", "sees the future")
CORNERS = (*SQUARE, "upper-left", "diagonal the wrong way")
fused_qkv = Exercise(
    "fused_qkv",
    _fused_with(),
    [
        (random(1, 3, 12), 2),
        (random(2, 5, 36), 3),
        (random(2, 5, 36, seed=1), 3),
        (spread(random(3, 1, 30)), 5),
        (random(2, 4, 6), 1),
    ],
    {
        "split, then chunk": _split_then_chunk,
        **one_at_a_time(_fused_with, CAUSAL_HEADS),
        **one_at_a_time(_fused_with, {name: MISALIGNED[name][0] for name in SQUARE}),
    },
    [
        (name, _fused_with(**parts))
        for name in (*SQUARE, "mask reversed")
        for parts in MISALIGNED[name]
    ]
    + two_wrong_splits(_fused_with),
)


def _grouped_with(
    grow: Callable[[Tensor, int], Tensor] = lambda x, groups: x.repeat_interleave(groups, dim=1),
    **parts: Any,
) -> Answer:
    def attention(qh: Tensor, kh: Tensor, vh: Tensor) -> Tensor:
        groups = qh.shape[1] // kh.shape[1]
        out: Tensor = attend_with(**parts)(qh, grow(kh, groups), grow(vh, groups))
        return out

    return attention


GROWS = {
    "repeat for repeat_interleave": lambda x, groups: x.repeat(1, groups, 1, 1),
    "one head only": lambda x, groups: x[:, :1],
    "mean over heads": lambda x, groups: x.mean(dim=1, keepdim=True),
    "keys do not broadcast": lambda x, groups: x,
}
GROUPED = {
    **{name: {"grow": grow} for name, grow in GROWS.items()},
    **HEAD_ATTENTION,
    "heads attend to heads": {"enter": turned, "leave": turned},
}
grouped_query_attention = Exercise(
    "grouped_query_attention",
    _grouped_with(),
    [
        (random(1, 4, 5, 3), *qkv(1, 2, 5, 3)[1:]),
        (random(2, 6, 5, 3), *qkv(2, 2, 5, 3)[1:]),
        (random(2, 6, 5, 3, seed=1), *qkv(2, 2, 5, 3, seed=1)[1:]),
        (spread(random(2, 6, 5, 4)), *map(spread, qkv(2, 3, 5, 4)[1:])),
        (random(2, 4, 5, 3), *qkv(2, 1, 5, 3)[1:]),
        (random(3, 4, 1, 5), *qkv(3, 2, 1, 5)[1:]),
    ],
    one_at_a_time(_grouped_with, GROUPED),
    two_at_once(_grouped_with, GROUPED),
)
heads_last = Exercise(
    "heads_last",
    attend_with(enter=turned, leave=turned),
    [
        qkv(1, 3, 2, 4),
        qkv(2, 5, 3, 4),
        qkv(2, 5, 3, 4, seed=1),
        qkv(2, 3, 3, 4),
        tuple(turned(x) for x in qkv(3, 4, 5, 1)),
        qkv(3, 1, 2, 4),
    ],
    {
        "heads attend to heads": attend_with(),
        "not transposed back": attend_with(enter=turned),
        "wrong merge": attend_with(enter=turned, leave=misread),
        "wrong split": attend_with(enter=misread, leave=turned),
        "wrong split and merge": attend_with(enter=misread, leave=misread),
        "num_heads ignored": lambda q, k, v: attend_with()(
            q.flatten(2), k.flatten(2), v.flatten(2)
        ).view(q.shape),
        **one_at_a_time(partial(attend_with, enter=turned, leave=turned), HEAD_ATTENTION),
    },
)
per_head_masks = Exercise(
    "per_head_masks",
    lambda mask, num_heads: mask.repeat_interleave(num_heads, dim=0),
    [
        (random_mask(2, 2, 3), 3),
        (random_mask(3, 4, 5), 2),
        (random_mask(3, 4, 5, seed=1), 2),
        (random_mask(3, 3, 3), 3),
        (random_mask(2, 5, 4).mT, 1),
        (random_mask(1, 1, 4), 5),
    ],
    {
        "repeat for repeat_interleave": lambda mask, n: mask.repeat(n, 1, 1),
        "not folded": lambda mask, n: mask.unsqueeze(1).expand(-1, n, -1, -1),
        "mask reversed": lambda mask, n: ~mask.repeat_interleave(n, dim=0),
        "repeats each row": lambda mask, n: mask.repeat_interleave(n, dim=1),
        "heads forgotten": lambda mask, n: mask,
        "not boolean": lambda mask, n: mask.repeat_interleave(n, dim=0).float(),
    },
    [
        ("not folded", lambda mask, n: mask.unsqueeze(1)),
        (
            "repeats each row",
            lambda mask, n: mask.repeat_interleave(n, 1).view(-1, *mask.shape[1:]),
        ),
        *not_boolean(
            lambda mask, n: mask.repeat_interleave(n, dim=0),
            lambda mask, n: ~mask.repeat_interleave(n, dim=0),
            lambda mask, n: mask.repeat(n, 1, 1),
        ),
    ],
)


def _rows_with(
    fold: Answer = lambda x: x.flatten(0, 1),
    unfold: Answer = lambda out, shape: out.reshape(shape),
    **parts: Any,
) -> Answer:
    def attention(x: Tensor) -> Tensor:
        rows = fold(x)
        out: Tensor = unfold(attend_with(**parts)(rows, rows, rows), x.shape)
        return out

    return attention


attend_along_rows = Exercise(
    "attend_along_rows",
    _rows_with(),
    [
        (random(1, 2, 3, 4),),
        (random(2, 3, 5, 4),),
        (random(2, 3, 5, 4, seed=1),),
        (random(2, 3, 3, 4),),
        (spread(random(3, 4, 1, 5)),),
        (spread(random(1, 1, 4, 5)),),
    ],
    {
        "columns attend": lambda x: turned(_rows_with()(turned(x))),
        "all pixels attend": _rows_with(lambda x: x.flatten(1, 2)),
        "wrong split": _rows_with(lambda x: x.reshape(-1, x.shape[1], x.shape[3])),
        "not unfolded": _rows_with(unfold=lambda out, shape: out),
        "features attend": lambda x: _rows_with()(x.mT).mT,
        **one_at_a_time(
            _rows_with,
            {name: parts for name, parts in ATTENTION.items() if "given" not in parts},
        ),
    },
)
decode = Exercise(
    "decode",
    _causal_with(),
    [
        (random(1, 1, 4), *qkv(1, 4, 4)[1:], 2),
        (random(2, 3, 12), *qkv(2, 5, 12)[1:], 3),
        (random(2, 3, 12, seed=1), *qkv(2, 5, 12, seed=1)[1:], 3),
        (random(2, 4, 6), *qkv(2, 4, 6)[1:], 2),
        (random(3, 2, 10), *map(spread, qkv(3, 7, 10)[1:]), 5),
    ],
    {
        **one_at_a_time(_causal_with, CAUSAL_HEADS),
        **one_at_a_time(_causal_with, {name: MISALIGNED[name][0] for name in CORNERS}),
    },
    [
        (name, _causal_with(**parts))
        for name in (*CORNERS, "mask reversed")
        for parts in MISALIGNED[name]
    ]
    + two_wrong_splits(_causal_with),
)
