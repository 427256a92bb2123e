"""Each exercise passes what is right in many styles, and names or refuses what is wrong."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor, nn
from torch.nn import functional

import mha
from mha.check import EXERCISES

Answer = Callable[..., Any]
sdpa: Answer = functional.scaled_dot_product_attention


def rolled(answer: Answer, shift: int) -> Answer:
    """The tokens of a result moved on: a right shape, and few right numbers."""
    return lambda *args: answer(*args).roll(shift, dims=-2)


# ---- parts in several styles

SPLITS: list[Answer] = [
    lambda x, n: x.view(*x.shape[:2], n, x.shape[2] // n).transpose(1, 2),
    lambda x, n: x.reshape(len(x), -1, n, x.shape[2] // n).permute(0, 2, 1, 3),
    lambda x, n: x.unflatten(-1, (n, -1)).swapaxes(1, 2),
    lambda x, n: torch.stack(x.chunk(n, dim=-1), dim=1),
    lambda x, n: torch.stack(x.split(x.shape[-1] // n, dim=-1), 1),
    lambda x, n: torch.stack(x.tensor_split(n, dim=2)).transpose(0, 1),
    lambda x, n: torch.cat([part[:, None] for part in x.chunk(n, -1)], dim=1).contiguous(),
    lambda x, n: rearrange(x, "b s (h d) -> b h s d", h=n),
    lambda x, n: einsum(x.unflatten(2, (n, -1)), "b s h d -> b h s d"),
    lambda x, n: x.unfold(2, x.shape[2] // n, x.shape[2] // n).movedim(2, 1),
    lambda x, n: torch.from_numpy(
        x.numpy().reshape(*x.shape[:2], n, -1).transpose(0, 2, 1, 3).copy()),
    lambda x, n: torch.stack([torch.stack([row.view(n, -1) for row in y], 1) for y in x]),
    lambda x, n: x.mT.unflatten(1, (n, -1)).mT,
    lambda x, n: torch.vmap(lambda y: y.unflatten(-1, (n, -1)).transpose(0, 1))(x),
]  # fmt: skip
MERGES: list[Answer] = [
    lambda x: x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1),
    lambda x: x.transpose(1, 2).reshape(len(x), x.shape[2], x.shape[1] * x.shape[3]),
    lambda x: x.permute(0, 2, 1, 3).flatten(2),
    lambda x: x.movedim(1, 2).flatten(-2),
    lambda x: torch.cat(x.unbind(1), dim=-1),
    lambda x: torch.cat([x[:, h] for h in range(x.shape[1])], dim=2),
    lambda x: rearrange(x, "b h s d -> b s (h d)"),
    lambda x: einsum(x, "b h s d -> b s h d").flatten(2),
    lambda x: torch.dstack(x.unbind(1)),
    lambda x: torch.from_numpy(np.concatenate([*np.moveaxis(x.numpy(), 1, 0)], axis=-1)),
    lambda x: x.mT.flatten(1, 2).mT,
    lambda x: torch.stack([torch.stack([y[:, t].reshape(-1) for t in range(y.shape[1])])
                           for y in x]),
]  # fmt: skip


def by_bmm(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = torch.bmm(q.flatten(0, -3), k.flatten(0, -3).mT).view(*q.shape[:-1], k.shape[-2])
    scores = scores * q.shape[-1] ** -0.5
    scores = scores if mask is None else torch.where(mask, scores, torch.tensor(-1e9))
    return torch.bmm(scores.softmax(-1).flatten(0, -3), v.flatten(0, -3)).view(q.shape)


def by_exp(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).exp()
    weights = weights if mask is None else weights * mask
    return (weights / weights.sum(-1, keepdim=True)) @ v


def by_bias(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    bias: Any = 0.0 if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    scores = einsum(q, k, "... q d, ... k d -> ... q k") / q.size(-1) ** 0.5
    return einsum(functional.softmax(scores + bias, -1), v, "... q k, ... k d -> ... q d")


def by_scaled_q(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (q * q.shape[-1] ** -0.5).matmul(k.transpose(-2, -1))
    scores = scores if mask is None else scores.masked_fill(mask == 0, float("-inf"))
    return torch.matmul(scores.softmax(dim=-1), v)


def in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT
    scores /= q.shape[-1] ** 0.5
    if mask is not None:
        scores.masked_fill_(mask.logical_not(), torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


def in_numpy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q.numpy() @ k.numpy().swapaxes(-1, -2) / np.float32(math.sqrt(q.shape[-1]))
    scores = scores if mask is None else np.where(mask.numpy(), scores, np.float32(-1e9))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy(weights / weights.sum(-1, keepdims=True) @ v.numpy())


def row_by_row(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    rows = []
    for i in range(q.shape[-2]):
        score = (q[..., i : i + 1, :] * k).sum(-1) / math.sqrt(q.shape[-1])
        if mask is not None:
            row = mask if mask.ndim < 2 or mask.shape[-2] == 1 else mask[..., i : i + 1, :]
            score = score.masked_fill(~row.squeeze(-2), -math.inf)
        rows.append((score.softmax(-1)[..., None] * v).sum(-2))
    return torch.stack(rows, dim=-2)


ATTENDS: list[Answer] = [
    sdpa, by_exp, by_bias, by_scaled_q, in_place, in_numpy, row_by_row,
    lambda q, k, v, mask=None: sdpa(q, k, v, attn_mask=mask, scale=q.shape[-1] ** -0.5),
    lambda q, k, v, mask=None: sdpa(
        q.double(), k.double(), v.double(), mask).float(),
    mha.scaled_dot_product_attention,
]  # fmt: skip


def in_heads(split: Answer, merge: Answer, attend: Answer) -> Answer:
    def attention(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Tensor | None = None) -> Any:
        heads = (split(x, n) for x in (q, k, v))
        return merge(attend(*heads, None if mask is None else mask[:, None]))

    return attention


def _by_loop(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Tensor | None = None) -> Tensor:
    parts = zip(*(x.chunk(n, -1) for x in (q, k, v)), strict=True)
    return torch.cat([sdpa(*part, mask) for part in parts], dim=-1)


by_loop: Answer = _by_loop


def folded(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Tensor | None = None) -> Tensor:
    q, k, v = (rearrange(x, "b s (h d) -> (b h) s d", h=n) for x in (q, k, v))
    mask = None if mask is None else mask.repeat_interleave(n, dim=0)
    return rearrange(by_bmm(q, k, v, mask), "(b h) s d -> b s (h d)", h=n)


MULTI_HEADS: list[Answer] = [
    by_loop, folded, mha.multi_head_attention,
    *(in_heads(*parts) for parts in zip(SPLITS, MERGES, ATTENDS)),  # noqa: B905
    *(in_heads(*parts) for parts in zip(SPLITS[::-1], MERGES[::-1], ATTENDS)),  # noqa: B905
]  # fmt: skip


def last_rows(seq_q: int, seq_k: int) -> Tensor:
    return torch.ones(seq_k, seq_k, dtype=torch.bool).tril()[seq_k - seq_q :]


def under(mask: Answer, attention: Answer) -> Answer:
    """Takes q, k, v and num_heads; a mask for all of the batch."""
    return lambda q, k, v, n: attention(
        q, k, v, n, mask(q.shape[1], k.shape[1]).expand(len(q), -1, -1)
    )


def packed(module: nn.MultiheadAttention, x: Tensor) -> Any:
    return functional.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, dim=-1)


def by_torch(module: nn.MultiheadAttention, x: Tensor, mask: Tensor | None = None) -> Any:
    ignore = None if mask is None else ~mask.repeat_interleave(module.num_heads, 0)
    x = x.transpose(0, 1)
    weights = (module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0)
    out = (module.out_proj.weight, module.out_proj.bias)
    return functional.multi_head_attention_forward(
        x, x, x, module.embed_dim, module.num_heads, *weights, *out, attn_mask=ignore
    )[0].transpose(0, 1)


def merging(step: Callable[[Tensor], Any]) -> Answer:
    """Whether the two axes, moved to the front, can be merged by this step."""

    def can(shape: tuple[int, ...], strides: tuple[int, ...], axis: int) -> bool:
        x = torch.empty_strided(shape, strides)
        try:
            step(x.movedim((axis, axis + 1), (0, 1)))
        except RuntimeError:
            return False
        return True

    return can


def accumulated(shape: tuple[int, ...]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def filled(lengths: Tensor, seq_q: int, seq_k: int) -> Tensor:
    mask = torch.zeros(len(lengths), seq_q, seq_k, dtype=torch.bool)
    for i, length in enumerate(lengths):
        mask[i, :, :length] = True
    return mask


def zeroed(out_h: Tensor, head: int) -> Tensor:
    out = out_h.clone()
    out[:, head] = 0
    return out


def token_by_token(attention: Answer, x: Tensor, order: Tensor) -> bool:
    once, again = attention(x), attention(x[:, order])
    return all(torch.allclose(again[:, i], once[:, j]) for i, j in enumerate(order.tolist()))


def flops(b: int, s: int, d: int, n: int) -> int:
    return sum(s * s * (d // n) for _ in range(b * n)) * 2


RIGHT: dict[str, list[Answer]] = {
    "weighted_average": [
        torch.matmul, torch.bmm, operator.matmul,
        lambda w, v: torch.einsum("bqk,bkd->bqd", w, v),
        lambda w, v: einsum(w, v, "b q k, b k d -> b q d"),
        lambda w, v: (w[..., None] * v[:, None]).sum(dim=2),
        lambda w, v: torch.stack([a @ b for a, b in zip(w, v, strict=True)]),
        lambda w, v: (v.mT @ w.mT).mT,
        lambda w, v: torch.from_numpy(w.numpy() @ v.numpy()),
        lambda w, v: sum(w[:, :, i, None] * v[:, None, i] for i in range(v.shape[1])),
        lambda w, v: torch.baddbmm(torch.zeros(()), w, v),
    ],
    "attention_weights": [
        mha.attention_weights,
        *(lambda q, k, f=f: f(q, k, torch.eye(k.shape[1]).expand(len(k), -1, -1))
          for f in (sdpa, by_exp, by_bias, by_scaled_q, row_by_row)),
        lambda q, k: functional.softmax(torch.bmm(q, k.mT) / q.size(-1) ** 0.5, dim=2),
        lambda q, k: torch.softmax(torch.einsum("bid,bjd->bij", q, k) * q.shape[2] ** -0.5, -1),
        lambda q, k: (k @ q.mT / math.sqrt(k.shape[2])).softmax(1).mT,
        lambda q, k: torch.stack([(a @ b.T / len(b.T) ** 0.5).softmax(1)
                                  for a, b in zip(q, k, strict=True)]),
        lambda q, k: (q @ k.permute(0, 2, 1) / np.sqrt(q.shape[-1])).log_softmax(-1).exp(),
    ],
    "contiguous_strides": [
        accumulated, lambda shape: tuple(accumulated(shape)),
        lambda shape: torch.zeros(shape, device="meta").stride(),
        lambda shape: torch.arange(math.prod(shape)).view(shape).stride(),
        lambda shape: tuple(s // 4 for s in np.zeros(shape, np.float32).strides),
        lambda shape: [math.prod(shape[i + 1 :]) for i in range(len(shape))],
        lambda shape: [functools.reduce(operator.mul, shape[i:], 1)
                       for i in range(1, len(shape) + 1)],
        lambda shape: np.cumprod([1, *shape[:0:-1]])[::-1].tolist(),
    ],
    "element": [
        lambda index, strides, offset: offset + sum(map(operator.mul, index, strides)),
        lambda index, strides, offset: offset + math.sumprod(index, strides)
        if hasattr(math, "sumprod") else offset + sum(map(math.prod, zip(index, strides))),  # noqa: B905
        lambda index, strides, offset: int(np.dot(index, strides)) + offset,
        lambda index, strides, offset: torch.tensor(index) @ torch.tensor(strides) + offset,
        lambda index, strides, offset: functools.reduce(
            lambda at, step: at + step[0] * step[1], zip(index, strides, strict=True), offset),
        lambda index, strides, offset: torch.arange(999).as_strided(
            [9] * len(index), strides, offset)[index].item(),
    ],
    "can_merge": [
        merging(lambda x: x.view(-1, *x.shape[2:])),
        merging(lambda x: x.view(x.shape[0] * x.shape[1], *x.shape[2:])),
        lambda shape, strides, i: (shape[i] == 1 or shape[i + 1] == 1
                                   or (strides[i] // shape[i + 1] == strides[i + 1]
                                   and strides[i] % shape[i + 1] == 0)),
        lambda shape, strides, i: any([min(shape[i : i + 2]) == 1,
                                       strides[i] - strides[i + 1] * shape[i + 1] == 0]),
        lambda shape, strides, i: (1 in shape[i : i + 2]
                                   or strides[i] == math.prod([shape[i + 1], strides[i + 1]])),
    ],
    "split_heads": SPLITS,
    "head_of": [
        lambda f, d, n: f // (d // n),
        lambda f, d, n: f * n // d,
        lambda f, d, n: int(f / (d / n)),
        lambda f, d, n: math.floor(f / d * n + 1e-9),
        lambda f, d, n: divmod(f, d // n)[0],
        lambda f, d, n: (f - f % (d // n)) // (d // n),
        lambda f, d, n: torch.arange(d).view(n, -1).eq(f).nonzero()[0, 0],
        lambda f, d, n: [h for h in range(n) for _ in range(d // n)][f],
        lambda f, d, n: next(h for h in range(n) if f < (h + 1) * (d // n)),
        lambda f, d, n: np.repeat(np.arange(n), d // n)[f],
        lambda f, d, n: torch.div(torch.tensor(f), d // n, rounding_mode="floor").item(),
    ],
    "one_head": [
        *(lambda x, head, n, f=f: f(x, n)[:, head] for f in SPLITS),
        lambda x, head, n: x[:, :, head * (x.shape[2] // n) : (head + 1) * (x.shape[2] // n)],
        lambda x, head, n: x.narrow(2, head * (x.shape[2] // n), x.shape[2] // n),
        lambda x, head, n: x.split(x.shape[-1] // n, -1)[head],
        lambda x, head, n: x.index_select(2, torch.arange(x.shape[2]).chunk(n)[head]),
    ],
    "attend_per_head": [
        *ATTENDS, by_bmm,
        lambda q, k, v: torch.stack(
            [sdpa(*head) for head in zip(*(x.unbind(1) for x in (q, k, v)), strict=True)], 1),
        lambda q, k, v: torch.cat([sdpa(q[:, [h]], k[:, [h]], v[:, [h]])
                                   for h in range(q.shape[1])], dim=1),
    ],
    "fold_heads": [
        lambda x: x.reshape(-1, *x.shape[2:]),
        lambda x: x.contiguous().view(x.shape[0] * x.shape[1], x.shape[2], x.shape[3]),
        lambda x: x.clone(memory_format=torch.contiguous_format).view(-1, *x.shape[-2:]),
        lambda x: x.flatten(0, 1), lambda x: x.flatten(end_dim=1),
        lambda x: torch.cat(x.unbind(0)), lambda x: torch.cat([*x]), lambda x: torch.vstack([*x]),
        lambda x: rearrange(x, "b h s d -> (b h) s d"),
        lambda x: torch.stack([head for y in x for head in y]),
        lambda x: torch.from_numpy(x.numpy().reshape(-1, *x.shape[2:])),
    ],
    "causal_mask": [
        last_rows,
        lambda q, k: torch.arange(k) <= torch.arange(k - q, k)[:, None],
        lambda q, k: ~torch.ones(q, k, dtype=torch.bool).triu(k - q + 1),
        lambda q, k: torch.tril(torch.ones(q, k), diagonal=k - q).bool(),
        lambda q, k: torch.ones(q, k).tril(k - q) == 1,
        lambda q, k: torch.from_numpy(np.tri(q, k, k - q, dtype=bool)),
        lambda q, k: torch.tensor([[j - i <= k - q for j in range(k)] for i in range(q)]),
        lambda q, k: torch.stack([torch.arange(k) < k - q + i + 1 for i in range(q)]),
        lambda q, k: torch.full((q, k), -math.inf).triu(k - q + 1) == 0,
        lambda q, k: torch.ones(q, k, dtype=torch.bool).flip(0, 1).triu().flip(0, 1),
    ],
    "padding_mask": [
        filled,
        lambda n, q, k: (torch.arange(k)[None] < n[:, None]).unsqueeze(1).repeat(1, q, 1),
        lambda n, q, k: (torch.arange(k) < n[:, None, None]).expand(len(n), q, k),
        lambda n, q, k: repeat(torch.arange(k) < n[:, None], "b k -> b q k", q=q),
        lambda n, q, k: torch.stack([torch.arange(k).lt(i).expand(q, k) for i in n]),
        lambda n, q, k: torch.tensor([[[j < i for j in range(k)]] * q for i in n.tolist()]),
        lambda n, q, k: ~(torch.arange(k).view(1, 1, k) >= n.view(-1, 1, 1)).repeat(1, q, 1),
        lambda n, q, k: torch.ones(k, k + 1, dtype=torch.bool).triu(1).T[n][:, None].expand(
            -1, q, -1),
        lambda n, q, k: torch.from_numpy(np.broadcast_to(
            np.arange(k) < n.numpy()[:, None, None], (len(n), q, k)).copy()),
        lambda n, q, k: torch.cat([torch.tensor([[[True] * i + [False] * (k - i)] * q])
                                   for i in n.tolist()]),
    ],
    "scaled_dot_product_attention": ATTENDS,
    "masked_softmax": [
        lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(),
        lambda s, mask: s.masked_fill(~mask, -1e9).softmax(dim=-1) * mask,
        lambda s, mask: torch.where(mask, s, -math.inf).softmax(-1).nan_to_num(0.0),
        lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(-1).where(mask, torch.tensor(0.0)),
        lambda s, mask: s.exp() * mask / (s.exp() * mask).sum(-1, keepdim=True).clamp(min=1e-30),
        lambda s, mask: torch.softmax(s + (~mask) * -1e9, -1).masked_fill(~mask, 0),
        lambda s, mask: mha.attention_weights(
            s * s.shape[-1] ** 0.5, torch.eye(s.shape[-1]), mask.expand(s.shape)),
        lambda s, mask: functional.softmax(
            s.masked_fill(~mask, torch.finfo(s.dtype).min), -1) * mask.any(-1, keepdim=True),
        lambda s, mask: torch.nan_to_num(
            (s.softmax(-1) * mask) / (s.softmax(-1) * mask).sum(-1, keepdim=True)),
        lambda s, mask: sdpa(s * s.shape[-1] ** 0.5, torch.eye(s.shape[-1]).expand(
            *s.shape[:-2], -1, -1), torch.eye(s.shape[-1]).expand(*s.shape[:-2], -1, -1), mask),
    ],
    "merge_heads": MERGES,
    "permutation_test": [
        token_by_token,
        lambda f, x, order: torch.allclose(f(x[:, order]), f(x)[:, order], rtol=1e-4),
        lambda f, x, order: (f(x[:, order]) - f(x)[:, order]).abs().max().item() < 1e-5,
        lambda f, x, order: torch.allclose(f(x[:, order])[:, order.argsort()], f(x), atol=1e-5),
        lambda f, x, order: torch.isclose(f(x[:, order]), f(x)[:, order], atol=1e-5).all(),
        lambda f, x, order: bool(((f(x[:, order]) - f(x)[:, order]) ** 2).sum() < 1e-6),
        lambda f, x, order: np.allclose(f(x[:, order]), f(x)[:, order], atol=1e-5),
        lambda f, x, order: torch.equal(
            f(x[:, order]).mul(1e3).round(), f(x)[:, order].mul(1e3).round()),
        lambda f, x, order: torch.allclose(
            f(x.index_select(1, order)), f(x).index_select(1, order), atol=1e-4),
        lambda f, x, order: torch.dist(f(x[:, order]), f(x)[:, order]).item() < 1e-4,
    ],
    "multi_head_attention": MULTI_HEADS,
    "match_torch": [
        by_torch,
        *(lambda m, x, mask=None, f=f: m.out_proj(f(*packed(m, x), m.num_heads, mask))
          for f in MULTI_HEADS[:8]),
        lambda m, x, mask=None: by_loop(
            *(x @ w.T + b for w, b in zip(
                m.in_proj_weight.view(3, *x.shape[2:], -1), m.in_proj_bias.view(3, -1),
                strict=True)),
            m.num_heads, mask) @ m.out_proj.weight.T + m.out_proj.bias,
        lambda m, x, mask=None: functional.linear(MERGES[0](sdpa(
            *(SPLITS[2](y, m.num_heads) for y in packed(m, x)),
            None if mask is None else mask[:, None])), m.out_proj.weight, m.out_proj.bias),
    ],
    "sum_over_heads": [
        lambda out_h, w: (out_h @ w.view(out_h.shape[1], out_h.shape[3], -1)).sum(1),
        lambda out_h, w: sum(a @ b for a, b in zip(
            out_h.unbind(1), w.chunk(out_h.shape[1]), strict=True)),
        lambda out_h, w: sum(out_h[:, h] @ w[h * out_h.shape[3] : (h + 1) * out_h.shape[3]]
                             for h in range(out_h.shape[1])),
        lambda out_h, w: torch.einsum(
            "bhsd,hdw->bsw", out_h, w.unflatten(0, (out_h.shape[1], -1))),
        lambda out_h, w: einsum(out_h, rearrange(w, "(h d) w -> h d w", h=out_h.shape[1]),
                                "b h s d, h d w -> b s w"),
        lambda out_h, w: torch.stack([a @ b for a, b in zip(
            out_h.unbind(1), w.split(out_h.shape[3]), strict=True)]).sum(0),
        lambda out_h, w: reduce(
            out_h @ w.reshape(out_h.shape[1], -1, w.shape[1]), "b h s w -> b s w", "sum"),
        lambda out_h, w: torch.tensordot(
            out_h, w.view(out_h.shape[1], -1, w.shape[1]), dims=([1, 3], [0, 1])),
        lambda out_h, w: functools.reduce(torch.add, [
            functional.linear(a, b.T) for a, b in zip(
                out_h.unbind(1), w.chunk(out_h.shape[1]), strict=True)]),
        # the numbers cannot tell that it merges
        *(lambda out_h, w, f=f: f(out_h) @ w for f in MERGES[:3]),
    ],
    "previous_token": [
        lambda w: w.diagonal(-1, 1, 2).mean(1),
        lambda w: torch.diagonal(w, offset=-1, dim1=-2, dim2=-1).mean(-1),
        lambda w: w[:, 1:, :-1].diagonal(dim1=1, dim2=2).mean(-1),
        lambda w: w[:, torch.arange(1, w.shape[1]), torch.arange(w.shape[1] - 1)].mean(-1),
        lambda w: torch.stack([w[:, i, i - 1] for i in range(1, w.shape[1])], -1).mean(-1),
        lambda w: torch.tensor([sum(a[i, i - 1].item() for i in range(1, len(a))) / (len(a) - 1)
                                for a in w]),
        lambda w: torch.einsum("hii->h", w[:, 1:, :-1]) / (w.shape[1] - 1),
        lambda w: torch.stack([a.diag(-1).mean() for a in w]),
        lambda w: (w * torch.eye(w.shape[1]).roll(-1, 1).tril()).sum((1, 2)) / (w.shape[1] - 1),
        lambda w: torch.from_numpy(np.diagonal(w.numpy(), -1, 1, 2).mean(-1)),
        lambda w: w[:, 1:].gather(2, torch.arange(w.shape[1] - 1)[None, :, None].expand(
            len(w), -1, 1)).mean((1, 2)),
    ],
    "ablate_head": [
        zeroed,
        lambda x, head: x.index_fill(1, torch.tensor([head]), 0),
        lambda x, head: x * (torch.arange(x.shape[1]) != head)[:, None, None],
        lambda x, head: x.masked_fill((torch.arange(x.shape[1]) == head).view(1, -1, 1, 1), 0),
        lambda x, head: torch.where(
            torch.arange(x.shape[1]).view(-1, 1, 1) == head, torch.zeros(()), x),
        lambda x, head: torch.cat([x[:, :head], 0 * x[:, head, None], x[:, head + 1 :]], 1),
        lambda x, head: torch.stack([y * (h != head) for h, y in enumerate(x.unbind(1))], 1),
        lambda x, head: x.select_scatter(torch.zeros_like(x[:, head]), 1, head),
        lambda x, head: torch.einsum("bhsd,h->bhsd", x, 1 - functional.one_hot(
            torch.tensor(head), x.shape[1]).float()),
        lambda x, head: x - x * functional.one_hot(
            torch.tensor(head), x.shape[1])[:, None, None],
        lambda x, head: torch.from_numpy(np.stack([
            y if h != head else np.zeros_like(y)
            for h, y in enumerate(np.moveaxis(x.numpy(), 1, 0))], axis=1)),
    ],
    "score_bytes": [
        lambda *sizes: math.prod(sizes), lambda *sizes: int(np.prod(sizes)),
        lambda *sizes: functools.reduce(operator.mul, sizes),
        lambda b, n, q, k, size: torch.empty(b, n, q, k, device="meta").numel() * size,
        lambda b, n, q, k, size: sum(q * k * size for _ in range(b * n)),
    ],
    "multiplications": [
        flops, lambda b, s, d, n: 2 * b * s**2 * d,
        lambda b, s, d, n: b * n * s * s * (d // n) + b * n * s * (d // n) * s,
        lambda b, s, d, n: 2 * b * n * s * s * d / n,
        lambda b, s, d, n: int(np.prod([2, b, s, s, d])),
    ],
    "fused_qkv": [
        *(lambda x, n, f=f: under(last_rows, f)(*x.chunk(3, dim=-1), n) for f in MULTI_HEADS[:8]),
        lambda x, n: under(last_rows, by_loop)(*x.split(x.shape[-1] // 3, dim=2), n),
        lambda x, n: under(last_rows, by_loop)(*x.unflatten(2, (3, -1)).unbind(2), n),
        lambda x, n: rearrange(sdpa(
            *rearrange(x, "b s (three h d) -> three b h s d", three=3, h=n), is_causal=True),
            "b h s d -> b s (h d)"),
        lambda x, n: MERGES[0](sdpa(*x.view(*x.shape[:2], 3, n, -1).permute(2, 0, 3, 1, 4),
                                    is_causal=True)),
    ],
    "grouped_query_attention": [
        functools.partial(sdpa, enable_gqa=True),
        *(lambda q, k, v, f=f: f(q, *(x.repeat_interleave(q.shape[1] // x.shape[1], 1)
                                      for x in (k, v))) for f in ATTENDS),
        lambda q, k, v: sdpa(q, *(x[:, :, None].expand(
            -1, -1, q.shape[1] // x.shape[1], -1, -1).flatten(1, 2) for x in (k, v))),
        lambda q, k, v: sdpa(q, *(repeat(x, "b h s d -> b (h g) s d", g=q.shape[1] // x.shape[1])
                                  for x in (k, v))),
        lambda q, k, v: sdpa(q.unflatten(1, (k.shape[1], -1)), k[:, :, None].expand(
            -1, -1, q.shape[1] // k.shape[1], -1, -1), v[:, :, None].expand(
            -1, -1, q.shape[1] // k.shape[1], -1, -1)).flatten(1, 2),
        lambda q, k, v: torch.stack([
            sdpa(q[:, h], k[:, h * k.shape[1] // q.shape[1]], v[:, h * k.shape[1] // q.shape[1]])
            for h in range(q.shape[1])], dim=1),
    ],
    "heads_last": [
        *(lambda q, k, v, f=f: f(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
          for f in ATTENDS),
        lambda q, k, v: rearrange(sdpa(*(rearrange(x, "b s h d -> b h s d") for x in (q, k, v))),
                                  "b h s d -> b s h d"),
        lambda q, k, v: torch.einsum("bhqk,bkhd->bqhd", (
            torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5).softmax(-1), v),
        lambda q, k, v: torch.stack([sdpa(q[:, :, h], k[:, :, h], v[:, :, h])
                                     for h in range(q.shape[2])], dim=2),
        lambda q, k, v: by_loop(*(x.flatten(2) for x in (q, k, v)), q.shape[2]).view(q.shape),
    ],
    "per_head_masks": [
        lambda mask, n: mask.repeat_interleave(n, 0),
        lambda mask, n: mask[:, None].expand(-1, n, -1, -1).reshape(-1, *mask.shape[1:]),
        lambda mask, n: mask.unsqueeze(1).repeat(1, n, 1, 1).flatten(0, 1),
        lambda mask, n: repeat(mask, "b q k -> (b h) q k", h=n),
        lambda mask, n: torch.stack([m for m in mask for _ in range(n)]),
        lambda mask, n: torch.cat([m.expand(n, -1, -1) for m in mask]),
        lambda mask, n: mask[torch.arange(len(mask)).repeat_interleave(n)],
        lambda mask, n: mask[torch.arange(len(mask) * n) // n],
        lambda mask, n: torch.stack([mask] * n, dim=1).flatten(0, 1),
        lambda mask, n: torch.from_numpy(np.repeat(mask.numpy(), n, axis=0)),
    ],
    "attend_along_rows": [
        *(lambda x, f=f: f(x, x, x) for f in ATTENDS[:-1]),
        lambda x: sdpa(*[x.flatten(0, 1)] * 3).view(x.shape),
        lambda x: sdpa(*[x.view(-1, *x.shape[2:])] * 3).unflatten(0, x.shape[:2]),
        lambda x: rearrange(sdpa(*[rearrange(x, "b h w d -> (b h) w d")] * 3),
                            "(b h) w d -> b h w d", b=len(x)),
        lambda x: torch.stack([sdpa(x[:, i], x[:, i], x[:, i]) for i in range(x.shape[1])], 1),
        lambda x: torch.stack([torch.stack([sdpa(row, row, row) for row in y]) for y in x]),
    ],
    "decode": [
        *(under(last_rows, f) for f in MULTI_HEADS),
        lambda q, k, v, n: by_loop(torch.cat([k[:, : k.shape[1] - q.shape[1]], q], 1), k, v, n,
                                   last_rows(k.shape[1], k.shape[1]).expand(len(q), -1, -1)
                                   )[:, -q.shape[1] :],
        lambda q, k, v, n: torch.cat([
            by_loop(q[:, [i]], *(x[:, : k.shape[1] - q.shape[1] + i + 1] for x in (k, v)), n)
            for i in range(q.shape[1])], dim=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EXERCISES)
def test_what_is_right_passes_in_every_style(name: str) -> None:
    verdicts = [EXERCISES[name](answer) for answer in RIGHT[name]]
    assert [(i, v) for i, v in enumerate(verdicts) if not v.passed] == []
    assert len(verdicts) >= 5


# ---- what learners write, by exercise: an answer, and its name or None where it has none


def cached_by_shape(answer: Answer) -> Answer:
    """Remembers what it gave to the same shapes."""
    memory: dict[Any, Any] = {}

    def remembers(*args: Any) -> Any:
        key = repr([x.shape if isinstance(x, Tensor) else type(x) for x in args])
        return memory.setdefault(key, answer(*args))

    return remembers


def rounded(answer: Answer) -> Answer:
    """Numbers moved, by way of bfloat16."""
    return lambda *args: answer(
        *(x.bfloat16() if isinstance(x, Tensor) else x for x in args)
    ).float()


def contiguous_only(answer: Answer) -> Answer:
    """Reads the memory of its arguments in order, whatever their strides."""

    def flat(x: Any) -> Any:
        return (
            torch.as_strided(x, x.shape, torch.empty(x.shape).stride())
            if isinstance(x, Tensor)
            else x
        )

    return lambda *args: answer(*map(flat, args))


def own_heads(split: Answer, *wrong: int) -> Answer:
    """Attention in which q, k or v, by its number, is split like this."""

    def attention(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Tensor | None = None) -> Tensor:
        qh, kh, vh = ((split if i in wrong else SPLITS[3])(x, n) for i, x in enumerate((q, k, v)))
        merged: Tensor = MERGES[4](by_bias(qh, kh, vh, None if mask is None else mask[:, None]))
        return merged

    return attention


def square_mask(attention: Answer, axes: int = 0) -> Answer:
    """Makes a mask (seq_q, seq_q) where none is given."""

    def square(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        *heads, mask = rest if rest and isinstance(rest[-1], Tensor) else (*rest, None)
        if mask is None:
            mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).expand(
                *q.shape[:axes], -1, -1
            )
        return attention(q, k, v, *heads, mask)

    return square


def folded_with(spread: Answer) -> Answer:
    """Heads folded into the batch, with this mask."""

    def attention(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Tensor | None = None) -> Any:
        q, k, v = (rearrange(x, "b s (h d) -> (b h) s d", h=n) for x in (q, k, v))
        out = sdpa(q, k, v, None if mask is None else spread(mask, n))
        return rearrange(out, "(b h) s d -> b s (h d)", h=n)

    return attention


def one_wide(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Tensor | None = None) -> Any:
    return sdpa(q, k, v, mask)


def always_causal(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    seen = last_rows(q.shape[-2], k.shape[-2])
    mask = rest[-1] if rest and isinstance(rest[-1], Tensor) else None
    attention = by_loop if rest and isinstance(rest[0], int) else sdpa
    seen = seen if mask is None else mask & seen
    return attention(q, k, v, *(x for x in rest if isinstance(x, int)), seen)


def wrong_split(x: Tensor, n: int) -> Any:
    return rearrange(x.flatten(1), "b (h s d) -> b h s d", h=n, s=x.shape[1])


def causal_in(attention: Answer, mask: Answer = last_rows) -> Answer:
    return lambda qkv, n: under(mask, attention)(*qkv.chunk(3, dim=-1), n)


def matched(attention: Answer) -> Answer:
    return lambda m, x, mask=None: m.out_proj(attention(*packed(m, x), m.num_heads, mask))


def calling(m: nn.MultiheadAttention, x: Tensor, mask: Tensor | None = None) -> Any:
    ignore = None if mask is None else ~mask.repeat_interleave(m.num_heads, 0)
    return m(x, x, x, attn_mask=ignore, need_weights=False)[0]


def diagonal(shift: Callable[[int, int], int]) -> Answer:
    return lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(shift(q, k))


SWAPS: dict[str, Answer] = {
    "k and v swapped": lambda f: lambda q, k, v, *rest: f(q, v, k, *rest),
    "q and k swapped": lambda f: lambda q, k, v, *rest: f(k, q, v, *rest),
    "q and v swapped": lambda f: lambda q, k, v, *rest: f(v, k, q, *rest),
    "v forgotten": lambda f: lambda q, k, v, *rest: f(q, k, k, *rest),
}
SCALED: dict[str, Callable[[Tensor, Tensor], float]] = {
    "no scale": lambda q, k: 1.0,
    "scaled twice": lambda q, k: 1 / q.shape[-1],
    "scale multiplied": lambda q, k: math.sqrt(q.shape[-1]),
    "scale by seq": lambda q, k: k.shape[-2] ** -0.5,
}
IN_HEADS: list[tuple[str, Answer]] = [
    *((x, in_heads(SPLITS[5], MERGES[3], swap(by_bias))) for x, swap in SWAPS.items()),
    *((x, in_heads(SPLITS[5], MERGES[3], lambda q, k, v, mask=None, scale=scale: sdpa(
        q, k, v, mask, scale=scale(q, k)))) for x, scale in SCALED.items()),
    *((f"wrong split of {x}", own_heads(wrong_split, i)) for i, x in enumerate("qkv")),
    ("wrong split", own_heads(wrong_split, 0, 1, 2)),
    ("num_heads ignored", one_wide),
    ("mask reversed", folded_with(lambda mask, n: ~mask.repeat_interleave(n, 0))),
]  # fmt: skip

WRONG: dict[str, list[tuple[str | None, Answer]]] = {
    "weighted_average": [
        ("averaged twice", lambda w, v: torch.einsum("bqk,bkd->bqd", w, v) / w.shape[-1]),
        ("not transposed", lambda w, v: torch.bmm(w.transpose(1, 2), v)),
        ("plain mean", lambda w, v: v.mean(1)[:, None].repeat(1, w.shape[1], 1)),
        (None, lambda w, v: (w @ v).softmax(-1)),
        (None, lambda w, v: v[0].expand(len(v), -1, -1).new_tensor(0) + w @ v[:1]),
        (None, lambda w, v: (w @ v).mean(1)),
        (None, lambda w, v: v.gather(1, w.argmax(-1)[..., None].expand(-1, -1, v.shape[2]))),
        (None, rolled(torch.matmul, 1)),
    ],
    "attention_weights": [
        *((name, lambda q, k, s=s: (q @ k.mT * s(q, k)).softmax(-1))
          for name, s in SCALED.items()),
        ("softmax over queries", lambda q, k: (q @ k.mT / q.shape[2] ** 0.5).softmax(1)),
        ("no softmax", lambda q, k: torch.bmm(q, k.mT) / q.shape[-1] ** 0.5),
        (None, lambda q, k: (q @ k.mT / q.shape[2] ** 0.5).softmax(0)),
        (None, lambda q, k: (q @ k.mT / q.shape[2] ** 0.5).log_softmax(-1)),
        (None, lambda q, k: (q @ k.mT / q.shape[2] ** 0.5).sigmoid()),
        (None, lambda q, k: (q @ k.mT / q.norm(dim=-1, keepdim=True)).softmax(-1)),
        (None, lambda q, k: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1)),
        (None, lambda q, k: (q @ q.mT / q.shape[2] ** 0.5).softmax(-1)),
        (None, lambda q, k: (torch.cdist(q, k) / q.shape[2] ** 0.5).softmax(-1)),
    ],
    "contiguous_strides": [
        ("back to front", lambda shape: accumulated(shape)[::-1]),
        ("its own size too", lambda shape: [math.prod(shape[i:]) for i in range(len(shape))]),
        ("bytes", lambda shape: np.zeros(shape, np.float32).strides),
        ("next size only", lambda shape: [*shape[1:], 1]),
        (None, lambda shape: accumulated(shape)[:-1]),
        (None, lambda shape: [math.prod(shape[i + 1 :]) - 1 for i in range(len(shape))]),
        (None, lambda shape: [0 if n == 1 else s for n, s in zip(
            shape, accumulated(shape), strict=True)]),
        (None, lambda shape: (shape[1], 1)),
    ],
    "element": [
        ("offset forgotten", lambda index, strides, offset: np.dot(index, strides).item()),
        ("strides ignored", lambda index, strides, offset: sum(index) + offset),
        (None, lambda index, strides, offset: offset + index[0] * strides[0]),
        (None, lambda index, strides, offset: offset * np.dot(index, strides).item()),
        (None, lambda index, strides, offset: offset + math.prod(index)),
        (None, lambda index, strides, offset: offset + sum(
            (i + 1) * s for i, s in zip(index, strides, strict=True))),
    ],
    "can_merge": [
        ("size 1 forgotten", lambda shape, t, i: t[i] == shape[i + 1] * t[i + 1]),
        ("must be contiguous", lambda shape, strides, i: torch.empty_strided(
            shape, strides).is_contiguous() if 1 not in shape else strides == torch.empty(
            shape).stride()),
        ("always", lambda *args: True),
        (None, lambda shape, t, i: 1 in shape[i : i + 2] or t[i] > t[i + 1]),
        (None, lambda shape, t, i: shape[i] == 1 or t[i] == shape[i + 1] * t[i + 1]),
        (None, lambda shape, t, i: shape[i + 1] == 1 or t[i] == shape[i + 1] * t[i + 1]),
        (None, lambda shape, t, i: 1 in shape or t[i] == shape[i + 1] * t[i + 1]),
        (None, lambda shape, t, i: 1 in shape[i : i + 2] or t[i] == shape[i + 1]),
        (None, lambda shape, t, i: 1 in shape[i : i + 2] or t[i] % shape[i + 1] == 0),
        (None, lambda shape, t, i: 0 not in t and merging(
            lambda x: x.view(-1, *x.shape[2:]))(shape, t, i)),
    ],
    "split_heads": [
        ("num_heads ignored", lambda x, n: x[:, None]),
        ("num_heads ignored", lambda x, n: rearrange(x, "b s (h d) -> b h s d", h=1)),
        ("num_heads and head_dim swapped",
         lambda x, n: torch.stack(x.split(n, dim=-1), dim=1)),
        ("num_heads and head_dim swapped",
         lambda x, n: x.view(*x.shape[:2], -1, n).transpose(1, 2)),
        ("no transpose", lambda x, n: x.view(*x.shape[:2], n, -1)),
        ("seq and head_dim swapped", lambda x, n: rearrange(x, "b s (h d) -> b h d s", h=n)),
        ("heads before batch", lambda x, n: torch.stack(x.chunk(n, dim=-1))),
        (None, lambda x, n: x.unflatten(2, (n, -1)).transpose(1, 2).squeeze()),
        (None, lambda x, n: x.unflatten(2, (n, -1)).transpose(1, 2) * 1.0001),
        (None, lambda x, n: x.unflatten(2, (n, -1)).transpose(1, 2).flip(1)),
        (None, lambda x, n: x.chunk(n, dim=-1)),
        (None, lambda x, n: torch.stack(x.chunk(n, dim=1), dim=1)),
        (None, lambda x, n: x.unflatten(2, (3, -1)).transpose(1, 2)),
        (None, rolled(SPLITS[0], 1)),
    ],
    "head_of": [
        ("/ for //", lambda f, d, n: f / (d // n)),
        ("counts from 1", lambda f, d, n: math.ceil((f + 1) / (d // n))),
        ("(d h) order", lambda f, d, n: f - n * (f // n)),
        ("place inside the head", lambda f, d, n: divmod(f, d // n)[1]),
        ("divides by d_model", lambda f, d, n: 0),
        (None, lambda f, d, n: f // (d // 3)),
        (None, lambda f, d, n: f // (d // 4)),
        (None, lambda f, d, n: round(f / (d // n))),
        (None, lambda f, d, n: math.ceil(f / (d // n))),
        (None, lambda f, d, n: (f - 1) // (d // n)),
        (None, lambda f, d, n: f // (d // n) % 3),
        (None, lambda f, d, n: min(f // (d // n), n - 2)),
    ],
    "one_head": [
        ("next head", lambda x, head, n: x[..., (head + 1) * (x.shape[2] // n) :
                                           (head + 2) * (x.shape[2] // n)]),
        ("counts from 1", lambda x, head, n: x.chunk(n, -1)[head - 1]),
        ("first head always", lambda x, head, n: x[..., : x.shape[-1] // n]),
        ("num_heads ignored", lambda x, head, n: x),
        ("axis of size 1 left", lambda x, head, n: SPLITS[0](x, n)[:, [head]]),
        ("one feature", lambda x, head, n: x[:, :, [head]]),
        ("num_heads and head_dim swapped", lambda x, head, n: x[:, :, n * head : n * head + n]),
        (None, lambda x, head, n: x.unflatten(2, (n, -1))[:, head]),
        (None, lambda x, head, n: x.chunk(n, -1)[-1 - head]),
        (None, lambda x, head, n: x.chunk(n, -1)[head].squeeze()),
        (None, lambda x, head, n: x.chunk(3, -1)[head % 3]),
        (None, lambda x, head, n: x[:, :, head * (x.shape[2] // n) :]),
    ],
    "attend_per_head": [
        *((name, swap(sdpa)) for name, swap in SWAPS.items()),
        *((name, lambda q, k, v, s=s: sdpa(q, k, v, scale=s(q, k))) for name, s in SCALED.items()),
        ("always causal", functools.partial(sdpa, is_causal=True)),
        ("num_heads ignored", lambda q, k, v: SPLITS[2](
            sdpa(*(x.transpose(1, 2).flatten(2) for x in (q, k, v))), q.shape[1])),
        ("heads attend to heads", lambda q, k, v: torch.einsum("bshg,bgsd->bhsd", (
            torch.einsum("bhsd,bgsd->bshg", q, k) / q.shape[-1] ** 0.5).softmax(-1), v)),
        (None, lambda q, k, v: sdpa(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v))),
        (None, lambda q, k, v: sdpa(q, k, v).squeeze()),
        (None, lambda q, k, v: sdpa(q, k, v).transpose(1, 2)),
        (None, lambda q, k, v: sdpa(q, k, v).transpose(1, 2).flatten(2)),
        (None, lambda q, k, v: sdpa(*(x.flatten(1, 2) for x in (q, k, v))).view(q.shape)),
        (None, lambda q, k, v: sdpa(*(x.flatten(0, 1)[None] for x in (q, k, v)))),
        (None, lambda q, k, v: sdpa(*(x.flatten(0, 2) for x in (q, k, v))).view(q.shape)),
        (None, lambda q, k, v: sdpa(q, k, v) + q),
        (None, rolled(sdpa, 1)),
    ],
    "fold_heads": [
        ("view raises", lambda x: x.view(-1, *x.shape[2:])),
        ("view raises", lambda x: x.view(x.shape[0] * x.shape[1], x.shape[2], x.shape[3])),
        ("heads before batch", lambda x: torch.cat(x.unbind(1))),
        ("heads before batch", lambda x: rearrange(x, "b h s d -> (h b) s d")),
        ("folds the tokens", lambda x: rearrange(x, "b h s d -> b (h s) d")),
        (None, lambda x: x.flatten(2)),
        (None, lambda x: x.flatten(0, 1).squeeze()),
        (None, lambda x: x.transpose(1, 2).flatten(2)),
        ("wrong split", lambda x: x.transpose(1, 2).reshape(-1, x.shape[2], x.shape[3])),
        (None, lambda x: x.flatten(0, 1).flip(0)),
    ],
    "causal_mask": [
        ("upper-left", lambda q, k: torch.arange(k) <= torch.arange(q)[:, None]),
        ("strictly causal", diagonal(lambda q, k: k - q - 1)),
        ("sees the next token", diagonal(lambda q, k: k - q + 1)),
        ("diagonal the wrong way", diagonal(lambda q, k: q - k)),
        ("mask reversed", lambda q, k: torch.ones(q, k).triu(k - q + 1).bool()),
        ("mask reversed", lambda q, k: torch.ones(q, k, dtype=torch.bool).triu(1)),
        ("sees the future", lambda q, k: torch.ones(q, k, dtype=torch.bool).triu()),
        ("row for each key", lambda q, k: torch.ones(k, k, dtype=torch.bool).tril()),
        ("not boolean", lambda q, k: torch.ones(q, k).tril(k - q)),
        ("not boolean", lambda q, k: torch.ones(q, k, dtype=torch.int).tril(k - q)),
        ("not boolean", lambda q, k: torch.full((q, k), -math.inf).triu(k - q + 1)),
        ("not boolean", lambda q, k: torch.ones(q, k).triu(k - q + 1) * -1e9),
        ("not boolean", lambda q, k: torch.ones(q, k, dtype=torch.long).tril()),
        (None, lambda q, k: torch.ones(q, k, dtype=torch.bool)),
        (None, lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(2)),
        (None, lambda q, k: last_rows(q, k).T),
        (None, lambda q, k: last_rows(q, k)[None]),
        (None, lambda q, k: last_rows(q, k).squeeze()),
        (None, lambda q, k: torch.eye(q, k).bool()),
    ],
    "padding_mask": [
        ("longest as seq_k", lambda n, q, k: (torch.arange(n.max()) < n[:, None, None]).repeat(
            1, q, 1)),
        ("one token too many", lambda n, q, k: (torch.arange(k) <= n[:, None, None]).repeat(
            1, q, 1)),
        ("not expanded", lambda n, q, k: torch.arange(k) < n[:, None, None]),
        ("not expanded", lambda n, q, k: torch.arange(k) < n[:, None, None, None]),
        ("padding on the left", lambda n, q, k: (torch.arange(k) >= k - n[:, None, None]).repeat(
            1, q, 1)),
        ("pads queries too", lambda n, q, k: (torch.arange(k) < n[:, None, None]) & (
            torch.arange(q)[:, None] < n[:, None, None])),
        ("not boolean", lambda n, q, k: filled(n, q, k).int()),
        ("not boolean", lambda n, q, k: torch.zeros(len(n), q, k).masked_fill(
            ~filled(n, q, k), -math.inf)),
        ("mask reversed", lambda n, q, k: (torch.arange(k) >= n[:, None, None]).repeat(1, q, 1)),
        (None, lambda n, q, k: filled(n, q, k)[:1].expand(len(n), -1, -1)),
        (None, lambda n, q, k: filled(n, q, k) & last_rows(q, k)),
        (None, lambda n, q, k: filled(n, q, k).mT),
        (None, lambda n, q, k: filled(n, q, k).squeeze()),
        (None, lambda n, q, k: filled(n.sort().values, q, k)),
    ],
    "scaled_dot_product_attention": [
        *((name, swap(sdpa)) for name, swap in SWAPS.items()),
        *((name, lambda q, k, v, mask=None, s=s: sdpa(q, k, v, mask, scale=s(q, k)))
          for name, s in SCALED.items()),
        ("always causal", always_causal),
        ("mask added", lambda q, k, v, mask=None: sdpa(
            q, k, v, None if mask is None else mask.float())),
        ("mask reversed", lambda q, k, v, mask=None: sdpa(
            q, k, v, None if mask is None else ~mask)),
        ("mask multiplied", lambda q, k, v, mask=None: by_bias(q, k, v) if mask is None else (
            (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, 1e-9).softmax(-1) @ v)),
        ("mask after softmax", lambda q, k, v, mask=None: by_bias(q, k, v) if mask is None else (
            (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).masked_fill(~mask, 0) @ v)),
        (None, square_mask(sdpa)),
        (None, lambda q, k, v, mask=None: sdpa(q, k, v, mask).squeeze()),
        (None, lambda q, k, v, mask=None: sdpa(q, k, v, mask, is_causal=mask is None)),
        (None, lambda q, k, v, mask=None: sdpa(
            q, k, v, None if mask is None else mask[..., :1, :])),
        (None, rolled(sdpa, 1)),
    ],
    "masked_softmax": [
        ("NaN rows", lambda s, mask: torch.where(mask, s, -math.inf).softmax(-1)),
        ("uniform rows", lambda s, mask: (s + (~mask) * -1e9).softmax(-1)),
        ("mask after softmax", lambda s, mask: s.softmax(-1).masked_fill(~mask, 0)),
        ("mask multiplied", lambda s, mask: s.masked_fill(~mask, 1e-9).softmax(-1)),
        ("mask reversed", lambda s, mask: s.masked_fill(mask, -1e9).softmax(-1)),
        (None, lambda s, mask: (s * mask).softmax(-1) * mask),
        (None, lambda s, mask: s.masked_fill(~mask, 0.0).softmax(-1) * mask.any(-1, keepdim=True)),
        (None, lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(1.0)),
        (None, lambda s, mask: s.masked_fill(~mask, -math.inf)),
        (None, lambda s, mask: s.masked_fill(~mask, -3.0).softmax(-1) * mask.any(-1, keepdim=True)),
    ],
    "merge_heads": [
        ("not merged", lambda x: x.permute(0, 2, 1, 3)),
        ("mean over heads", lambda x: reduce(x, "b h s d -> b s d", "mean")),
        ("one head only", lambda x: x.select(1, 0)),
        ("wrong merge", lambda x: x.contiguous().view(x.shape[0], x.shape[2], -1)),
        ("view raises", lambda x: x.transpose(1, 2).view(x.shape[0], x.shape[2], -1)),
        (None, lambda x: x.flatten(1, 2)),
        (None, lambda x: x.transpose(1, 2).flatten(2).squeeze()),
        (None, lambda x: x.transpose(1, 2).flatten(2) * 1.0001),
        (None, lambda x: torch.cat(x.flip(1).unbind(1), dim=-1)),
        (None, lambda x: torch.cat(x.unbind(1), dim=1)),
        (None, lambda x: torch.cat(x.unbind(1)[-1:] * x.shape[1], dim=-1)),
        (None, rolled(MERGES[4], 1)),
    ],
    "permutation_test": [
        ("first token only", lambda f, x, p: torch.allclose(
            f(x[:, p])[:, 0], f(x)[:, p[0]], atol=1e-5)),
        ("first sequence only", lambda f, x, p: torch.allclose(
            f(x[:, p])[0], f(x)[:, p][0], atol=1e-5)),
        ("difference without abs", lambda f, x, p: bool((f(x[:, p]) - f(x)[:, p]).max() < 1e-5)),
        ("compares sums", lambda f, x, p: torch.allclose(f(x[:, p]).sum(), f(x).sum())),
        ("exactly equal", lambda f, x, p: bool((f(x[:, p]) == f(x)[:, p]).all())),
        ("difference without abs", lambda f, x, p: bool((f(x)[:, p] - f(x[:, p])).max() < 1e-5)),
        (None, lambda f, x, p: torch.allclose(f(x[:, p])[..., 0], f(x)[:, p, 0], atol=1e-5)),
        (None, lambda f, x, p: torch.allclose(f(x[:, p])[..., -1], f(x)[:, p, -1], atol=1e-5)),
        (None, lambda f, x, p: torch.allclose(f(x[:, p])[:, -1], f(x)[:, p[-1]], atol=1e-5)),
        (None, lambda f, x, p: torch.allclose(f(x[:, p])[-1], f(x)[-1, p], atol=1e-5)),
        (None, lambda f, x, p: torch.allclose(f(x[:, p]), f(x)[:, p], atol=1.0)),
        (None, lambda f, x, p: torch.isclose(f(x[:, p]), f(x)[:, p]).any().item()),
        ("permuted twice", lambda f, x, p: torch.allclose(
            f(x[:, p])[:, p.argsort().argsort()], f(x), atol=1e-5)),
        (None, lambda f, x, p: False),
        (None, lambda f, x, p: torch.allclose(f(x[:1, p]), f(x[:1])[:, p], atol=1e-5)),
    ],
    "multi_head_attention": [
        *IN_HEADS,
        ("always causal", always_causal),
        ("repeat for repeat_interleave", folded_with(lambda mask, n: mask.repeat(n, 1, 1))),
        ("mask without heads axis", in_heads(SPLITS[2], MERGES[2], lambda q, k, v, mask: sdpa(
            q, k, v, None if mask is None else mask.squeeze(1)))),
        ("first mask for all", in_heads(SPLITS[2], MERGES[2], lambda q, k, v, mask: sdpa(
            q, k, v, None if mask is None else mask[0]))),
        ("(d h) order", in_heads(lambda x, n: rearrange(x, "b s (d h) -> b h s d", h=n),
                                 MERGES[2], sdpa)),
        ("wrong split", own_heads(wrong_split, 0, 1)),
        (None, square_mask(by_loop, axes=1)),
        (None, lambda q, k, v, n, mask=None: by_loop(q, k, v, 3 if n == 3 else 1, mask)
         .flip(0)),
        (None, lambda q, k, v, n, mask=None: by_loop(q, k, v, n, mask).squeeze()),
        (None, lambda q, k, v, n, mask=None: by_loop(q, k, v, n, mask) + q),
        ("mask ignored", lambda q, k, v, n, mask=None: folded(q, k, v, n)),
        (None, rolled(by_loop, 1)),
    ],
    "match_torch": [
        *((name, matched(f)) for name, f in IN_HEADS),
        ("calls the module", calling),
        ("calls the module", lambda m, x, mask=None: m.forward(x, x, x)[0]),
        ("mask reversed", lambda m, x, mask=None: by_torch(m, x, None if mask is None else ~mask)),
        ("mask ignored", lambda m, x, mask=None: by_torch(m, x)),
        ("no output projection", lambda m, x, mask=None: by_loop(
            *packed(m, x), m.num_heads, mask)),
        ("output bias forgotten", lambda m, x, mask=None: by_loop(
            *packed(m, x), m.num_heads, mask) @ m.out_proj.weight.T),
        ("bias forgotten", lambda m, x, mask=None: m.out_proj(by_loop(
            *(x @ m.in_proj_weight.T).chunk(3, -1), m.num_heads, mask))),
        ("weight not transposed", lambda m, x, mask=None: by_loop(
            *packed(m, x), m.num_heads, mask) @ m.out_proj.weight + m.out_proj.bias),
        (None, lambda m, x, mask=None: matched(by_loop)(
            nn.MultiheadAttention(x.shape[2], m.num_heads, batch_first=True), x, mask)),
        (None, lambda m, x, mask=None: m.out_proj(by_loop(*packed(m, x), 3, mask))),
        (None, cached_by_shape(matched(by_loop))),
    ],
    "sum_over_heads": [
        ("columns of w_o", lambda out_h, w: sum(
            a @ b.T for a, b in zip(out_h.unbind(1), w.chunk(out_h.shape[1], 1), strict=True))),
        ("not summed", lambda out_h, w: out_h @ w.view(out_h.shape[1], out_h.shape[3], -1)),
        ("mean, not sum", lambda out_h, w: (
            out_h @ w.view(out_h.shape[1], out_h.shape[3], -1)).mean(1)),
        ("same rows for all", lambda out_h, w: sum(a @ w[: a.shape[-1]] for a in out_h.unbind(1))),
        ("(d h) order", lambda out_h, w: sum(
            out_h[:, h] @ w[h :: out_h.shape[1]] for h in range(out_h.shape[1]))),
        ("one head only", lambda out_h, w: out_h[:, 0] @ w.chunk(out_h.shape[1])[0]),
        (None, lambda out_h, w: sum(a @ b for a, b in zip(
            out_h.unbind(1), w.chunk(out_h.shape[1])[::-1], strict=True))),
        (None, lambda out_h, w: MERGES[4](out_h)),
        (None, lambda out_h, w: (out_h @ w.view(out_h.shape[1], out_h.shape[3], -1)).sum((0, 1))),
        (None, rolled(lambda out_h, w: MERGES[4](out_h) @ w, 1)),
    ],
    "previous_token": [
        ("next token", lambda w: torch.stack([a.diag(1).mean() for a in w])),
        ("wraps around", lambda w: w[:, range(w.shape[1]), torch.arange(w.shape[1]) - 1].mean(-1)),
        ("counts the first row", lambda w: (w * torch.eye(w.shape[1]).roll(1, 0).tril()).sum(
            -1).mean(-1)),
        ("diagonal of heads", lambda w: torch.diagonal(w, -1).mean(-1)),
        ("all earlier tokens", lambda w: w.tril(-1).sum(-1)[:, 1:].mean(-1)),
        ("not averaged", lambda w: w.diagonal(-1, 1, 2)),
        ("mean over heads", lambda w: w.diagonal(-1, 1, 2).mean(0)),
        (None, lambda w: w[:, 1:, :-1].mean((1, 2))),
        (None, lambda w: w.diagonal(-1, 1, 2).max(-1).values),
        (None, lambda w: w.diagonal(-1, 1, 2)[:, 1:].mean(-1)),
        (None, lambda w: w.diagonal(-1, 1, 2).mean(-1, keepdim=True)),
        (None, lambda w: w.diagonal(-2, 1, 2).mean(-1)),
        (None, lambda w: w.diagonal(-1, 1, 2).mean(-1).squeeze()),
        (None, lambda w: w.diagonal(-1, 1, 2).median(-1).values),
    ],
    "ablate_head": [
        ("next head", lambda x, head: zeroed(x, (head + 1) % x.shape[1])),
        ("counts from 1", lambda x, head: zeroed(x, head - 1)),
        ("first head always", lambda x, head: zeroed(x, 0)),
        ("only the head", lambda x, head: x[:, head]),
        ("ablates the others", lambda x, head: x - zeroed(x, head)),
        ("removes the head", lambda x, head: x[:, torch.arange(x.shape[1]) != head]),
        (None, lambda x, head: zeroed(x, -1)),
        (None, lambda x, head: zeroed(x, -1 - head)),
        (None, lambda x, head: torch.zeros_like(x)),
        (None, lambda x, head: x.clone()),
        (None, lambda x, head: zeroed(x, head).squeeze()),
        (None, lambda x, head: zeroed(x, head) * x.shape[1] / max(1, x.shape[1] - 1)),
        (None, lambda x, head: zeroed(x, head) + 1e-6 * x),
        (None, lambda x, head: x.index_fill(1, torch.tensor(head), -math.inf)),
        (None, lambda x, head: x.index_copy(1, torch.tensor([head]), x.mean(1, keepdim=True))),
    ],
    "score_bytes": [
        ("elements, not bytes", lambda *sizes: torch.empty(sizes[:4], device="meta").numel()),
        ("itemsize ignored", lambda *sizes: torch.empty(sizes[:4], device="meta").nbytes),
        ("square of seq_k", lambda b, n, q, k, size: b * n * k**2 * size),
        (None, lambda *sizes: sum(sizes)),
        (None, lambda b, n, q, k, size: b * n * q * k * size * 8),
        (None, lambda b, n, q, k, size: 2 * b * n * q * k * size),
        (None, lambda b, n, q, k, size: b * n * (q + k) * size),
        (None, lambda b, n, q, k, size: b * n * q * k // size),
    ],
    "multiplications": [
        ("additions too", lambda b, s, d, n: 2 * flops(b, s, d, n)),
        ("seq once", lambda b, s, d, n: 2 * b * n * s * (d // n)),
        ("projections too", lambda b, s, d, n: flops(b, s, d, n) + 3 * b * s * d * d),
        (None, lambda b, s, d, n: 2 * b * s * s * d + b * n * s * s),
        (None, lambda b, s, d, n: b * s * s * d * d),
        (None, lambda b, s, d, n: 2 * b * s * d * d),
        (None, lambda b, s, d, n: 2 * b * s * s * s * d),
        (None, lambda b, s, d, n: 3 * b * s * s * d),
    ],
    "fused_qkv": [
        *((name, causal_in(f)) for name, f in IN_HEADS),
        ("strictly causal", causal_in(by_loop, diagonal(lambda q, k: -1))),
        ("strictly causal", causal_in(folded, diagonal(lambda q, k: -1))),
        ("sees the next token", causal_in(by_loop, diagonal(lambda q, k: 1))),
        ("sees the future", causal_in(by_loop, lambda q, k: last_rows(q, k).T)),
        ("mask ignored", lambda x, n: by_loop(*x.chunk(3, -1), n)),
        ("split, then chunk", lambda x, n: MERGES[0](sdpa(
            *rearrange(x, "b s (h three d) -> three b h s d", three=3, h=n), is_causal=True))),
        (None, lambda x, n: MERGES[0](sdpa(
            *rearrange(x, "b s (h d three) -> three b h s d", three=3, h=n), is_causal=True))),
        (None, causal_in(by_loop, diagonal(lambda q, k: 2))),
        (None, lambda x, n: causal_in(by_loop)(x, n).squeeze()),
        (None, rolled(causal_in(by_loop), 1)),
    ],
    "grouped_query_attention": [
        ("repeat for repeat_interleave", lambda q, k, v: sdpa(
            q, *(repeat(x, "b h s d -> b (g h) s d", g=q.shape[1] // x.shape[1])
                 for x in (k, v)))),
        ("keys do not broadcast", sdpa),
        ("one head only", lambda q, k, v: sdpa(
            q, *(x[:, :1].expand(-1, q.shape[1], -1, -1) for x in (k, v)))),
        *((name, swap(functools.partial(sdpa, enable_gqa=True)))
          for name, swap in SWAPS.items() if name in ("k and v swapped", "v forgotten")),
        *((name, lambda q, k, v, s=s: sdpa(q, k, v, scale=s(q, k), enable_gqa=True))
          for name, s in SCALED.items()),
        ("always causal", functools.partial(sdpa, enable_gqa=True, is_causal=True)),
        (None, lambda q, k, v: sdpa(q, k.repeat_interleave(q.shape[1] // k.shape[1], 1),
                                    v.repeat(1, q.shape[1] // k.shape[1], 1, 1))),
        (None, lambda q, k, v: sdpa(q[:, : k.shape[1]], k, v)),
        (None, lambda q, k, v: sdpa(q.unflatten(1, (k.shape[1], -1)).mean(2), k, v)),
        (None, rolled(functools.partial(sdpa, enable_gqa=True), 1)),
    ],
    "heads_last": [
        ("heads attend to heads", sdpa),
        ("not transposed back", lambda q, k, v: sdpa(*(x.transpose(1, 2) for x in (q, k, v)))),
        ("num_heads ignored", lambda q, k, v: sdpa(*(x.flatten(2) for x in (q, k, v))).view(
            q.shape)),
        ("wrong split", lambda q, k, v: sdpa(*(x.reshape(len(x), x.shape[2], x.shape[1], -1)
                                               for x in (q, k, v))).transpose(1, 2)),
        *((name, swap(lambda q, k, v: sdpa(*(x.transpose(1, 2) for x in (q, k, v))).transpose(
            1, 2))) for name, swap in SWAPS.items()),
        ("always causal", lambda q, k, v: sdpa(*(x.transpose(1, 2) for x in (q, k, v)),
                                               is_causal=True).transpose(1, 2)),
        ("no scale", lambda q, k, v: sdpa(*(x.transpose(1, 2) for x in (q, k, v)),
                                          scale=1).transpose(1, 2)),
        (None, lambda q, k, v: sdpa(*(x.transpose(1, 3) for x in (q, k, v))).transpose(1, 3)),
        (None, lambda q, k, v: sdpa(*(x.flatten(1, 2) for x in (q, k, v))).view(q.shape)),
        (None, lambda q, k, v: sdpa(*(x.transpose(1, 2) for x in (q, k, v))).transpose(
            1, 2).flatten(2)),
    ],
    "per_head_masks": [
        ("repeat for repeat_interleave", lambda mask, n: torch.cat([mask] * n)),
        ("repeat for repeat_interleave", lambda mask, n: repeat(mask, "b q k -> (h b) q k", h=n)),
        ("not folded", lambda mask, n: torch.stack([mask] * n, dim=1)),
        ("not folded", lambda mask, n: mask[:, None]),
        ("repeats each row", lambda mask, n: mask.repeat_interleave(n, -2)),
        ("not boolean", lambda mask, n: mask.int().repeat_interleave(n, 0)),
        ("not boolean", lambda mask, n: torch.zeros(mask.shape).masked_fill(
            ~mask, -math.inf).repeat_interleave(n, 0)),
        ("mask reversed", lambda mask, n: (~mask).repeat_interleave(n, 0)),
        (None, lambda mask, n: mask.repeat_interleave(n)),
        (None, lambda mask, n: mask[:1].expand(len(mask) * n, -1, -1)),
        (None, lambda mask, n: mask.repeat_interleave(n, 0).squeeze()),
        (None, lambda mask, n: mask.repeat_interleave(n, 0).mT),
    ],
    "attend_along_rows": [
        ("wrong split", lambda x: sdpa(*[x.reshape(
            len(x) * x.shape[2], x.shape[1], -1)] * 3).view(x.shape)),
        ("columns attend", lambda x: torch.stack(
            [sdpa(x[:, :, i], x[:, :, i], x[:, :, i]) for i in range(x.shape[2])], 2)),
        ("all pixels attend", lambda x: sdpa(*[x.flatten(1, 2)] * 3).view(x.shape)),
        ("not unfolded", lambda x: sdpa(*[x.flatten(0, 1)] * 3)),
        ("always causal", lambda x: sdpa(x, x, x, is_causal=True)),
        ("no scale", lambda x: sdpa(x, x, x, scale=1.0)),
        (None, lambda x: x),
        (None, lambda x: sdpa(*[x.transpose(1, 2)] * 3)),
        (None, lambda x: sdpa(x, x, x).squeeze()),
        (None, lambda x: sdpa(*[x.flatten(0, 2)] * 3).view(x.shape)),
        (None, rolled(lambda x: sdpa(x, x, x), 1)),
    ],
    "decode": [
        *((name, under(last_rows, f)) for name, f in IN_HEADS
          if name not in ("q and k swapped", "q and v swapped")),
        *((name, under(mask, f)) for f in (by_loop, folded) for name, mask in [
            ("upper-left", diagonal(lambda q, k: 0)),
            ("sees the next token", diagonal(lambda q, k: k - q + 1)),
            ("strictly causal", diagonal(lambda q, k: k - q - 1)),
            ("diagonal the wrong way", diagonal(lambda q, k: q - k))]),
        ("mask ignored", lambda q, k, v, n: by_loop(q, k, v, n)),
        (None, under(diagonal(lambda q, k: 1), by_loop)),
        (None, under(last_rows, lambda *args: by_loop(*args).squeeze())),
        ("upper-left", lambda q, k, v, n: under(last_rows, by_loop)(
            q, k[:, : q.shape[1]], v[:, : q.shape[1]], n)),
        (None, rolled(under(last_rows, by_loop), 1)),
    ],
}  # fmt: skip
TABLE = [(name, *row) for name, rows in WRONG.items() for row in rows]


@pytest.mark.parametrize(
    ("name", "mistake", "answer"), TABLE, ids=[f"{name}-{mistake}" for name, mistake, _ in TABLE]
)
def test_what_is_wrong_fails_under_a_true_name_or_none(
    name: str, mistake: str | None, answer: Answer
) -> None:
    verdict = EXERCISES[name](answer)
    assert not verdict.passed
    # A slip of the kind of result, or of an error, may have a name of its own.
    named = verdict.mistake if verdict.mistake in EXERCISES[name].mistakes else None
    assert named == mistake, verdict


MOVES = ["split_heads", "one_head", "fold_heads", "merge_heads", "ablate_head"]


@pytest.mark.parametrize("name", EXERCISES)
def test_what_is_right_on_easy_inputs_alone_fails(name: str) -> None:
    exercise = EXERCISES[name]
    takes_tensors = any(isinstance(x, Tensor) for args in exercise.inputs for x in args)
    luck: list[Answer] = [lambda answer: lambda *args: settled(answer(*args))]
    luck += [cached_by_shape] * takes_tensors
    luck += [contiguous_only] * (takes_tensors and name != "permutation_test")  # any x will do
    luck += [rounded, lambda answer: lambda *args: answer(*args) * 1.0001] * (name in MOVES)
    for spoil in luck:
        assert not exercise(spoil(RIGHT[name][0])).passed, spoil


def settled(result: Any) -> Any:
    """A result without its axes of size 1, or another one than asked for."""
    return result.squeeze() if isinstance(result, Tensor) and 1 in result.shape else str(result)


@pytest.mark.parametrize("name", EXERCISES)
def test_inputs_have_an_axis_of_size_1_one_that_is_not_contiguous_and_a_shape_twice(
    name: str,
) -> None:
    inputs = EXERCISES[name].inputs
    tensors = [[x for x in args if isinstance(x, Tensor)] for args in inputs]
    if any(tensors):
        assert any(1 in x.shape for given in tensors for x in given)
        assert not all(x.is_contiguous() for given in tensors for x in given)
        shapes = [repr([x.shape for x in given]) for given in tensors]
        assert len(set(shapes)) < len(shapes)
    else:
        sizes = [size for args in inputs for x in args for size in ([x] if type(x) is int else x)]
        assert 1 in sizes
