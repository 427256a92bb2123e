"""The exercises of the lessons: a right answer, inputs, and the wrong answers that have a name."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha import attention as mha
from mha.check.mistakes import (
    HEADS,
    MASKS,
    MERGES,
    MULTI_HEADS,
    SCALES,
    SPLITS,
    Answer,
    Parts,
    attend_with,
    dh_merge,
    dh_split,
    misread,
    multi_head_with,
    no_transpose,
    one_at_a_time,
    turned,
    two_at_once,
    wrong_merge,
    wrong_split,
)
from mha.check.verdict import Exercise


def _random(*shape: int, seed: int = 0) -> Tensor:
    """Small whole numbers as floats."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).float()


def _qkv(*shape: int) -> tuple[Tensor, ...]:
    return tuple(_random(*shape, seed=seed) for seed in range(3))


def _numbered(*shape: int) -> Tensor:
    return torch.arange(math.prod(shape)).float().view(shape)


def _mask(*shape: int) -> Tensor:
    """A random mask, another for each of the batch; no row is all True or all False."""
    generator = torch.Generator().manual_seed(sum(shape))
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[..., 0] |= ~mask.any(dim=-1)
    mask[..., 1] &= ~mask.all(dim=-1)
    return mask


def _weights(*shape: int) -> Tensor:
    return (2 * _random(*shape)).softmax(dim=-1)


def _element(index: Sequence[int], strides: Sequence[int], offset: int) -> int:
    return offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


# 01 one view

weighted_average = Exercise(
    "weighted_average",
    lambda attn_weights, v: attn_weights @ v,
    [
        (_weights(b, seq_q, seq_k), _random(b, seq_k, d))
        for b, seq_q, seq_k, d in ((1, 2, 3, 2), (2, 5, 5, 4), (2, 3, 3, 3))
    ],
    {
        "not transposed": lambda w, v: w.mT @ v,
        "plain mean": lambda w, v: v.mean(dim=1, keepdim=True).expand(-1, w.shape[1], -1),
        "softmax again": lambda w, v: w.softmax(dim=-1) @ v,
        "elementwise": lambda w, v: w * v,
        "sum over queries": lambda w, v: w.sum(dim=1) @ v,
    },
)
attention_weights = Exercise(
    "attention_weights",
    mha.attention_weights,
    [(_random(1, 2, 4), _random(1, 3, 4, seed=1)), (_random(2, 5, 12), _random(2, 5, 12, seed=1))],
    {
        "no scale": lambda q, k: (q @ k.mT).softmax(dim=-1),
        "scaled twice": lambda q, k: (q @ k.mT / q.shape[-1]).softmax(dim=-1),
        "softmax over queries": lambda q, k: (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-2),
        "not transposed": lambda q, k: (k @ q.mT / q.shape[-1] ** 0.5).softmax(dim=-1),
        "no softmax": lambda q, k: q @ k.mT / q.shape[-1] ** 0.5,
        "scale by seq": lambda q, k: (q @ k.mT / k.shape[-2] ** 0.5).softmax(dim=-1),
    },
)

# 02 shape and strides

contiguous_strides = Exercise(
    "contiguous_strides",
    lambda shape: torch.empty(shape).stride(),
    [((2, 3),), ((2, 5, 12),), ((2, 5, 3, 4),), ((7,),)],
    {
        "reversed": lambda shape: tuple(math.prod(shape[:i]) for i in range(len(shape))),
        "its own size too": lambda shape: tuple(math.prod(shape[i:]) for i in range(len(shape))),
        "bytes": lambda shape: tuple(4 * stride for stride in torch.empty(shape).stride()),
        "next size only": lambda shape: (*shape[1:], 1),
    },
)
element = Exercise(
    "element",
    _element,
    [((1, 2), (4, 1), 0), ((1, 2, 0, 3), (60, 4, 12, 1), 0), ((2, 1), (1, 7), 5)],
    {
        "offset forgotten": lambda index, strides, offset: _element(index, strides, 0),
        "strides ignored": lambda index, strides, offset: _element(index, [1] * len(index), offset),
        "reversed": lambda index, strides, offset: _element(index, strides[::-1], offset),
        "bytes": lambda index, strides, offset: 4 * _element(index, strides, offset),
    },
)
can_merge = Exercise(
    "can_merge",
    lambda sizes, strides, i: 1 in sizes[i : i + 2] or strides[i] == sizes[i + 1] * strides[i + 1],
    [
        ((4, 3), (3, 1), 0),
        ((3, 4), (1, 3), 0),
        ((2, 5, 3, 4), (60, 4, 20, 1), 2),
        ((5, 2, 3), (1, 15, 5), 1),
        ((2, 5, 1, 12), (60, 12, 60, 1), 2),
        ((4, 1), (1, 9), 0),
        ((3, 3), (3, 1), 0),
        ((2, 3, 1, 4), (1, 8, 4, 1), 0),
    ],
    {
        "must be contiguous": lambda sizes, strides, i: strides == torch.empty(sizes).stride(),
        "size 1 forgotten": lambda sizes, strides, i: strides[i] == sizes[i + 1] * strides[i + 1],
        "wrong axis's size": lambda s, t, i: 1 in s[i : i + 2] or t[i] == s[i] * t[i + 1],
        "always": lambda sizes, strides, i: True,
        "never": lambda sizes, strides, i: False,
    },
)

