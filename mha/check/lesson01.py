"""The exercises of lesson 01, one view."""

import torch

from mha.attention import attention_weights as right_weights
from mha.check.inputs import qkv, random, spread, weights
from mha.check.mistakes import SCALES, SOFTMAX, Answer, attend_with, one_at_a_time, two_at_once
from mha.check.verdict import Exercise

weighted_average = Exercise(
    "weighted_average",
    lambda attn_weights, v: attn_weights @ v,
    [
        (weights(1, 2, 3), random(1, 3, 2)),
        (weights(2, 5, 5), random(2, 5, 4)),
        (weights(2, 5, 5, seed=1), random(2, 5, 4, seed=1)),
        (weights(2, 3, 3), random(2, 3, 3)),
        (spread(weights(3, 1, 4)), spread(random(3, 4, 5))),
    ],
    {
        "not transposed": lambda w, v: w.mT @ v,
        "plain mean": lambda w, v: v.mean(dim=1, keepdim=True).expand(-1, w.shape[1], -1),
        "softmax again": lambda w, v: w.softmax(dim=-1) @ v,
        "averaged twice": lambda w, v: w @ v / v.shape[1],
        "elementwise": lambda w, v: w * v,
        "sum over queries": lambda w, v: w.sum(dim=1) @ v,
    },
)


def _weights_with(**parts: object) -> Answer:
    return lambda q, k: attend_with(**parts)(q, k, torch.eye(k.shape[1]))  # type: ignore[arg-type]


WEIGHTS = {**SCALES, **SOFTMAX}
attention_weights = Exercise(
    "attention_weights",
    right_weights,
    [
        qkv(1, 3, 4)[:2],
        (random(1, 2, 4), random(1, 3, 4, seed=1)),
        qkv(2, 5, 12)[:2],
        qkv(2, 5, 12, seed=1)[:2],
        (spread(random(3, 1, 4)), spread(random(3, 5, 4))),
    ],
    {
        **one_at_a_time(_weights_with, WEIGHTS),
        "not transposed": lambda q, k: right_weights(k, q),
    },
    two_at_once(_weights_with, WEIGHTS),
)
