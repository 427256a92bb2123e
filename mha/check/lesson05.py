"""The exercises of lesson 05, mask every head."""

import math

import torch
from torch import Tensor

from mha.attention import scaled_dot_product_attention as right_attention
from mha.check.inputs import qkv, random, random_mask, spread
from mha.check.mistakes import (
    ATTENTION,
    CAUSALS,
    MASKS,
    attend_with,
    causal,
    not_boolean,
    one_at_a_time,
    two_at_once,
)
from mha.check.verdict import Exercise

causal_mask = Exercise(
    "causal_mask",
    causal,
    [(3, 3), (2, 5), (1, 4), (5, 5), (3, 4), (1, 1)],
    {
        **CAUSALS,
        "row for each key": lambda seq_q, seq_k: causal(seq_k, seq_k),
        "not boolean": lambda seq_q, seq_k: causal(seq_q, seq_k).float(),
    },
    [
        ("sees the future", lambda seq_q, seq_k: ~causal(seq_q, seq_k, seq_q - seq_k - 1)),
        ("mask reversed", lambda seq_q, seq_k: ~causal(seq_q, seq_k, seq_q - seq_k)),
        *not_boolean(causal, *CAUSALS.values()),
    ],
)


def _padding(lengths: Tensor, seq_q: int, seq_k: int) -> Tensor:
    return (torch.arange(seq_k) < lengths[:, None])[:, None].expand(-1, seq_q, -1)


def _padding_left(lengths: Tensor, seq_q: int, seq_k: int) -> Tensor:
    return _padding(lengths, seq_q, seq_k).flip(-1)


def _pads_both(lengths: Tensor, seq_q: int, seq_k: int) -> Tensor:
    return _padding(lengths, seq_q, seq_k) & _padding(lengths, seq_k, seq_q).mT


padding_mask = Exercise(
    "padding_mask",
    _padding,
    [
        (torch.tensor([1, 3]), 3, 3),
        (torch.tensor([4, 2, 5]), 2, 5),
        (torch.tensor([1, 3, 2]), 2, 5),
        (torch.tensor([3, 9, 1])[::2], 4, 6),
        (torch.tensor([2]), 1, 4),
    ],
    {
        "mask reversed": lambda *args: ~_padding(*args),
        "pads the queries": lambda lengths, seq_q, seq_k: _padding(lengths, seq_k, seq_q).mT,
        "pads queries too": _pads_both,
        "padding on the left": _padding_left,
        "one token too many": lambda lengths, *seq: _padding(lengths + 1, *seq),
        "longest as seq_k": lambda lengths, q, k: _padding(lengths, q, int(lengths.max())),
        "not expanded": lambda lengths, seq_q, seq_k: torch.arange(seq_k) < lengths[:, None],
        "not boolean": lambda *args: _padding(*args).float(),
    },
    [
        ("not expanded", lambda lengths, seq_q, seq_k: _padding(lengths, 1, seq_k)),
        ("not expanded", lambda lengths, seq_q, seq_k: _padding(lengths, 1, seq_k)[:, None]),
        *not_boolean(_padding, lambda *args: ~_padding(*args), _padding_left),
    ],
)
ATTEND = {**ATTENTION, **MASKS}
scaled_dot_product_attention = Exercise(
    "scaled_dot_product_attention",
    right_attention,
    [
        qkv(1, 3, 4),
        (*qkv(1, 3, 4, seed=1), random_mask(1, 3, 3)),
        (*qkv(1, 3, 4), random_mask(1, 3, 3, seed=1)),
        (random(2, 3, 4, 6), *qkv(2, 3, 5, 6)[1:], random_mask(2, 1, 4, 5)),
        (random(2, 3, 4, 6), *qkv(2, 3, 5, 6, seed=1)[1:]),
        (spread(random(3, 1, 4)), *qkv(3, 5, 4)[1:], random_mask(1, 5)),
    ],
    one_at_a_time(attend_with, ATTEND),
    two_at_once(attend_with, ATTEND, masked=True),
)
masked_softmax = Exercise(
    "masked_softmax",
    lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(dim=-1).masked_fill(~mask, 0.0),
    [
        (random(1, 2, 3), torch.tensor([[[True, False, True], [False] * 3]])),
        (random(2, 3, 4, 5), random_mask(2, 1, 4, 5)),
        (random(2, 3, 4, 5, seed=1), random_mask(2, 1, 4, 5, seed=1)),
        (random(2, 3, 4, 5), random_mask(2, 1, 4, 5) & (torch.arange(4)[:, None] != 2)),
        (spread(random(3, 1, 4)), random_mask(4)),
        (random(2, 4, 4).mT, random_mask(4, 4) & (torch.arange(4)[:, None] != 1)),
    ],
    {
        "NaN rows": lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(dim=-1),
        "uniform rows": lambda s, mask: s.masked_fill(~mask, -1e9).softmax(dim=-1),
        "mask after softmax": lambda s, mask: s.softmax(dim=-1) * mask,
        "mask ignored": lambda s, mask: s.softmax(dim=-1),
        "mask added": lambda s, mask: (s + mask).softmax(dim=-1),
        "mask multiplied": lambda s, mask: (s * mask).softmax(dim=-1),
        "mask reversed": lambda s, mask: s.masked_fill(mask, -math.inf).softmax(dim=-1),
        "softmax over queries": lambda s, mask: s.masked_fill(~mask, -1e9).softmax(dim=-2) * mask,
    },
    [
        ("mask reversed", lambda s, mask: s.masked_fill(mask, -math.inf).softmax(-1) * ~mask),
        ("mask reversed", lambda s, mask: s.masked_fill(mask, -1e9).softmax(dim=-1)),
        ("mask reversed", lambda s, mask: s.masked_fill(mask, -math.inf).softmax(-1).nan_to_num()),
        ("softmax over queries", lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(dim=-2)),
        (
            "softmax over queries",
            lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(dim=-2).nan_to_num(),
        ),
    ],
)
