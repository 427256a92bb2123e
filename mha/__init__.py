"""How multi-head attention splits and merges heads: the implementation that the lessons build."""

import logging as _logging

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

# Where matplotlib may not write to the home folder it takes a temporary one, and says so in the
# first cell of a reader who has done nothing wrong.
_logging.getLogger("matplotlib").addFilter(
    lambda record: record.funcName != "_get_config_or_cache_dir"
)

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
