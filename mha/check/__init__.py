"""Marks the exercises of the lessons, and names the mistake.

`check.split_heads(your_function)` calls it on small inputs, compares what it gives with what is
right, and, where it differs, with what each known mistake gives. `help(check.split_heads)` shows
what an exercise takes and returns.
"""

from mha.check.alone import sealed
from mha.check.verdict import Exercise, Verdict

with sealed():  # inputs are tensors on the CPU, whatever the default device is
    from mha.check.exercises import (  # noqa: I001
        EXERCISES, ablate_head, attend_along_rows, attend_per_head, attention_weights, can_merge,
        causal_mask, contiguous_strides, decode, element, fold_heads, fused_qkv,
        grouped_query_attention, head_of, heads_last, masked_softmax, match_torch, merge_heads,
        multi_head_attention, multiplications, one_head, padding_mask, per_head_masks,
        permutation_test, previous_token, scaled_dot_product_attention, score_bytes, split_heads,
        sum_over_heads, weighted_average,
    )  # fmt: skip

__all__ = [
    "EXERCISES", "Exercise", "Verdict",
    "weighted_average", "attention_weights",
    "contiguous_strides", "element", "can_merge",
    "split_heads", "head_of", "one_head",
    "attend_per_head", "fold_heads",
    "causal_mask", "padding_mask", "scaled_dot_product_attention", "masked_softmax",
    "merge_heads", "permutation_test",
    "multi_head_attention", "match_torch", "sum_over_heads",
    "previous_token", "ablate_head",
    "score_bytes", "multiplications",
    "fused_qkv", "grouped_query_attention", "heads_last", "per_head_masks", "attend_along_rows",
    "decode",
]  # fmt: skip


def __dir__() -> list[str]:
    """The exercises, which are what completion offers after `check.`."""
    return list(EXERCISES)
