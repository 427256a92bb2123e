"""The exercises of lesson 08, what heads learn."""

from collections.abc import Callable

import torch
from torch import Tensor

from mha.check.inputs import random, weights
from mha.check.verdict import Exercise

previous_token = Exercise(
    "previous_token",
    lambda w: w.diagonal(-1, -2, -1).mean(dim=-1),
    [
        (weights(2, 3, 3),),
        (weights(3, 5, 5),),
        (weights(3, 5, 5, seed=1),),
        (weights(1, 2, 2),),
        (weights(4, 4, 6)[..., :4],),
    ],
    {
        "next token": lambda w: w.diagonal(1, -2, -1).mean(dim=-1),
        "itself": lambda w: w.diagonal(0, -2, -1).mean(dim=-1),
        "counts the first row": lambda w: w.diagonal(-1, -2, -1).sum(dim=-1) / w.shape[-1],
        "wraps around": lambda w: w.roll(1, dims=-1).diagonal(0, -2, -1).mean(dim=-1),
        "sum, not mean": lambda w: w.diagonal(-1, -2, -1).sum(dim=-1),
        "mean over heads": lambda w: w.diagonal(-1, -2, -1).mean(),
        "diagonal of heads": lambda w: w.diagonal(-1).mean(dim=-1),
        "all earlier tokens": lambda w: w.tril(-1).sum(dim=(-2, -1)) / (w.shape[-1] - 1),
        "not averaged": lambda w: w.diagonal(-1, -2, -1),
    },
    [("mean over heads", lambda w: w.diagonal(-1, -2, -1).mean(dim=0))],
)


def _ablated(out_h: Tensor, keep: Callable[[Tensor], Tensor], axis: int = 1) -> Tensor:
    kept = keep(torch.arange(out_h.shape[axis]))
    return out_h * kept.view([-1 if a == axis else 1 for a in range(4)])


ablate_head = Exercise(
    "ablate_head",
    lambda out_h, head: _ablated(out_h, lambda heads: heads != head),
    [
        (random(1, 4, 2, 3) + 5, 1),
        (random(2, 5, 3, 4) + 5, 2),
        (random(2, 5, 3, 4, seed=1) + 5.1, 2),
        (random(2, 5, 3, 4).transpose(1, 2) + 5, 0),
        (random(3, 1, 1, 4) + 5, 0),
        (random(3, 3, 3, 3) + 5, 1),
    ],
    {
        "ablates a token": lambda out_h, head: _ablated(out_h, lambda seq: seq != head, axis=2),
        "ablates a feature": lambda out_h, head: _ablated(out_h, lambda f: f != head, axis=3),
        "ablates the others": lambda out_h, head: _ablated(out_h, lambda heads: heads == head),
        "ablates the batch": lambda out_h, head: _ablated(out_h, lambda b: b != head, axis=0),
        "removes the head": lambda x, head: torch.cat([x[:, :head], x[:, head + 1 :]], dim=1),
        "next head": lambda x, head: _ablated(x, lambda h: h != (head + 1) % len(h)),
        "counts from 1": lambda x, head: _ablated(x, lambda h: h != (head - 1) % len(h)),
        "first head always": lambda x, head: _ablated(x, lambda h: h != 0),
        "only the head": lambda x, head: x[:, head : head + 1],
    },
    [
        ("next head", lambda x, head: _ablated(x, lambda h: h != head + 1)),
        ("counts from 1", lambda x, head: _ablated(x, lambda h: h != head - 1)),
        ("first head always", lambda x, head: _ablated(x, lambda h: h >= 1)),
        ("only the head", lambda x, head: x[:, head]),
    ],
    exact=True,
)
