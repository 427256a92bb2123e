"""The checks pass whatever is right and call each mistake by its name, however it is written."""

import functools
import itertools
import json
import logging
import math
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from mha import check
from mha.check import EXERCISES, Exercise, Verdict
from mha.check.hints import HINTS

Answer = Callable[..., Any]
SPLIT, MERGE, ATTEND = check.split_heads, check.merge_heads, check.attend_per_head
SDPA, MHA = check.scaled_dot_product_attention, check.multi_head_attention
NAMED = [(exercise, mistake) for exercise in EXERCISES.values() for mistake in exercise.mistakes]
every_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
sdpa: Answer = functional.scaled_dot_product_attention


def assert_fails(exercise: Exercise, answer: Any, *parts: str) -> Verdict:
    verdict = exercise(answer)
    lines = verdict.message.splitlines()
    assert verdict.passed is False
    assert repr(verdict) == verdict.message
    assert len(lines) < 6
    assert max(map(len, lines)) < 160, verdict
    assert [part for part in parts if part not in verdict.message] == []
    return verdict


# ---- what is right, by other means than the exercise's own


def view_works(shape: tuple[int, ...], strides: tuple[int, ...], axis: int) -> bool:
    try:
        torch.empty_strided(shape, strides).view(
            *shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]
        )
    except RuntimeError:
        return False
    return True


def fused(q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Any = None, **how: Any) -> Any:
    qh, kh, vh = (rearrange(x, "b s (h d) -> b h s d", h=num_heads) for x in (q, k, v))
    out_h = sdpa(qh, kh, vh, mask if mask is None else mask[:, None], **how)
    return rearrange(out_h, "b h s d -> b s (h d)")


