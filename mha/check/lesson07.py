"""The exercises of lesson 07, multi-head attention."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha.attention import merge_heads, split_heads
from mha.attention import multi_head_attention as right_attention
from mha.check.inputs import qkv, random, random_mask, spread
from mha.check.mistakes import (
    MASKS,
    MULTI_HEADS,
    SCALES,
    Answer,
    Parts,
    attend_with,
    dh_merge,
    dh_split,
    multi_head_with,
    no_transpose,
    one_at_a_time,
    two_at_once,
    two_wrong_splits,
    wrong_merge,
)
from mha.check.verdict import Exercise


def _fused_kernel(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Tensor | None = None) -> Tensor:
    """The mask without its heads axis, given to torch's own attention."""
    qh, kh, vh = (split_heads(x, n) for x in (q, k, v))
    return merge_heads(F.scaled_dot_product_attention(qh, kh, vh, mask))


multi_head_attention = Exercise(
    "multi_head_attention",
    right_attention,
    [
        (*qkv(1, 3, 4), 2),
        (random(2, 4, 12), *qkv(2, 5, 12)[1:], 3),
        (random(2, 4, 12, seed=1), *qkv(2, 5, 12, seed=1)[1:], 3),
        (*qkv(2, 5, 12), 3, random_mask(2, 5, 5)),
        (random(2, 4, 12), *qkv(2, 5, 12)[1:], 3, random_mask(2, 4, 5)),
        (*qkv(3, 5, 12), 3, random_mask(3, 5, 5)),
        (random(3, 1, 10), *map(spread, qkv(3, 4, 10)[1:]), 5),
        (*qkv(2, 3, 12), 3, random_mask(2, 3, 3)),
        (*qkv(2, 5, 12), 1, random_mask(2, 5, 5)),
    ],
    one_at_a_time(multi_head_with, MULTI_HEADS),
    [
        *two_at_once(multi_head_with, MULTI_HEADS, masked=True),
        *two_wrong_splits(multi_head_with),
        # in the words of other functions, which also take more than masked_fill does
        (
            "mask without heads axis",
            multi_head_with(
                heads_axis=lambda mask, num_heads: mask,
                block=lambda s, mask: torch.where(mask, s, -1e9),
            ),
        ),
        ("mask without heads axis", _fused_kernel),
        *(
            ("(d h) order", multi_head_with(split=dh_split, **parts))
            for parts in [{}, *MULTI_HEADS.values()]
            if "split" not in parts
        ),
        ("(d h) order", multi_head_with(merge=dh_merge)),
        # never turned, and turned back all the same
        ("no transpose", multi_head_with(no_transpose, lambda x: wrong_merge(x.transpose(1, 2)))),
    ],
)


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("module(x, ..) is what to match: use its weights, without calling it")


def _module(d_model: int = 12, num_heads: int = 3, seed: int = 0) -> nn.MultiheadAttention:
    """A module whose parts can be used, but which cannot be called."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + seed)
        module = nn.MultiheadAttention(d_model, num_heads, batch_first=True, dtype=torch.float32)
        nn.init.normal_(module.in_proj_bias)
        nn.init.normal_(module.out_proj.bias)
    module.forward = _refuse  # type: ignore[method-assign, assignment]
    return module.requires_grad_(False)


def _match(
    project: Answer = F.linear,
    bias: bool = True,
    leave_with: Answer = F.linear,
    out_bias: bool = True,
    **parts: Any,
) -> Answer:
    """nn.MultiheadAttention by hand, with some parts replaced."""

    def match(module: nn.MultiheadAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
        biases = module.in_proj_bias * bias
        q, k, v = map(project, [x] * 3, module.in_proj_weight.chunk(3), biases.chunk(3))
        merged = multi_head_with(**parts)(q, k, v, module.num_heads, mask)
        out: Tensor = leave_with(merged, module.out_proj.weight, module.out_proj.bias * out_bias)
        return out

    return match


def _untransposed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight + bias


def _split_first(module: nn.MultiheadAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Each head projects its own slice of `x`."""

    def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        slices = zip(x.chunk(n, dim=-1), weight.chunk(n), range(n), strict=True)
        return torch.cat([y @ w.chunk(n, dim=1)[h].T for y, w, h in slices], dim=-1) + bias

    n = module.num_heads
    out: Tensor = _match(project)(module, x, mask)
    return out


