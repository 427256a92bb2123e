"""The exercises of lesson 06, merge heads."""

from collections.abc import Callable

import torch
from torch import Tensor

from mha.attention import merge_heads as right_merge
from mha.attention import split_heads
from mha.check.inputs import numbered, random, spread
from mha.check.mistakes import MERGES, Answer, multi_head_with, wrong_merge, wrong_split
from mha.check.verdict import Exercise

merge_heads = Exercise(
    "merge_heads",
    right_merge,
    [
        (numbered(1, 2, 2, 2),),
        (numbered(2, 3, 5, 4),),
        (numbered(2, 3, 5, 4, start=0.1),),
        (split_heads(numbered(2, 5, 12), 3),),
        (numbered(1, 1, 4, 3),),
        (numbered(2, 3, 1, 4),),
        (numbered(3, 5, 2, 1),),
        (numbered(3, 3, 3, 3),),
    ],
    MERGES,
    exact=True,
)


def _permutes(attention: Answer, x: Tensor, order: Tensor) -> bool:
    return torch.allclose(attention(x[:, order]), attention(x)[:, order], atol=1e-5)


def _self_attention(split: Answer, merge: Answer) -> Answer:
    return lambda x: multi_head_with(split, merge=merge)(x, x, x, 2)


def _rounds_by_place(x: Tensor) -> Tensor:
    """Right, up to the last bits, in which sums in another order differ too."""
    return x * (1 + 1e-7 * torch.arange(x.shape[1])[:, None])


def _broken_at(*place: int) -> Answer:
    """Right but for one number, a feature of a token of a sequence."""

    def attention(x: Tensor) -> Tensor:
        out = 2 * x
        out[place] += 1
        return out

    return attention


def _comparing(
    use: Callable[[Tensor, Tensor], bool] = lambda a, b: torch.allclose(a, b, atol=1e-5),
) -> Answer:
    return lambda fn, x, order: use(fn(x[:, order]), fn(x)[:, order])


ORDER = torch.tensor([3, 0, 5, 1, 4, 2])
permutation_test = Exercise(
    "permutation_test",
    _permutes,
    [
        # Above 0, where a relative tolerance is enough.
        (attention, random(2, 6, 4) / 2 + 1.5, ORDER)
        for attention in (
            _self_attention(split_heads, right_merge),
            _self_attention(wrong_split, right_merge),
            _self_attention(split_heads, wrong_merge),
            _self_attention(wrong_split, wrong_merge),
            _rounds_by_place,
            lambda x: x + 0.01 * torch.arange(x.shape[1])[:, None],
            lambda x: x.mean(dim=1, keepdim=True).expand_as(x),
            lambda x: torch.arange(x.shape[1]).float()[None, :, None].expand_as(x),
            _broken_at(1, 1, 0),
            _broken_at(0, 5, 2),
            _broken_at(0, 1, 3),
            lambda x: x + x[:1, :1, :1],
            lambda x: x - x[:1, :1, :1],
        )
    ]
    + [
        (lambda x: 2 * x, random(2, 6, 4) / 2 + 1.5, torch.tensor([1, 0, 3, 2, 5, 4])),
        (
            lambda x: torch.cat([x, 3 * x], dim=-1),
            spread(random(1, 3, 1) + 3),
            torch.tensor([1, 2, 0]),
        ),
    ],
    {
        "compares shapes": lambda fn, x, order: fn(x[:, order]).shape == fn(x).shape,
        "output not permuted": lambda fn, x, order: torch.allclose(fn(x[:, order]), fn(x)),
        "input not permuted": lambda fn, x, order: torch.allclose(fn(x), fn(x)[:, order]),
        "permuted twice": lambda fn, x, p: torch.allclose(fn(x[:, p])[:, p], fn(x), atol=1e-5),
        "exactly equal": lambda fn, x, order: torch.equal(fn(x[:, order]), fn(x)[:, order]),
        "first token only": _comparing(lambda a, b: torch.allclose(a[:, 0], b[:, 0])),
        "first sequence only": _comparing(lambda a, b: torch.allclose(a[0], b[0])),
        "difference without abs": _comparing(lambda a, b: bool((a - b).max() < 1e-5)),
        "compares sums": _comparing(lambda a, b: torch.allclose(a.sum(), b.sum())),
    },
    [("difference without abs", _comparing(lambda a, b: bool((b - a).max() < 1e-5)))],
)
