"""Multi-head attention: split the heads, attend, merge them.

Heads are not a loop. They are one more batch axis, so any single-head attention function
becomes multi-head between `split_heads` and `merge_heads` (Vaswani et al. 2017, section 3.2).
"""

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
    scores: Tensor = (q / q.shape[-1] ** 0.5) @ k.transpose(-1, -2)
    if mask is None:
        return scores.softmax(dim=-1)
    # An empty row stays open until after the softmax: no NaN, also not in the gradients.
    empty = ~mask.any(dim=-1, keepdim=True)
    return scores.masked_fill(~(mask | empty), -torch.inf).softmax(dim=-1).masked_fill(empty, 0.0)


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
        TypeError, ValueError: `num_heads` or the mask is of another type, or sizes do not fit.

    >>> multi_head_attention(*torch.randn(3, 2, 5, 12), num_heads=3).shape
    torch.Size([2, 5, 12])
    """
    _check_heads(num_heads, q=q, k=k, v=v)
    if mask is not None:
        _check_mask(mask, (q.shape[0], q.shape[1], k.shape[1]), num_heads)
        mask = mask.unsqueeze(1)  # one more batch axis here too: the same mask for every head
    qh, kh, vh = split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)
    return merge_heads(attend(qh, kh, vh, mask))


def _check_heads(num_heads: int, **tensors: Tensor) -> None:
    if not isinstance(num_heads, int) or isinstance(num_heads, bool):
        raise TypeError(f"num_heads must be an int >= 1, but is {num_heads!r}.")
    for name, x in tensors.items():
        if x.ndim != 3:
            raise ValueError(f"{name} must be (batch, seq, width), but is {tuple(x.shape)}.")
        if (width := x.shape[2]) % max(num_heads, 1) or num_heads < 1:
            fits = [n for n in range(1, width + 1) if width % n == 0]
            raise ValueError(f"num_heads={num_heads} must divide {name}'s width {width}: {fits}.")
    for axis, size, owners in (0, "batch", "qkv"), (1, "seq_k", "kv"), (2, "d_model", "qk"):
        found = {name: x.shape[axis] for name, x in tensors.items() if name in owners}
        if found and min(found.values()) != max(found.values()):
            raise ValueError(f"{size} must be the same, but is {found}.")


def _check_mask(mask: Tensor, shape: tuple[int, int, int], num_heads: int) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean, not {mask.dtype if isinstance(mask, Tensor) else type(mask)}: "
            "True = may attend. Array or list: torch.as_tensor(mask). 0 and 1: mask == 1. "
            f"0 and -inf, or -3e38: mask == 0. Lengths: torch.arange({shape[2]}) < mask[..., None]."
        )
    if mask.shape != shape:
        hints = {
            2: f"Causal: mask.expand{shape}. Padding, (batch, seq_k): mask[:, None].expand{shape}.",
            3: f"Sizes 1: mask.expand{shape}. Folded heads: mask.unflatten(0, (-1, {num_heads})).",
            4: f"One for all heads: mask[:, 0].expand{shape}. One for each head: "
            "attend=lambda q, k, v, _: scaled_dot_product_attention(q, k, v, mask).",
        }
        found, hint = tuple(mask.shape), hints.get(mask.ndim, hints[3])
        raise ValueError(f"mask must be (batch, seq_q, seq_k) = {shape}, but is {found}. {hint}")