def _split_then_chunk(module: nn.MultiheadAttention, x: Tensor, mask: Any = None) -> Tensor:
    qkv = F.linear(x, module.in_proj_weight, module.in_proj_bias)
    qh, kh, vh = split_heads(qkv, module.num_heads).chunk(3, dim=-1)
    mask = None if mask is None else mask.unsqueeze(1)
    out: Tensor = module.out_proj(merge_heads(attend_with()(qh, kh, vh, mask)))
    return out


MATCH: Parts = {
    "no output projection": {"leave_with": lambda out, weight, bias: out},
    "bias forgotten": {"bias": False},
    "output bias forgotten": {"out_bias": False},
    "weight not transposed": {"project": _untransposed},
}
# The others are too narrow for out_proj, and raise alike.
FITTING = [
    x for x in MULTI_HEADS if x not in {"mean over heads", "sum over heads", "one head only"}
]
match_torch = Exercise(
    "match_torch",
    _match(),
    [
        (_module(), random(1, 2, 12)),
        (_module(), random(2, 5, 12), random_mask(2, 5, 5)),
        (_module(seed=1), random(2, 5, 12, seed=1), random_mask(2, 5, 5, seed=1)),
        (_module(10, 2), spread(random(3, 4, 10)), random_mask(3, 4, 4)),
        (_module(6, 1), random(2, 3, 6)),
    ],
    {
        **one_at_a_time(_match, {**MATCH, **{x: MULTI_HEADS[x] for x in FITTING}}),
        "split before projection": _split_first,
        "split, then chunk": _split_then_chunk,
        "calls the module": _refuse,
    },
    [
        ("weight not transposed", _match(leave_with=_untransposed)),
        ("weight not transposed", _match(_untransposed, leave_with=_untransposed)),
        *two_at_once(_match, {**MATCH, **SCALES, **MASKS}),
        *two_wrong_splits(_match),
    ],
)


def _slices(out_h: Tensor, w_o: Tensor) -> Tensor:
    """What each head adds, (batch, num_heads, seq, d_model)."""
    return out_h @ w_o.view(out_h.shape[1], out_h.shape[3], -1)


sum_over_heads = Exercise(
    "sum_over_heads",
    lambda out_h, w_o: merge_heads(out_h) @ w_o,
    [
        (random(1, 2, 2, 2), random(4, 4)),
        (random(2, 3, 5, 4), random(12, 12)),
        (random(2, 3, 5, 4, seed=1), random(12, 12, seed=1)),
        (split_heads(random(3, 4, 10), 5), random(10, 10).T),
        (random(3, 1, 1, 2), random(2, 2)),
    ],
    {
        "wrong merge": lambda out_h, w_o: wrong_merge(out_h) @ w_o,
        "columns of w_o": lambda out_h, w_o: merge_heads(out_h) @ w_o.T,
        "mean, not sum": lambda out_h, w_o: merge_heads(out_h) @ w_o / out_h.shape[1],
        "(d h) order": lambda out_h, w_o: dh_merge(out_h) @ w_o,
        "one head only": lambda out_h, w_o: out_h[:, 0] @ w_o[: out_h.shape[3]],
        "same rows for all": lambda out_h, w_o: out_h.sum(dim=1) @ w_o[: out_h.shape[3]],
        "not summed": _slices,
    },
    [
        ("one head only", lambda out_h, w_o: out_h[:, -1] @ w_o[-out_h.shape[3] :]),
        ("not summed", lambda out_h, w_o: _slices(out_h, w_o).sum(dim=1, keepdim=True)),
    ],
)
