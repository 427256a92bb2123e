"""How multi-head attention splits and merges heads: the implementation that the lessons build."""

from mha.attention import (
    attention_weights,
    merge_heads,
    multi_head_attention,
    scaled_dot_product_attention,
    split_heads,
)
from mha.dependency import dependency_map
from mha.layout import Layout
from mha.trace import trace

__all__ = [
    "Layout",
    "attention_weights",
    "dependency_map",
    "merge_heads",
    "multi_head_attention",
    "scaled_dot_product_attention",
    "split_heads",
    "trace",
]