# 03 split heads

split_heads = Exercise(
    "split_heads",
    mha.split_heads,
    [
        (_numbered(1, 4, 6), 3),
        (_numbered(2, 5, 12), 3),
        (_numbered(3, 2, 12), 1),
        (_numbered(3, 3, 6), 3),
        (_numbered(2, 4, 6).transpose(1, 2), 2),
    ],
    SPLITS,
    views=True,
)
head_of = Exercise(
    "head_of",
    lambda feature, d_model, num_heads: feature // (d_model // num_heads),
    [(feature, d_model, n) for d_model, n in ((6, 3), (12, 3), (12, 4)) for feature in (5, 0, 2)],
    {
        "(d h) order": lambda feature, d_model, n: feature % n,
        "divides by num_heads": lambda feature, d_model, n: feature // n,
        "place inside the head": lambda feature, d_model, n: feature % (d_model // n),
        "divides by d_model": lambda feature, d_model, n: feature // d_model,
    },
)
one_head = Exercise(
    "one_head",
    lambda x, head, num_heads: mha.split_heads(x, num_heads)[:, head],
    [(_numbered(1, 4, 6), 1, 3), (_numbered(2, 5, 12), 2, 3), (_numbered(2, 3, 12), 0, 4)],
    {
        "(d h) order": lambda x, head, n: x[..., head::n],
        "wrong split": lambda x, head, n: wrong_split(x, n)[:, head],
        "next head": lambda x, head, n: mha.split_heads(x, n)[:, (head + 1) % n],
        "slice of tokens": lambda x, head, n: x.tensor_split(n, dim=1)[head],
        "one feature": lambda x, head, n: x[..., head : head + 1],
    },
    views=True,
)

# 04 attend per head

attend_per_head = Exercise(
    "attend_per_head",
    mha.scaled_dot_product_attention,
    [_qkv(1, 2, 3, 4), _qkv(2, 3, 5, 4), _qkv(1, 1, 4, 6), _qkv(3, 3, 3, 3)],
    one_at_a_time(attend_with, HEADS),
    two_at_once(attend_with, HEADS),
)
fold_heads = Exercise(
    "fold_heads",
    lambda qh: qh.flatten(0, 1),
    [(mha.split_heads(_numbered(*shape), n),) for shape, n in (((2, 2, 6), 3), ((2, 5, 12), 3))],
    {
        "heads before batch": lambda qh: qh.transpose(0, 1).flatten(0, 1),
        "wrong split": lambda qh: mha.merge_heads(qh).reshape(-1, *qh.shape[2:]),
        "folds the tokens": lambda qh: qh.flatten(1, 2),
        "seq and head_dim swapped": lambda qh: qh.mT.flatten(0, 1),
    },
)

# 05 mask every head


def _causal(seq_q: int, seq_k: int) -> Tensor:
    return torch.ones(seq_q, seq_k, dtype=torch.bool).tril(seq_k - seq_q)


def _padding(lengths: Tensor, seq_q: int, seq_k: int) -> Tensor:
    return (torch.arange(seq_k) < lengths[:, None])[:, None].expand(-1, seq_q, -1)


causal_mask = Exercise(
    "causal_mask",
    _causal,
    [(3, 3), (2, 5), (1, 4), (5, 5)],
    {
        "mask reversed": lambda seq_q, seq_k: ~_causal(seq_q, seq_k),
        "diagonal the wrong way": lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(q - k),
        "upper-left": lambda seq_q, seq_k: torch.ones(seq_q, seq_k, dtype=torch.bool).tril(),
        "strictly causal": lambda seq_q, seq_k: _causal(seq_q, seq_k).tril(seq_k - seq_q - 1),
        "sees the future": lambda seq_q, seq_k: ~_causal(seq_q, seq_k).tril(seq_k - seq_q - 1),
        "not boolean": lambda seq_q, seq_k: _causal(seq_q, seq_k).float(),
    },
)
padding_mask = Exercise(
    "padding_mask",
    _padding,
    [(torch.tensor([1, 3]), 3, 3), (torch.tensor([4, 2, 5]), 2, 5), (torch.tensor([3, 1]), 2, 3)],
    {
        "mask reversed": lambda *args: ~_padding(*args),
        "pads the queries": lambda lengths, seq_q, seq_k: _padding(lengths, seq_k, seq_q).mT,
        "one token too many": lambda lengths, *seq: _padding(lengths + 1, *seq),
        "not expanded": lambda lengths, seq_q, seq_k: torch.arange(seq_k) < lengths[:, None],
        "not boolean": lambda *args: _padding(*args).float(),
    },
)
ATTEND: Parts = {**SCALES, **MASKS, "softmax over queries": {"axis": -2}}
scaled_dot_product_attention = Exercise(
    "scaled_dot_product_attention",
    mha.scaled_dot_product_attention,
    [
        _qkv(1, 3, 4),
        (*_qkv(1, 3, 4), _mask(1, 3, 3)),
        (_random(2, 3, 4, 6), *_qkv(2, 3, 5, 6)[1:], _mask(2, 1, 4, 5)),
    ],
    one_at_a_time(attend_with, ATTEND),
    two_at_once(attend_with, ATTEND),
)
masked_softmax = Exercise(
    "masked_softmax",
    lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(dim=-1).masked_fill(~mask, 0.0),
    [
        (_random(1, 2, 3), torch.tensor([[[True, False, True], [False] * 3]])),
        (_random(2, 3, 4, 5), _mask(2, 1, 4, 5)),
        (_random(2, 3, 4, 5), _mask(2, 1, 4, 5) & (torch.arange(4)[:, None] != 2)),
    ],
    {
        "NaN rows": lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(dim=-1),
        "uniform rows": lambda s, mask: s.masked_fill(~mask, -1e9).softmax(dim=-1),
        "mask after softmax": lambda s, mask: s.softmax(dim=-1) * mask,
        "mask ignored": lambda s, mask: s.softmax(dim=-1),
        "mask reversed": lambda s, mask: s.masked_fill(mask, -math.inf).softmax(dim=-1),
    },
)

# 06 merge heads

merge_heads = Exercise(
    "merge_heads",
    mha.merge_heads,
    [
        (_numbered(*shape),)
        for shape in ((1, 2, 2, 2), (2, 3, 5, 4), (1, 1, 4, 3), (2, 3, 1, 4), (3, 3, 3, 3))
    ],
    MERGES,
)


def _permutes(attention: Answer, x: Tensor, order: Tensor) -> bool:
    return torch.allclose(attention(x[:, order]), attention(x)[:, order], atol=1e-5)


def _self_attention(split: Answer, merge: Answer) -> Answer:
    return lambda x: multi_head_with(split, merge=merge)(x, x, x, 2)


def _rounds_by_place(x: Tensor) -> Tensor:
    """Right, up to the last bits, in which sums in another order differ too."""
    return x * (1 + 1e-7 * torch.arange(x.shape[1])[:, None])


permutation_test = Exercise(
    "permutation_test",
    _permutes,
    [
        # Above 0, where a relative tolerance is enough.
        (attention, _random(2, 6, 4) / 2 + 1.5, torch.tensor([3, 0, 5, 1, 4, 2]))
        for attention in (
            _self_attention(mha.split_heads, mha.merge_heads),
            _self_attention(wrong_split, mha.merge_heads),
            _self_attention(mha.split_heads, wrong_merge),
            _self_attention(wrong_split, wrong_merge),
            _rounds_by_place,
            lambda x: x + 0.01 * torch.arange(x.shape[1])[:, None],
            lambda x: 2 * x,
            lambda x: x.mean(dim=1, keepdim=True).expand_as(x),
            lambda x: torch.arange(x.shape[1]).float()[None, :, None].expand_as(x),
        )
    ]
    + [(lambda x: 2 * x, _random(2, 6, 4), torch.tensor([1, 0, 3, 2, 5, 4]))],
    {
        "compares shapes": lambda fn, x, order: fn(x[:, order]).shape == fn(x).shape,
        "output not permuted": lambda fn, x, order: torch.allclose(fn(x[:, order]), fn(x)),
        "input not permuted": lambda fn, x, order: torch.allclose(fn(x), fn(x)[:, order]),
        "permuted twice": lambda fn, x, p: torch.allclose(fn(x[:, p])[:, p], fn(x), atol=1e-5),
        "exactly equal": lambda fn, x, order: torch.equal(fn(x[:, order]), fn(x)[:, order]),
    },
)

# 07 multi-head attention

multi_head_attention = Exercise(
    "multi_head_attention",
    mha.multi_head_attention,
    [
        (*_qkv(1, 3, 4), 2),
        (*_qkv(2, 5, 12), 3),
        (*_qkv(2, 5, 12), 3, _mask(2, 5, 5)),
        (_random(2, 4, 12), *_qkv(2, 5, 12)[1:], 3, _mask(2, 4, 5)),
        (*_qkv(3, 5, 12), 3, _mask(3, 5, 5)),
        (*_qkv(2, 3, 12), 3, _mask(2, 3, 3)),
        (*_qkv(2, 5, 12), 1, _mask(2, 5, 5)),
    ],
    one_at_a_time(multi_head_with, MULTI_HEADS),
    [
        *two_at_once(multi_head_with, MULTI_HEADS),
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


def _module() -> nn.MultiheadAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float32)
        nn.init.normal_(module.in_proj_bias)
        nn.init.normal_(module.out_proj.bias)
    return module.requires_grad_(False)


def _match(
    project: Answer = F.linear, output: bool = True, bias: bool = True, flip: bool = False
) -> Answer:
    """nn.MultiheadAttention by hand, with one part replaced."""

    def match(module: nn.MultiheadAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
        biases = module.in_proj_bias * bias
        q, k, v = map(project, [x] * 3, module.in_proj_weight.chunk(3), biases.chunk(3))
        mask = ~mask if flip and mask is not None else mask
        out: Tensor = multi_head_with()(q, k, v, module.num_heads, mask)
        return F.linear(out, module.out_proj.weight, module.out_proj.bias) if output else out

    return match


def _split_first(x: Tensor, weight: Tensor, bias: Tensor, num_heads: int = 3) -> Tensor:
    """Each head projects its own slice of `x`."""
    rows = [w.chunk(num_heads, dim=1)[head] for head, w in enumerate(weight.chunk(num_heads))]
    slices = zip(x.chunk(num_heads, dim=-1), rows, strict=True)
    return torch.cat([part @ w.T for part, w in slices], dim=-1) + bias


def _split_then_chunk(module: nn.MultiheadAttention, x: Tensor, mask: Any = None) -> Tensor:
    qkv = F.linear(x, module.in_proj_weight, module.in_proj_bias)
    qh, kh, vh = mha.split_heads(qkv, module.num_heads).chunk(3, dim=-1)
    mask = None if mask is None else mask.unsqueeze(1)
    out: Tensor = module.out_proj(mha.merge_heads(attend_with()(qh, kh, vh, mask)))
    return out


MATCH: Parts = {
    "no output projection": {"output": False},
    "bias forgotten": {"bias": False},
    "mask reversed": {"flip": True},
    "split before projection": {"project": _split_first},
}
match_torch = Exercise(
    "match_torch",
    _match(),
    [(_module(), _random(1, 2, 12)), (_module(), _random(2, 5, 12), _mask(2, 5, 5))],
    {
        **one_at_a_time(_match, MATCH),
        "split, then chunk": _split_then_chunk,
        "mask ignored": lambda module, x, mask=None: _match()(module, x),
    },
    two_at_once(_match, MATCH),
)
sum_over_heads = Exercise(
    "sum_over_heads",
    lambda out_h, w_o: mha.merge_heads(out_h) @ w_o,
    [(_random(1, 2, 2, 2), _random(4, 4)), (_random(2, 3, 5, 4), _random(12, 12))],
    {
        "wrong merge": lambda out_h, w_o: wrong_merge(out_h) @ w_o,
        "columns of w_o": lambda out_h, w_o: mha.merge_heads(out_h) @ w_o.T,
        "mean, not sum": lambda out_h, w_o: mha.merge_heads(out_h) @ w_o / out_h.shape[1],
        "(d h) order": lambda out_h, w_o: dh_merge(out_h) @ w_o,
        "one head only": lambda out_h, w_o: out_h[:, 0] @ w_o[: out_h.shape[3]],
    },
)

# 08 what heads learn

previous_token = Exercise(
    "previous_token",
    lambda w: w.diagonal(-1, -2, -1).mean(dim=-1),
    [(_weights(2, 3, 3),), (_weights(3, 5, 5),)],
    {
        "next token": lambda w: w.diagonal(1, -2, -1).mean(dim=-1),
        "itself": lambda w: w.diagonal(0, -2, -1).mean(dim=-1),
        "counts the first row": lambda w: w.diagonal(-1, -2, -1).sum(dim=-1) / w.shape[-1],
        "sum, not mean": lambda w: w.diagonal(-1, -2, -1).sum(dim=-1),
        "mean over heads": lambda w: w.diagonal(-1, -2, -1).mean(),
    },
)


def _ablated(out_h: Tensor, keep: Callable[[Tensor], Tensor], axis: int = 1) -> Tensor:
    kept = keep(torch.arange(out_h.shape[axis]))
    return out_h * kept.view([-1 if a == axis else 1 for a in range(4)])


ablate_head = Exercise(
    "ablate_head",
    lambda out_h, head: _ablated(out_h, lambda heads: heads != head),
    [(_random(1, 2, 3, 2) + 5, 1), (_random(2, 3, 5, 4) + 5, 2), (_random(2, 3, 5, 4) + 5, 0)],
    {
        "ablates a token": lambda out_h, head: _ablated(out_h, lambda seq: seq != head, axis=2),
        "ablates the others": lambda out_h, head: _ablated(out_h, lambda heads: heads == head),
        "ablates the batch": lambda out_h, head: _ablated(out_h, lambda b: b != head, axis=0),
        "removes the head": lambda x, head: torch.cat([x[:, :head], x[:, head + 1 :]], dim=1),
    },
)

# 09 what heads cost

score_bytes = Exercise(
    "score_bytes",
    lambda batch, num_heads, seq_q, seq_k, itemsize: batch * num_heads * seq_q * seq_k * itemsize,
    [(2, 3, 5, 7, 4), (1, 12, 1024, 1024, 4), (2, 12, 1, 4096, 2)],
    {
        "heads forgotten": lambda b, n, q, k, size: b * q * k * size,
        "batch forgotten": lambda b, n, q, k, size: n * q * k * size,
        "elements, not bytes": lambda b, n, q, k, size: b * n * q * k,
        "square of seq_q": lambda b, n, q, k, size: b * n * q * q * size,
    },
)
multiplications = Exercise(
    "multiplications",
    lambda batch, seq, d_model, num_heads: 2 * batch * seq * seq * d_model,
    [(2, 5, 12, 3), (2, 5, 12, 1), (1, 128, 512, 8)],
    {
        "grows with num_heads": lambda b, s, d, n: 2 * b * s * s * d * n,
        "shrinks with num_heads": lambda b, s, d, n: 2 * b * s * s * d // n,
        "one product only": lambda b, s, d, n: b * s * s * d,
        "batch forgotten": lambda b, s, d, n: 2 * s * s * d,
        "projections too": lambda b, s, d, n: 2 * b * s * s * d + 4 * b * s * d * d,
    },
)

# 10 spot the pattern


def _gpt(cut: Answer, merge: Answer = mha.merge_heads) -> Answer:
    """A causal block on a fused projection (batch, seq, 3 * d_model)."""

    def block(qkv: Tensor, num_heads: int) -> Tensor:
        out_h = attend_with()(*cut(qkv, num_heads), _causal(qkv.shape[1], qkv.shape[1]))
        out: Tensor = merge(out_h)
        return out

    return block


def _chunked(qkv: Tensor, num_heads: int, split: Answer = mha.split_heads) -> list[Tensor]:
    return [split(x, num_heads) for x in qkv.chunk(3, dim=-1)]


fused_qkv = Exercise(
    "fused_qkv",
    _gpt(_chunked),
    [(_random(1, 3, 12), 2), (_random(2, 5, 36), 3)],
    {
        "split, then chunk": _gpt(lambda qkv, n: mha.split_heads(qkv, n).chunk(3, dim=-1)),
        "wrong split": _gpt(lambda qkv, n: _chunked(qkv, n, wrong_split)),
        "wrong merge": _gpt(_chunked, wrong_merge),
        "wrong split and merge": _gpt(lambda qkv, n: _chunked(qkv, n, wrong_split), wrong_merge),
        "q and v swapped": _gpt(lambda qkv, n: _chunked(qkv, n)[::-1]),
        "mask ignored": lambda qkv, n: mha.merge_heads(attend_with()(*_chunked(qkv, n))),
    },
)


def _grouped(grow: Callable[[Tensor, int], Tensor]) -> Answer:
    def attention(qh: Tensor, kh: Tensor, vh: Tensor) -> Tensor:
        groups = qh.shape[1] // kh.shape[1]
        return mha.scaled_dot_product_attention(qh, grow(kh, groups), grow(vh, groups))

    return attention


grouped_query_attention = Exercise(
    "grouped_query_attention",
    _grouped(lambda x, groups: x.repeat_interleave(groups, dim=1)),
    [
        (_random(b, n, 5, 3), *_qkv(b, n_kv, 5, 3)[1:])
        for b, n, n_kv in ((1, 4, 2), (2, 6, 2), (2, 6, 3), (2, 4, 1))
    ],
    {
        "repeat for repeat_interleave": _grouped(lambda x, groups: x.repeat(1, groups, 1, 1)),
        "one head only": _grouped(lambda x, groups: x[:, :1]),
        "mean over heads": _grouped(lambda x, groups: x.mean(dim=1, keepdim=True)),
        "keys do not broadcast": _grouped(lambda x, groups: x),
    },
)
heads_last = Exercise(
    "heads_last",
    attend_with(enter=turned, leave=turned),
    [_qkv(1, 3, 2, 4), _qkv(2, 5, 3, 4), _qkv(2, 3, 3, 4)],
    {
        "heads attend to heads": attend_with(),
        "not transposed back": attend_with(enter=turned),
        "wrong merge": attend_with(enter=turned, leave=misread),
        "wrong split": attend_with(enter=misread, leave=turned),
    },
)
per_head_masks = Exercise(
    "per_head_masks",
    lambda mask, num_heads: mask.repeat_interleave(num_heads, dim=0),
    [(_mask(2, 2, 3), 3), (_mask(3, 4, 5), 2), (_mask(3, 3, 3), 3)],
    {
        "repeat for repeat_interleave": lambda mask, n: mask.repeat(n, 1, 1),
        "not folded": lambda mask, n: mask.unsqueeze(1).expand(-1, n, -1, -1),
        "mask reversed": lambda mask, n: ~mask.repeat_interleave(n, dim=0),
        "heads forgotten": lambda mask, n: mask,
    },
)


def _rows(x: Tensor) -> Tensor:
    batch, height, width, d_model = x.shape
    y = x.reshape(batch * height, width, d_model)
    return mha.scaled_dot_product_attention(y, y, y).view(x.shape)


attend_along_rows = Exercise(
    "attend_along_rows",
    _rows,
    [(_random(1, 2, 3, 4),), (_random(2, 3, 5, 4),), (_random(2, 3, 3, 4),)],
    {
        "columns attend": lambda x: turned(_rows(turned(x))),
        "all pixels attend": lambda x: _rows(x.flatten(1, 2)[:, None]).view(x.shape),
        "wrong split": lambda x: misread(_rows(misread(x))),
        "not unfolded": lambda x: _rows(x).flatten(0, 1),
    },
)


def _decode(align: Callable[[int, int], Tensor]) -> Answer:
    def attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
        mask = align(q.shape[1], k.shape[1]).expand(len(q), -1, -1)
        return mha.multi_head_attention(q, k, v, num_heads, mask)

    return attention


decode = Exercise(
    "decode",
    _decode(_causal),
    [
        (_random(b, seq_q, d), *_qkv(b, seq_k, d)[1:], n)
        for b, seq_q, seq_k, d, n in ((1, 1, 3, 4, 2), (2, 2, 5, 12, 3), (2, 4, 4, 6, 2))
    ],
    {
        "upper-left": _decode(lambda q, k: _causal(q, q).new_ones(q, k).tril()),
        "mask ignored": _decode(lambda q, k: torch.ones(q, k, dtype=torch.bool)),
        "mask reversed": _decode(lambda q, k: ~_causal(q, k)),
        "strictly causal": _decode(lambda q, k: _causal(q, k).tril(k - q - 1)),
    },
)

EXERCISES = {x.name: x for x in list(globals().values()) if isinstance(x, Exercise)}
