"""Marks the exercises of the lessons, and names the mistake.

`check.split_heads(your_function)` calls it on small inputs, compares what it gives with what is
right, and, where it differs, with what each known mistake gives. `help(check.split_heads)` shows
what an exercise takes and returns.
"""

from mha.check.alone import sealed
from mha.check.verdict import Exercise, Verdict

with sealed():  # inputs are tensors on the CPU, whatever the default device is
    from mha.check.lesson01 import attention_weights, weighted_average
    from mha.check.lesson02 import can_merge, contiguous_strides, element
    from mha.check.lesson03 import head_of, one_head, split_heads
    from mha.check.lesson04 import attend_per_head, fold_heads
    from mha.check.lesson05 import (
        causal_mask,
        masked_softmax,
        padding_mask,
        scaled_dot_product_attention,
    )
    from mha.check.lesson06 import merge_heads, permutation_test
    from mha.check.lesson07 import match_torch, multi_head_attention, sum_over_heads
    from mha.check.lesson08 import ablate_head, previous_token
    from mha.check.lesson09 import multiplications, score_bytes
    from mha.check.lesson10 import (
        attend_along_rows,
        decode,
        fused_qkv,
        grouped_query_attention,
        heads_last,
        per_head_masks,
    )

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

EXERCISES = {x.name: x for x in map(globals().get, __all__) if isinstance(x, Exercise)}


def __dir__() -> list[str]:
    """The exercises, which are what completion offers after `check.`."""
    return list(EXERCISES)
