"""The exercises of lesson 04, attend per head."""

from mha.attention import merge_heads, scaled_dot_product_attention, split_heads
from mha.check.inputs import numbered, qkv
from mha.check.mistakes import HEADS, attend_with, one_at_a_time, two_at_once
from mha.check.verdict import Exercise

attend_per_head = Exercise(
    "attend_per_head",
    scaled_dot_product_attention,
    [
        qkv(1, 2, 3, 4),
        qkv(2, 3, 5, 4),
        qkv(2, 3, 5, 4, seed=1),
        tuple(split_heads(x, 3) for x in qkv(2, 4, 15)),
        qkv(1, 1, 4, 6),
        qkv(3, 2, 1, 5),
        qkv(3, 3, 3, 3),
    ],
    {
        **one_at_a_time(attend_with, HEADS),
        "num_heads ignored": lambda qh, kh, vh: split_heads(
            scaled_dot_product_attention(*map(merge_heads, (qh, kh, vh))), qh.shape[1]
        ),
    },
    two_at_once(attend_with, HEADS),
)
fold_heads = Exercise(
    "fold_heads",
    lambda qh: qh.flatten(0, 1),
    [
        (split_heads(numbered(2, 2, 6), 3),),
        (split_heads(numbered(2, 5, 12), 3),),
        (split_heads(numbered(2, 5, 12, start=0.1), 3),),
        (numbered(3, 2, 5, 4),),
        (numbered(1, 3, 1, 4),),
        (numbered(3, 1, 2, 1),),
    ],
    {
        "heads before batch": lambda qh: qh.transpose(0, 1).flatten(0, 1),
        "wrong split": lambda qh: merge_heads(qh).reshape(-1, *qh.shape[2:]),
        "folds the tokens": lambda qh: qh.flatten(1, 2),
        "seq and head_dim swapped": lambda qh: qh.mT.flatten(0, 1),
        "view raises": lambda qh: qh.view(-1, *qh.shape[2:]),
    },
    [
        ("folds the tokens", lambda qh: qh.transpose(1, 2).flatten(0, 1)),
        ("view raises", lambda qh: qh.view(len(qh) * qh.shape[1], *qh.shape[2:])),
    ],
    exact=True,
)
