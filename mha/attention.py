"""Multi-head attention: split the heads, attend, merge them.

Heads are not a loop. They are one more batch axis, so any single-head attention function
becomes multi-head between `split_heads` and `merge_heads` (Vaswani et al. 2017, section 3.2).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(batch, seq, d_model) -> (batch, num_heads, seq, head_dim), a view of `x`.

    >>> split_heads(torch.arange(24).view(1, 4, 6), num_heads=3)[0, 0].tolist()
    [[0, 1], [6, 7], [12, 13], [18, 19]]
    """
    _check_heads(num_heads, x=x)
    batch, seq, d_model = x.shape
    return x.view(batch, seq, num_heads, d_model // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, num_heads, seq, head_dim) -> (batch, seq, d_model), copied unless it lies so.

    >>> merge_heads(torch.arange(8).view(1, 2, 2, 2)).tolist()
    [[[0, 1, 4, 5], [2, 3, 6, 7]]]
    """
    if x.ndim != 4:
        raise ValueError(f"x must be (batch, num_heads, seq, head_dim), but is {tuple(x.shape)}.")
    batch, num_heads, seq, head_dim = x.shape
    return x.transpose(1, 2).contiguous().view(batch, seq, num_heads * head_dim)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q @ k^T / sqrt(head_dim)), (..., seq_q, seq_k): rows sum to 1, empty rows to 0."""
    # Scale q, not the scores: less work, and in half precision only scaled scores have to fit.
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    if mask is None:
        return scores.softmax(dim=-1)
    # An empty row stays open until after the softmax: no NaN, also not in the gradients.
    empty = ~mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~(mask | empty), -math.inf)
    return scores.softmax(dim=-1).masked_fill(empty, 0.0)


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Single-head attention: each row of the result is a weighted average of the rows of `v`."""
    return attention_weights(q, k, mask) @ v


def multi_head_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    num_heads: int,
    mask: Tensor | None = None,
    *,
    attend: Callable[..., Tensor] = scaled_dot_product_attention,
) -> Tensor:
    """Attend in `num_heads` slices of the width at once.

    Args:
        q: projected queries, (batch, seq_q, d_model).
        k: projected keys, (batch, seq_k, d_model).
        v: projected values, (batch, seq_k, d_value).
        num_heads: divides d_model and d_value.
        mask: boolean (batch, seq_q, seq_k), True = may attend. A NaN in a masked v still spreads.
        attend: any `(qh, kh, vh, mask) -> out_h`; `F.scaled_dot_product_attention` is the fast one.

    Returns:
        (batch, seq_q, d_value); zeros for a query that may attend to nothing.

    Raises:
        TypeError: `num_heads` is not an int, or the mask is not boolean.
        ValueError: sizes disagree, or `num_heads` does not divide a width.

    >>> multi_head_attention(*torch.randn(3, 2, 5, 12), num_heads=3).shape
    torch.Size([2, 5, 12])
    """
    _check_heads(num_heads, q=q, k=k, v=v)
    _check_same("batch", q=q.shape[0], k=k.shape[0], v=v.shape[0])
    _check_same("seq_k", k=k.shape[1], v=v.shape[1])
    _check_same("d_model", q=q.shape[2], k=k.shape[2])
    if mask is not None:
        _check_mask(mask, (q.shape[0], q.shape[1], k.shape[1]))
        mask = mask.unsqueeze(1)  # one more batch axis here too: the same mask for every head
    qh, kh, vh = split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)
    return merge_heads(attend(qh, kh, vh, mask))


def _check_heads(num_heads: int, **tensors: Tensor) -> None:
    if not isinstance(num_heads, int) or isinstance(num_heads, bool):
        raise TypeError(f"num_heads must be an int >= 1, but is {num_heads!r}.")
    for name, x in tensors.items():
        if x.ndim != 3:
            raise ValueError(f"{name} must be (batch, seq, width), but is {tuple(x.shape)}.")
        width = x.shape[2]
        if num_heads < 1 or width % num_heads:
            fits = [n for n in range(1, width + 1) if width % n == 0]
            raise ValueError(f"num_heads={num_heads} must divide {name}'s width {width}: {fits}.")


def _check_same(size: str, **found: int) -> None:
    if min(found.values()) != max(found.values()):
        raise ValueError(f"{size} must be the same, but is {found}.")


def _check_mask(mask: Tensor, shape: tuple[int, int, int]) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may attend, not {mask.dtype}: mask == 1?")
    if mask.shape != shape:
        raise ValueError(
            f"mask must be (batch, seq_q, seq_k) = {shape}, but is {tuple(mask.shape)}. Causal: "
            f"mask.expand{shape}. Padding, (batch, seq_k): mask[:, None].expand{shape}."
        )