def token_by_token(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
    ends = range(k.shape[1] - q.shape[1] + 1, k.shape[1] + 1)
    steps = (fused(q[:, [i]], k[:, :n], v[:, :n], num_heads) for i, n in enumerate(ends))
    return torch.cat(list(steps), dim=1)


def ask_module(module: nn.MultiheadAttention, x: Tensor, mask: Tensor | None = None) -> Any:
    twin = nn.MultiheadAttention(module.embed_dim, module.num_heads, batch_first=True)
    twin.load_state_dict(module.state_dict())
    ignore = None if mask is None else (~mask).repeat_interleave(module.num_heads, dim=0)
    return twin(x, x, x, attn_mask=ignore)[0]


def count_multiplications(batch: int, seq: int, d_model: int, num_heads: int) -> Any:
    qh, kh, vh = torch.empty(3, batch, num_heads, seq, d_model // num_heads, device="meta")
    with FlopCounterMode(display=False) as counter:
        _ = (qh @ kh.mT) @ vh
    return counter.get_total_flops() // 2


def softmax_by_hand(scores: Tensor, mask: Tensor) -> Tensor:
    allowed = scores.exp() * mask
    return allowed / allowed.sum(dim=-1, keepdim=True).clamp(min=1e-30)


ORACLES: dict[str, Answer] = {
    "weighted_average": lambda w, v: torch.einsum("bqk,bkd->bqd", w, v),
    "attention_weights": lambda q, k: sdpa(q, k, torch.eye(k.shape[1]).expand(len(k), -1, -1)),
    "contiguous_strides": lambda shape: [math.prod(shape[i + 1 :]) for i in range(len(shape))],
    "element": lambda index, strides, offset: torch.arange(500).as_strided(
        [i + 1 for i in index], strides, offset)[index],
    "can_merge": view_works,
    "split_heads": lambda x, n: torch.stack(x.chunk(n, dim=-1), dim=1),
    "head_of": lambda feature, d_model, n: next(
        head for head, part in enumerate(torch.arange(d_model).chunk(n)) if feature in part),
    "one_head": lambda x, head, n: x.chunk(n, dim=-1)[head],
    "attend_per_head": sdpa,
    "fold_heads": lambda qh: torch.cat(list(qh)),
    "causal_mask": lambda seq_q, seq_k: torch.tensor(
        [[j <= i + seq_k - seq_q for j in range(seq_k)] for i in range(seq_q)]),
    "padding_mask": lambda lengths, seq_q, seq_k: torch.tensor(
        [[[j < n for j in range(seq_k)]] * seq_q for n in lengths.tolist()]),
    "scaled_dot_product_attention": sdpa,
    "masked_softmax": softmax_by_hand,
    "merge_heads": lambda x: torch.cat(x.unbind(dim=1), dim=-1),
    "permutation_test": lambda f, x, order: all(
        torch.allclose(f(x[:, order])[:, i], f(x)[:, j]) for i, j in enumerate(order)),
    "multi_head_attention": fused,
    "match_torch": ask_module,
    "sum_over_heads": lambda out_h, w_o: torch.einsum(
        "bhsd,hdw->bsw", out_h, w_o.view(out_h.shape[1], out_h.shape[3], -1)),
    "previous_token": lambda w: torch.stack(
        [w[:, i + 1, i] for i in range(w.shape[1] - 1)]).mean(dim=0),
    "ablate_head": lambda out_h, head: out_h.index_fill(1, torch.tensor(head), 0),
    "score_bytes": lambda *sizes: torch.empty(
        sizes[:4], dtype={2: torch.float16, 4: torch.float32}[sizes[4]], device="meta").nbytes,
    "multiplications": count_multiplications,
    "fused_qkv": lambda qkv, n: fused(*[*qkv.chunk(3, -1), n], is_causal=True),
    "grouped_query_attention": functools.partial(sdpa, enable_gqa=True),
    "heads_last": lambda q, k, v: torch.stack(
        [sdpa(*head) for head in zip(*(x.unbind(2) for x in (q, k, v)), strict=True)], dim=2),
    "per_head_masks": lambda mask, n: torch.stack([m for m in mask for _ in range(n)]),
    "attend_along_rows": lambda x: sdpa(x, x, x),
    "decode": token_by_token,
}  # fmt: skip


@every_exercise
def test_an_independent_answer_and_the_exercises_own_pass(exercise: Exercise) -> None:
    for answer in (ORACLES[exercise.name], exercise.right):
        text = (
            f"Right. my_{exercise.name} gives what it should on all {len(exercise.inputs)} inputs."
        )
        assert exercise(answer) == Verdict(True, None, text)


def test_can_merge_says_what_view_does_on_any_strides() -> None:
    for first, second, stride, last in itertools.product(
        [1, 2, 3], [1, 2, 3], [1, 3, 6], [0, 1, 2]
    ):
        args = ((2, first, second), (18, stride, last), 1)
        assert check.can_merge.right(*args) == view_works(*args), args


class Splitter(nn.Module):
    one = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, num_heads: int) -> Any:
        return self.one * x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def split(x: Tensor, num_heads: int) -> Tensor:
    batch, seq, d_model = x.shape
    return x.view(batch, seq, num_heads, d_model // num_heads).transpose(1, 2)


def split_by_loop(x: Tensor, num_heads: int) -> Any:
    heads = torch.zeros(len(x), num_heads, x.shape[1], x.shape[2] // num_heads)
    for i in range(x.shape[2]):
        heads[:, i // heads.shape[3], :, i % heads.shape[3]] = x[:, :, i]
    return heads


def split_in_place(x: Tensor, num_heads: int, memory: Any = torch.zeros(1000)) -> Any:  # noqa: B008
    return memory[: x.numel()].view(len(x), num_heads, x.shape[1], -1).copy_(split(x, num_heads))


def textbook(q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Tensor | None = None) -> Any:
    qh, kh, vh = (split(x, num_heads) for x in (q, k, v))
    scores = qh @ kh.transpose(-2, -1) / math.sqrt(qh.shape[-1])
    if mask is not None:
        scores.masked_fill_(~mask.unsqueeze(1), -1e9)
    return (scores.softmax(dim=-1) @ vh).transpose(1, 2).contiguous().view(q.shape)


RIGHT: dict[str, tuple[Exercise, Answer]] = {
    "view": (SPLIT, split),
    "reshape": (SPLIT, lambda x, n: x.reshape(*x.shape[:2], n, -1).permute(0, 2, 1, 3)),
    "einops": (SPLIT, lambda x, n: rearrange(x, "b s (h d) -> b h s d", h=n)),
    "einsum": (SPLIT, lambda x, n: torch.einsum("bshd->bhsd", x.unflatten(2, (n, -1)))),
    "cat": (SPLIT, lambda x, n: torch.cat([part[:, None] for part in x.chunk(n, dim=-1)], dim=1)),
    "loop": (SPLIT, split_by_loop),
    "compiled": (SPLIT, torch.compile(split, backend="eager")),
    "module": (SPLIT, Splitter()),
    "bound method": (SPLIT, Splitter().forward),
    "partial": (SPLIT, functools.partial(split)),
    "inference mode": (SPLIT, torch.inference_mode()(split)),
    "parameter": (SPLIT, lambda x, n: nn.Parameter(split(x, n))),
    "rounded": (ATTEND, lambda q, k, v: sdpa(q, k, v) * (1 + 1e-6)),
    "reused memory": (SPLIT, split_in_place),
    "flatten": (MERGE, lambda x: x.permute(0, 2, 1, 3).flatten(2)),
    "merge by einops": (MERGE, lambda x: rearrange(x, "b h s d -> b s (h d)")),
    "textbook": (MHA, textbook),
    "float64": (MHA, lambda q, k, v, *rest: fused(
        q.double(), k.double(), v.double(), *rest).float()),
    "allclose": (check.permutation_test, lambda f, x, order: torch.allclose(
        f(x[:, order]), f(x)[:, order])),
    "bool tensor": (check.permutation_test, lambda f, x, order: (
        f(x[:, order]) - f(x)[:, order]).abs().max() < 1e-4),
    "torch.Size": (check.contiguous_strides, lambda shape: torch.Size(torch.empty(shape).stride())),
    "numpy": (check.contiguous_strides, lambda shape: [
        np.prod(shape[i + 1 :], dtype=int) for i in range(len(shape))]),
    "float": (check.score_bytes, lambda *sizes: float(math.prod(sizes))),
}  # fmt: skip


@pytest.mark.parametrize(("exercise", "answer"), RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes_however_it_is_written(exercise: Exercise, answer: Answer) -> None:
    assert exercise(answer).passed, exercise(answer)


# ---- every mistake that has a name


@pytest.mark.parametrize(("exercise", "mistake"), NAMED, ids=[f"{e.name}-{m}" for e, m in NAMED])
def test_every_mistake_is_called_by_its_own_name(exercise: Exercise, mistake: str) -> None:
    verdict = assert_fails(exercise, exercise.mistakes[mistake], "expected ", "):\n")
    assert verdict.mistake == mistake
    title, where, *difference = verdict.message.splitlines()
    assert title == f"Not yet: {mistake}. {HINTS[mistake]}"
    assert where.startswith(f"In my_{exercise.name}(")
    assert ", got " in difference[0] or ", but it raises " in difference[0]


def test_every_mistake_has_a_hint_and_every_hint_a_mistake() -> None:
    named = {mistake for _, mistake in NAMED}
    assert {*named, "changes its input"} == set(HINTS)
    assert {*SLIPS, "wrong split and merge", "no transpose", "seq and head_dim swapped",
            "repeat for repeat_interleave", "split before projection"} <= named  # fmt: skip


def result(answer: Answer, args: tuple[Any, ...]) -> Any:
    try:
        return answer(*args)
    except Exception:
        return None  # an error, whatever its words


def differ(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype):
        return not torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-3, equal_nan=True)
    return isinstance(a, Tensor) or type(a) is not type(b) or bool(a != b)


@every_exercise
def test_no_two_mistakes_give_the_same_and_none_what_is_right(exercise: Exercise) -> None:
    assert len(exercise.mistakes) >= 4
    answers = {"right": exercise.right, **exercise.mistakes}
    results = {name: [result(f, args) for args in exercise.inputs] for name, f in answers.items()}
    for one, other in itertools.combinations(results, 2):
        assert any(map(differ, results[one], results[other])), (one, other)


@every_exercise
@pytest.mark.parametrize("luck", ["batch 1", "equal sizes"])
def test_what_is_right_only_by_luck_fails(exercise: Exercise, luck: str) -> None:
    def answer(*args: Any) -> Any:
        tensors = [x.shape for x in args if isinstance(x, Tensor)]
        shape = tensors[0] if tensors else args[0] if isinstance(args[0], tuple) else args
        if exercise.name == "previous_token":
            shape = shape[:-1]  # its weights are square
        lucky = shape[0] == 1 if luck == "batch 1" else len(set(shape)) < len(shape)
        return exercise.right(*args) if lucky else "no"

    assert_fails(exercise, answer)


# ---- wrong answers as learners write them

SLIPS = [
    *("wrong split", "wrong merge", "(d h) order", "no scale", "scaled twice", "scale by d_model"),
    *("scale by num_heads", "mask ignored", "mask without heads axis", "mask reversed"),
    *("mask added", "mask after softmax", "softmax over queries", "softmax over heads"),
    *("mean over heads", "one head only", "view raises"),
]

PAIRS = [
    ("wrong split", "no scale"), ("wrong split", "scale by num_heads"),
    ("wrong split", "softmax over queries"), ("wrong split", "mean over heads"),
    ("(d h) order", "wrong merge"), ("wrong merge", "scale by d_model"),
    ("wrong merge", "mask without heads axis"), ("no scale", "softmax over queries"),
    ("scaled twice", "one head only"), ("mask after softmax", "mean over heads"),
    ("mask reversed", "softmax over heads"), ("no scale", "mask ignored"),
    ("wrong split", "mask added"),
]  # fmt: skip


def slip(*slips: str) -> Answer:
    """Multi-head attention in chunk, einsum and where, with these slips."""

    def attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Any = None) -> Tensor:
        head_dim = q.shape[2] // num_heads
        qh, kh, vh = (torch.stack(x.chunk(num_heads, dim=-1), dim=1) for x in (q, k, v))
        if "wrong split" in slips:
            qh, kh, vh = (x.reshape(len(x), num_heads, -1, head_dim) for x in (q, k, v))
        if "(d h) order" in slips:
            qh, kh, vh = (rearrange(x, "b s (d h) -> b h s d", h=num_heads) for x in (q, k, v))
        scores = torch.einsum("bhqd,bhkd->bhqk", qh, kh)
        divisors = {"no scale": 1, "scaled twice": head_dim**2, "scale by d_model": q.shape[2],
                    "scale by num_heads": num_heads}  # fmt: skip
        scores *= next((n for name, n in divisors.items() if name in slips), head_dim) ** -0.5
        if mask is not None:
            mask = mask if "mask without heads axis" in slips else mask[:, None]
            mask = ~mask if "mask reversed" in slips else mask
            if "mask added" in slips:
                scores += mask.float()
            elif "mask ignored" not in slips and "mask after softmax" not in slips:
                scores = torch.where(mask, scores, torch.tensor(-1e9))
        axis = 2 if "softmax over queries" in slips else 1 if "softmax over heads" in slips else 3
        attn_weights = scores.softmax(dim=axis)
        if mask is not None and "mask after softmax" in slips:
            attn_weights.masked_fill_(~mask, 0)
        out_h = torch.einsum("bhqk,bhkd->bhqd", attn_weights, vh).contiguous()
        ends: dict[str, Answer] = {
            "wrong merge": lambda: out_h.reshape(q.shape),
            "view raises": lambda: out_h.permute(0, 2, 1, 3).view(q.shape),
            "mean over heads": lambda: out_h.sum(dim=1) / num_heads,
            "one head only": lambda: out_h[:, 0],
        }
        default = lambda: torch.cat(out_h.unbind(dim=1), dim=-1)  # noqa: E731
        merged: Tensor = next((ends[name] for name in slips if name in ends), default)()
        return merged

    return attention


def with_mask(use: Answer) -> Answer:
    """Attention by torch, with what this makes of the mask."""
    return lambda q, k, v, mask=None: sdpa(q, k, v, mask if mask is None else use(mask))


def over_queries(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, scale: float = 0.5) -> Any:
    scores = torch.einsum("...qd,...kd->...qk", q, k) / q.shape[-1] ** scale
    scores = scores if mask is None else scores.masked_fill_(~mask, -1e9)
    return (scores.exp() / scores.exp().sum(dim=-2, keepdim=True)) @ v


def one_by_one(divisor: Answer) -> Answer:
    """Attention in a loop over the heads, with this divisor."""
    return lambda q, k, v: torch.stack(
        [sdpa(q[:, h], k[:, h], v[:, h], scale=1 / divisor(q)) for h in range(q.shape[1])], dim=1
    )


def never_turned(q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Any = None) -> Tensor:
    out: Tensor = sdpa(*(x.unflatten(2, (num_heads, -1)) for x in (q, k, v)), mask)
    return out.flatten(2)


WRONG: list[tuple[Exercise, str, Answer]] = [
    (SPLIT, "wrong split", lambda x, n: x.contiguous().view(len(x), n, x.shape[1], -1)),
    (SPLIT, "wrong split", lambda x, n: rearrange(
        x.flatten(1), "b (h s d) -> b h s d", h=n, s=x.shape[1])),
    (SPLIT, "no transpose", lambda x, n: x.unflatten(-1, (n, -1))),
    (SPLIT, "no transpose", lambda x, n: torch.stack(x.chunk(n, dim=-1), dim=2)),
    (SPLIT, "seq and head_dim swapped", lambda x, n: torch.stack(x.mT.chunk(n, dim=1), dim=1)),
    (SPLIT, "(d h) order", lambda x, n: rearrange(x, "b s (d h) -> b h s d", h=n)),
    (SPLIT, "(d h) order", lambda x, n: torch.stack([x[..., h::n] for h in range(n)], dim=1)),
    (SPLIT, "heads before batch", lambda x, n: torch.stack(x.chunk(n, dim=-1))),
    (MERGE, "wrong merge", lambda x: x.reshape(len(x), x.shape[2], -1)),
    (MERGE, "wrong merge", lambda x: rearrange(
        x.flatten(1), "b (s w) -> b s w", s=x.shape[2])),
    (MERGE, "view raises", lambda x: x.permute(0, 2, 1, 3).view(len(x), x.shape[2], -1)),
    (MERGE, "mean over heads", lambda x: sum(x.unbind(1)) / x.shape[1]),
    (MERGE, "sum over heads", lambda x: torch.einsum("bhsd->bsd", x)),
    (MERGE, "one head only", lambda x: next(iter(x.unbind(1)))),
    (MERGE, "(d h) order", lambda x: rearrange(x, "b h s d -> b s (d h)")),
    (MERGE, "seq and head_dim swapped", lambda x: rearrange(x, "b h s d -> b d (h s)")),
    (ATTEND, "no scale", one_by_one(lambda q: 1)),
    (ATTEND, "scaled twice", one_by_one(lambda q: q.shape[-1])),
    (ATTEND, "scale by d_model", one_by_one(lambda q: math.sqrt(q.shape[1] * q.shape[3]))),
    (ATTEND, "scale by num_heads", one_by_one(lambda q: math.sqrt(q.shape[1]))),
    (ATTEND, "softmax over queries", over_queries),
    (ATTEND, "one head only", lambda q, k, v: sdpa(q[:, :1], k[:, :1], v[:, :1])),
    (ATTEND, "mean over heads", lambda q, k, v: sdpa(q, k, v).mean(1)[:, None]),
    (ATTEND, "heads attend to heads", lambda q, k, v: rearrange(
        sdpa(*(rearrange(x, "b h s d -> b s h d") for x in (q, k, v))), "b s h d -> b h s d")),
    (SDPA, "no scale", lambda q, k, v, mask=None: sdpa(q, k, v, mask, scale=1.0)),
    (SDPA, "scaled twice", lambda q, k, v, mask=None: sdpa(q / q.shape[-1] ** 0.5, k, v, mask)),
    (SDPA, "softmax over queries", over_queries),
    (SDPA, "mask ignored", lambda q, k, v, mask=None: sdpa(q, k, v)),
    (SDPA, "mask reversed", with_mask(lambda mask: ~mask)),
    (SDPA, "mask reversed", with_mask(lambda mask: mask * -1e9)),
    (SDPA, "mask added", with_mask(lambda mask: mask.float())),
    (MHA, "no transpose", never_turned),
    (MHA, "wrong split and merge", slip("wrong split", "wrong merge")),
    *((MHA, name, slip(name)) for name in SLIPS),
    (check.weighted_average, "not transposed", lambda w, v: torch.einsum("bkq,bkd->bqd", w, v)),
    (check.match_torch, "mask reversed", lambda module, x, mask=None: ask_module(
        module, x, mask if mask is None else ~mask)),
    (check.grouped_query_attention, "repeat for repeat_interleave", lambda q, k, v: sdpa(
        q, *(torch.cat([x] * (q.shape[1] // x.shape[1]), dim=1) for x in (k, v)))),
    (check.decode, "upper-left", lambda q, k, v, n: fused(q, k, v, n, is_causal=True)),
    # one that explains most results but not all, and two at once, of which one is named
    (MERGE, "wrong merge", lambda x: x[:, 0] if len(x) == 1 else x.reshape(len(x), x.shape[2], -1)),
    (ATTEND, "no scale or softmax over queries", functools.partial(over_queries, scale=0)),
    (SDPA, "no scale or softmax over queries", functools.partial(over_queries, scale=0)),
    *((MHA, " or ".join(pair), slip(*pair)) for pair in PAIRS),
]  # fmt: skip


@pytest.mark.parametrize(("exercise", "mistakes", "answer"), WRONG)
def test_a_learners_mistake_is_named_in_whatever_words(
    exercise: Exercise, mistakes: str, answer: Answer
) -> None:
    mistake = assert_fails(exercise, answer).mistake
    assert mistake in mistakes.split(" or ")


# ---- what is no answer at all


def stop(error: BaseException) -> Any:
    raise error


ENDS, RETURNS = "your function raises", "another kind of thing"
NUMBERS = "right shape, wrong numbers"
HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)
ODD: dict[str, tuple[Answer, str, str]] = {
    "error": (lambda *args: stop(ValueError("d_model\nis odd")), ENDS, "ValueError: d_model"),
    "exit": (lambda *args: stop(SystemExit(3)), ENDS, "but it raises SystemExit: 3"),
    "no message": (lambda *args: stop(GeneratorExit()), ENDS, "but it raises GeneratorExit"),
    "mute": (lambda *args: stop(type("Mute", (Exception,), {
        "__str__": lambda self: stop(SystemExit(1))})()), ENDS, "but it raises Mute"),
    "address": (lambda *args: stop(ValueError(object())), ENDS, "<object object at 0x..>"),
    "long": (lambda *args: stop(ValueError("x" * 102)), ENDS, "but it raises ValueError: xxx"),
    "recursion": (lambda *args: ODD["recursion"][0](*args), ENDS, "it raises RecursionError"),
    "itself": (lambda *args: HOLDS_ITSELF, ENDS, "but it raises RecursionError"),
    "one parameter": (lambda x: x, ENDS, "but it raises TypeError"),
    "huge": (lambda x, n: 10**5000, ENDS, "but it raises OverflowError"),
    "generator": (lambda x, n: (y for y in x), RETURNS, "got type generator"),
    "None later": (lambda x, n: None if len(x) > 1 else split(x, n), RETURNS, "got None"),
    "None first": (lambda x, n: None if len(x) == 1 else split(x, n), RETURNS, "got None"),
    "numpy": (lambda x, n: split(x, n).numpy(), RETURNS, "got type ndarray"),
    "list": (lambda x, n: split(x, n).tolist(), RETURNS, "got [[[[0, 1]"),
    "tuple": (lambda x, n: (x, x.numpy()), RETURNS, "got [tensor (1, 4, 6), type ndarray]"),
    "long list": (lambda x, n: [[[0] * 9] * 9] * 9, RETURNS, "got [[[0, 0, 0, 0, 0, ..], "),
    "module": (lambda x, n: math, RETURNS, "got type module"),
    "nn.Module": (lambda x, n: nn.Linear(1, 1), RETURNS, "got type Linear"),
    "string": (lambda x, n: "heads", RETURNS, "got type str"),
    "number": (lambda x, n: torch.tensor(7.0), RETURNS, "got 7"),
    "subclass": (lambda x, n: x.as_subclass(type("Mine", (Tensor,), {})), RETURNS, "got type Mine"),
    "meta": (lambda x, n: x.to("meta"), RETURNS, "got a tensor that is torch.strided on meta"),
    "sparse": (lambda x, n: x.to_sparse(), RETURNS, "tensor that is torch.sparse_coo on cpu"),
    "nested": (lambda x, n: torch.nested.nested_tensor(list(x)), RETURNS, "nested on cpu"),
    "complex": (lambda x, n: split(x, n) + 0j, "the dtype is not", "got torch.complex64"),
    "shape": (lambda x, n: x, "the shape differs", "expected shape (1, 3, 4, 2), got (1, 4, 6)"),
    "nan": (lambda x, n: split(x, n) * math.nan, NUMBERS, "expected 0, got nan"),
    "slightly off": (lambda x, n: split(x, n) * 1.0003, NUMBERS, "expected 1, got 1.0003"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "advice", "part"), ODD.values(), ids=ODD)
def test_what_is_no_answer_fails_with_a_reason(answer: Answer, advice: str, part: str) -> None:
    verdict = assert_fails(SPLIT, answer, "Not yet: ", advice, "\nIn my_split_heads(tensor (", part)
    assert verdict == Verdict(False, None, SPLIT(answer).message)


def test_what_only_resembles_a_mistake_gets_no_name() -> None:
    some_right = assert_fails(check.can_merge, lambda sizes, strides, axis: axis == 2)
    unlike = assert_fails(check.element, lambda *args: -1, "Not yet: not the right value")
    # With one head two scales are the same mistake.
    two_fit = assert_fails(MHA, lambda q, k, v, n, mask=None: slip("scale by num_heads")(
        q, k, v, n, mask).unflatten(2, (n, -1)).flip(2).flatten(2))  # fmt: skip
    numbers = [(torch.ones(2),), (torch.full((2,), 3.0),)]
    double = Exercise("double", lambda x: 2 * x, numbers, {"no scale": lambda x: x + 1})
    where_right = assert_fails(double, lambda x: 2 * x if x[0] == 1 else x - 7)
    assert {x.mistake for x in (some_right, unlike, two_fit, where_right)} == {None}


def test_values_have_to_be_of_the_right_kind_and_number() -> None:
    assert_fails(check.can_merge, lambda *args: int(view_works(*args)), "expected True, got 1")
    assert_fails(check.contiguous_strides, lambda shape: [], "expected [3, 1], got []")


@every_exercise
def test_no_exercise_stumbles_over_a_strange_answer(exercise: Exercise) -> None:
    for strange in (math.inf, math.nan, 10**400, [None, "x", True], torch.ones(1, 1), True):
        assert_fails(exercise, lambda *args, strange=strange: strange)
    assert_fails(exercise, ODD["error"][0], "Not yet: ", "but it raises")
    waiting = assert_fails(exercise, lambda *args: None)
    text = f"Waiting for your answer: my_{exercise.name} returns None so far."
    assert waiting == Verdict(False, None, text)


@pytest.mark.parametrize("given", [torch.ones(2), None, "x", math], ids=repr)
def test_a_result_in_place_of_the_function_is_recognised(given: Any) -> None:
    text = f"not its result, {type(given).__name__}: check.merge_heads(my_merge_heads)."
    assert_fails(MERGE, given, f"Pass your function itself, {text}")


def test_an_answer_is_never_right_because_the_exercise_itself_breaks() -> None:
    error = ODD["error"][0]
    assert not Exercise("broken", error, [(1,)], {"no scale": lambda x: x})(error).passed


# ---- nothing gets in or out

CHANGES: list[Answer] = [
    lambda x: x.add_(1e-6),
    lambda x: x.transpose_(1, 2),
    lambda x: x.resize_(1, 2, 3),
    lambda x: x.set_(x.mT.contiguous().mT),
    lambda x: setattr(x, "data", x.double()),
]
MODULE_CHANGES: list[Answer] = [
    lambda module: module.out_proj.weight.data.add_(1e-6),
    lambda module: module.double(),
    lambda module: delattr(module, "out_proj"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_that_changes_a_tensor_fails(change: Answer) -> None:
    before = [x.clone() for x, _ in SPLIT.inputs]
    verdict = assert_fails(SPLIT, lambda x, n: (split(x.clone(), n), change(x))[0])
    assert verdict.mistake == "changes its input"
    assert all(torch.equal(x, kept) for (x, _), kept in zip(SPLIT.inputs, before, strict=True))


@pytest.mark.parametrize("change", MODULE_CHANGES)
def test_an_answer_that_changes_a_module_fails(change: Answer) -> None:
    verdict = assert_fails(check.match_torch, lambda *args: (ask_module(*args), change(args[0]))[0])
    assert verdict.mistake == "changes its input"
    assert check.match_torch(ask_module).passed


def state() -> list[Any]:
    return [
        *(sys.stdout, sys.stderr, list(warnings.filters), random.getstate()),
        *(torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.is_grad_enabled()),
        *(logging.root.manager.disable, logging.root.handlers[:]),
    ]


@pytest.mark.parametrize("end", [None, ValueError("x"), KeyboardInterrupt()], ids=repr)
def test_what_an_answer_prints_or_sets_stays_inside(
    end: BaseException | None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(x: Tensor, num_heads: int) -> Tensor:
        drawn = (torch.rand(()).item(), random.random())
        seen.add((*drawn, torch.get_default_dtype(), torch.is_grad_enabled()))
        print("printed", file=sys.stderr)
        sys.stdout.buffer.write(b"printed")
        warnings.warn("printed", stacklevel=1)
        logging.warning("printed")
        logger.error("printed")
        torch.manual_seed(5)
        random.seed(5)
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(False)
        warnings.simplefilter("ignore")
        return stop(end) if end else split(x, num_heads)

    seen: set[Any] = set()
    logger = logging.Logger("learner")
    logger.manager = logging.root.manager
    logger.addHandler(logging.StreamHandler(sys.stderr))
    monkeypatch.setattr(logging.root, "handlers", [])
    torch.set_default_dtype(torch.float64)
    logging.disable(logging.DEBUG)
    try:
        before = state()
        assert Exercise("zeros", lambda: torch.zeros(2), [()], {})(lambda: torch.zeros(2)).passed
        if isinstance(end, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                SPLIT(answer)
        else:
            verdict = SPLIT(answer)
            assert verdict.passed is (end is None), verdict
            assert "printed" not in verdict.message
        assert state() == before
    finally:
        torch.set_default_dtype(torch.float32)
        logging.disable(logging.NOTSET)
    assert capfd.readouterr() == ("", "")
    assert len(seen) == 1, "every call begins the same"
    assert (*seen.pop(),)[2:] == (torch.float32, True)


MESSAGES = """
import json, random, torch
from mha.check import EXERCISES
answers = [
    lambda *args: torch.rand(1, 3, 4, 2), lambda *args: random.random(), lambda *args: object(),
    lambda *args: {"a", "b", "c"}, lambda *args: args[0], lambda *args: args[0][lambda: 0],
]
messages = [e(f).message for e in EXERCISES.values() for f in [*answers, *e.mistakes.values()][:7]]
"""


def test_messages_are_the_same_each_time_and_in_a_fresh_process() -> None:
    here: list[dict[str, Any]] = [{}, {}]
    for seed, namespace in enumerate(here):
        torch.manual_seed(seed)
        exec(MESSAGES, namespace)
    command = [sys.executable, "-c", f"{MESSAGES}\nprint(json.dumps(messages))"]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    fresh = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert here[0]["messages"] == here[1]["messages"] == json.loads(fresh.stdout)
    assert "at 0x7" not in fresh.stdout


# ---- what the message says


def test_the_message_shows_name_hint_input_and_first_difference() -> None:
    assert repr(SPLIT(lambda x, n: x.reshape(len(x), n, x.shape[1], -1))).splitlines() == [
        f"Not yet: wrong split. {HINTS['wrong split']}",
        "In my_split_heads(tensor (1, 4, 6), 3):",
        "  at [0, 0, 1, 0]: expected 6, got 2",
        "  row [0, 0, 1]: expected [6, 7], got [2, 3]",
    ]


def test_the_message_shows_arguments_by_kind_and_shape() -> None:
    assert_fails(SDPA, SDPA.mistakes["mask ignored"], "tensor (1, 3, 4), mask (1, 3, 3)):")
    assert_fails(check.match_torch, lambda *args: 0, "(MultiheadAttention, tensor (1, 2, 12)):")
    assert_fails(check.permutation_test, lambda *args: 0, "(attention, tensor (2, 6, 4), ")


@pytest.mark.parametrize(
    ("at", "row", "wrong"),
    [
        (0, "[0, 1, 2, 3, 4, ..]", "[-1, 1, 2, 3, 4, ..]"),
        (10, "[.., 8, 9, 10, 11, 12, ..]", "[.., 8, 9, -1, 11, 12, ..]"),
        (29, "[.., 25, 26, 27, 28, 29]", "[.., 25, 26, 27, 28, -1]"),
    ],
)
def test_a_long_row_is_shown_around_its_first_difference(at: int, row: str, wrong: str) -> None:
    numbers = torch.arange(30.0)
    exercise = Exercise("row", lambda x: x, [(numbers,)], {"no scale": lambda x: 2 * x})
    message = assert_fails(exercise, lambda x: x.where(numbers != at, -1)).message
    assert message.splitlines()[1:] == [
        "In my_row(tensor (30,)):",
        f"  at [{at}]: expected {at}, got -1",
        f"  row of all: expected {row}, got {wrong}",
    ]
