"""The exercises of lesson 03, split heads."""

from mha.attention import split_heads as right_split
from mha.check.inputs import numbered
from mha.check.mistakes import SPLITS, wrong_split
from mha.check.verdict import Exercise

split_heads = Exercise(
    "split_heads",
    right_split,
    [
        (numbered(1, 4, 6), 3),
        (numbered(2, 5, 12), 3),
        (numbered(2, 5, 12, start=0.1), 3),
        (numbered(3, 3, 6), 3),
        (numbered(2, 4, 6).mT, 2),
        (numbered(3, 1, 5), 1),
    ],
    SPLITS,
    exact=True,
    views=True,
)
head_of = Exercise(
    "head_of",
    lambda feature, d_model, num_heads: feature // (d_model // num_heads),
    [
        (5, 6, 3), (0, 6, 3), (2, 12, 3), (11, 12, 3), (3, 12, 4), (11, 12, 4), (7, 20, 5),
        (13, 20, 2), (3, 4, 4), (5, 12, 1), (7, 8, 1),
    ],
    {
        "(d h) order": lambda feature, d_model, n: feature % n,
        "divides by num_heads": lambda feature, d_model, n: feature // n,
        "place inside the head": lambda feature, d_model, n: feature % (d_model // n),
        "divides by d_model": lambda feature, d_model, n: feature // d_model,
        "/ for //": lambda feature, d_model, n: feature / (d_model // n),
        "counts from 1": lambda feature, d_model, n: feature // (d_model // n) + 1,
    },
)  # fmt: skip
one_head = Exercise(
    "one_head",
    lambda x, head, num_heads: right_split(x, num_heads)[:, head],
    [
        (numbered(1, 4, 6), 1, 3),
        (numbered(2, 5, 12), 2, 3),
        (numbered(2, 5, 12, start=0.1), 2, 3),
        (numbered(2, 12, 3).mT, 0, 4),
        (numbered(3, 1, 5), 3, 5),
        (numbered(2, 3, 12), 0, 1),
    ],
    {
        "(d h) order": lambda x, head, n: x[..., head::n],
        "wrong split": lambda x, head, n: wrong_split(x, n)[:, head],
        "next head": lambda x, head, n: right_split(x, n)[:, (head + 1) % n],
        "counts from 1": lambda x, head, n: right_split(x, n)[:, head - 1],
        "first head always": lambda x, head, n: right_split(x, n)[:, 0],
        "num_heads ignored": lambda x, head, n: x,
        "num_heads and head_dim swapped": lambda x, head, n: x[..., head * n : (head + 1) * n],
        "slice of tokens": lambda x, head, n: x.tensor_split(n, dim=1)[head],
        "one feature": lambda x, head, n: x[..., head : head + 1],
        "axis of size 1 left": lambda x, head, n: right_split(x, n)[:, head : head + 1],
    },
    [
        # read from 1, the head before the first has no features, or begins below 0
        ("counts from 1", lambda x, head, n: x.split(x.shape[2] // n, dim=2)[head - 1]),
        ("counts from 1", lambda x, head, n: x[
            ..., (head - 1) * (x.shape[2] // n) : head * (x.shape[2] // n)]),
        ("next head", lambda x, head, n: x[
            ..., (head + 1) * (x.shape[2] // n) : (head + 2) * (x.shape[2] // n)]),
        ("next head", lambda x, head, n: right_split(x, n)[:, head + 1]),
        ("first head always", lambda x, head, n: x[..., : x.shape[2] // n]),
    ],
    exact=True,
    views=True,
)  # fmt: skip
