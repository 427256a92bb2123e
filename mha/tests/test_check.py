"""The checks pass whatever is right and call each mistake by its name, however it is written."""

import _thread
import contextlib
import functools
import itertools
import json
import logging
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange
from matplotlib import pyplot
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import mha
from mha import check
from mha.check import EXERCISES, Exercise, Verdict, alone, verdict
from mha.check.hints import HINTS, TASKS
from mha.check.hints import SLIPS as GENERAL

Answer = Callable[..., Any]
SPLIT, MERGE, ATTEND = check.split_heads, check.merge_heads, check.attend_per_head
SDPA, MHA = check.scaled_dot_product_attention, check.multi_head_attention
NAMED = [(exercise, mistake) for exercise in EXERCISES.values() for mistake in exercise.mistakes]
NOTEBOOKS = "".join(
    path.read_text(encoding="utf-8")
    for path in (Path(__file__).parents[2] / "notebooks").glob("[01]*.ipynb")
)
every_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
sdpa: Answer = functional.scaled_dot_product_attention


def assert_fails(exercise: Exercise, answer: Any, *parts: str) -> Verdict:
    verdict = exercise(answer)
    lines = verdict.message.splitlines()
    assert verdict.passed is False
    assert repr(verdict) == verdict.message
    assert len(lines) < 7
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
    for answer in (ORACLES[exercise.name], exercise._right):
        text = (
            f"Right. my_{exercise.name} gives what it should on all {len(exercise.inputs)} inputs."
        )
        verdict = exercise(answer)
        assert verdict.passed
        assert verdict.message.splitlines()[0] == text
        assert verdict.message == text or answer != exercise._right


def test_can_merge_says_what_view_does_on_any_strides() -> None:
    for first, second, stride, last in itertools.product(
        [1, 2, 3], [1, 2, 3], [1, 3, 6], [0, 1, 2]
    ):
        args = ((2, first, second), (18, stride, last), 1)
        assert check.can_merge._right(*args) == view_works(*args), args


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
    answers = {"right": exercise._right, **exercise.mistakes}
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
        return exercise._right(*args) if lucky else "no"

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
    ("no scale", "mask ignored"),
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


ENDS, NUMBERS = "your function raises", "right shape, wrong numbers"
HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


def some_lines(x: Tensor, num_heads: int) -> Any:
    if num_heads == 77:
        late = x
    return late


async def coroutine(x: Tensor, num_heads: int) -> Tensor:
    return split(x, num_heads)


def kind(name: str) -> str:
    return f"returns {name}. A tensor is asked for."


# The answer, what the first line says after "Not yet: ", and a part of the rest.
ODD: dict[str, tuple[Answer, str, str]] = {
    "error": (lambda *args: stop(ValueError("d_model\nis odd")), ENDS, "ValueError: d_model"),
    "exit": (lambda *args: stop(SystemExit(3)), ENDS, "but it raises SystemExit: 3"),
    "interrupt": (lambda *args: stop(KeyboardInterrupt()), ENDS, "it raises KeyboardInterrupt"),
    "no message": (lambda *args: stop(GeneratorExit()), ENDS, "but it raises GeneratorExit"),
    "mute": (lambda *args: stop(type("Mute", (Exception,), {
        "__str__": lambda self: stop(SystemExit(1))})()), ENDS, "but it raises Mute"),
    "address": (lambda *args: stop(ValueError(object())), ENDS, "<object object at 0x..>"),
    "long": (lambda *args: stop(ValueError("x" * 102)), ENDS, "but it raises ValueError: xxx"),
    "line": (lambda *args: stop(OSError()), ENDS, ": raise error"),
    "asks": (lambda x, n: input(), ENDS, "EOFError: nobody answers here"),
    "checks": (lambda x, n: SPLIT(split), ENDS, "check.split_heads stands inside the function"),
    "recursion": (lambda *args: ODD["recursion"][0](*args), "no end.", "it raises RecursionError"),
    "itself": (lambda *args: HOLDS_ITSELF, kind("a list"), "cannot be compared: RecursionError"),
    "one parameter": (lambda x: x, "wrong number of parameters. It takes (x), and is called with 2",
        "but it raises TypeError"),
    "three parameters": (lambda x, n, m: x, "wrong number of parameters.", "raises TypeError"),
    "misspelt": (lambda x, num_heads: split(x, num_head),  # type: ignore # noqa
        "unknown name. num_head: did you mean num_heads?", ": \"misspelt\": (lambda"),
    "attribute": (lambda x, n: x.veiw(n),
        "unknown name. veiw: did you mean view?", "no attribute 'veiw'"),
    "undefined": (eval("lambda x, n: zzzzz(x)"), "unknown name. Is it misspelt", "name 'zzzzz'"),
    "unbound": (some_lines, "no value yet.", "line "),
    "float view": (lambda x, n: x.view(*x.shape[:2], n, x.shape[2] / n), "a float for a size.", ""),
    "float range": (lambda x, n: range(x.shape[2] / n), "a float for a size.", ""),
    "float slice": (lambda x, n: x[..., : x.shape[2] / n], "a float for a size.", ""),
    "float index": (lambda x, n: x[..., x.shape[2] / n], "a float for a size.", ""),
    "float chunk": (lambda x, n: x.chunk(x.shape[2] / n), "a float for a size.", ""),
    "T": (lambda x, n: x.unflatten(2, (n, -1)).T, ".T on more than two axes.", "got (2, 3, 4, 1)"),
    "T raises": (lambda x, n: x.T @ x, ".T on more than two axes.", "but it raises RuntimeError"),
    "view": (lambda x, n: split(x, n).view(x.shape), "view needs a copy.", "RuntimeError"),
    "huge tensor": (lambda x, n: torch.zeros(10**12), "too much memory.", "it raises RuntimeError"),
    "expanded": (lambda x, n: torch.zeros(1).expand(10**12), "the shape differs", "000000000,)"),
    "huge": (lambda x, n: 10**5000, kind("an int"), "cannot be compared: OverflowError"),
    "million": (lambda x, n: [0] * 10**6, kind("a list"), "more than 10,000 values"),
    "nested million": (lambda x, n: [[0] * 10**3] * 10**3, kind("a list"), "more than 10,000"),
    "generator": (lambda x, n: (y for y in x), kind("a generator"), "got a generator"),
    "coroutine": (coroutine, kind("a coroutine"), "got a coroutine"),
    "None later": (lambda x, n: None if len(x) > 1 else split(x, n), "no return.", "got None"),
    "None first": (lambda x, n: None if len(x) == 1 else split(x, n), "no return.", "got None"),
    "prints": (lambda x, n: print(split(x, n)), "print for return.", "In my_split_heads"),
    "numpy": (lambda x, n: split(x, n).numpy(), kind("a NumPy array") + " torch.from_numpy", ""),
    "list": (lambda x, n: split(x, n).tolist(), kind("a list"), "got [[[[0, 1]"),
    "tuple": (lambda x, n: (x, x.numpy()), kind("a tuple"), "[tensor (1, 4, 6), a NumPy array]"),
    "long list": (lambda x, n: [[[0] * 9] * 9] * 9, kind("a list"), "got [[[0, 0, 0, 0, 0, ..], "),
    "module": (lambda x, n: math, kind("an object of type module"), "type module"),
    "nn.Module": (lambda x, n: nn.Linear(1, 1), kind("an object of type Linear"), "type Linear"),
    "class": (type("Heads", (), {"__init__": lambda *args: None}),
        kind("an object of type Heads"), "got an object of type Heads"),
    "string": (lambda x, n: "heads", kind("a str"), "got a str"),
    "number": (lambda x, n: torch.tensor(7.0), kind("a tensor of one number"), "got 7"),
    "subclass": (lambda x, n: x.as_subclass(type("Mine", (Tensor,), {})),
        kind("a tensor of type Mine"), "got a tensor of type Mine"),
    "meta": (lambda x, n: x.to("meta"), kind("a tensor on meta"), "got a tensor on meta"),
    "sparse": (lambda x, n: x.to_sparse(), kind("a sparse tensor"), "got a sparse tensor"),
    "nested": (lambda x, n: torch.nested.nested_tensor(list(x)), kind("a nested tensor"), "got a"),
    "quantized": (lambda x, n: torch.quantize_per_tensor(split(x, n), 1, 0, torch.qint8),
        kind("a quantized tensor"), "got a quantized tensor"),
    "complex": (lambda x, n: split(x, n) + 0j, "the shape is right, the dtype is not",
        "got torch.complex64"),
    "float8": (lambda x, n: split(x, n).to(torch.float8_e5m2), "the shape is right, the dtype", ""),
    "shape": (lambda x, n: x, "the shape differs", "expected shape (1, 3, 4, 2), got (1, 4, 6)"),
    "nan": (lambda x, n: split(x, n) * math.nan, "NaN.", "expected 0, got nan"),
    "one nan": (lambda x, n: split(x, n) / split(x, n), "NaN.", "expected 0, got nan"),
    "slightly off": (lambda x, n: split(x, n) * 1.0003, NUMBERS, "expected 1, got 1.0003"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "advice", "part"), ODD.values(), ids=ODD)
def test_what_is_no_answer_fails_with_a_reason(answer: Answer, advice: str, part: str) -> None:
    verdict = assert_fails(SPLIT, answer, "\nIn my_split_heads(tensor (", part)
    assert verdict.message.startswith(f"Not yet: {advice}")
    slip = verdict.message.removeprefix("Not yet: ").partition(". ")[0]
    unnamed = (ENDS, NUMBERS, "the shape differs", "the shape is right")
    assert verdict.mistake == (None if advice.startswith(unnamed) else slip)
    assert verdict == SPLIT(answer)


def test_what_only_resembles_a_mistake_gets_no_name() -> None:
    some_right = assert_fails(check.can_merge, lambda sizes, strides, axis: axis == 2)
    unlike = assert_fails(check.element, lambda *args: -1, "Not yet: not the right value")
    # With one head two scales are the same mistake.
    two_fit = assert_fails(MHA, lambda q, k, v, n, mask=None: slip("scale by num_heads")(
        q, k, v, n, mask).unflatten(2, (n, -1)).flip(2).flatten(2))  # fmt: skip
    numbers = [(torch.ones(2),), (torch.full((2,), 3.0),)]
    double = Exercise("double", lambda x: 2 * x, numbers, {"no scale": lambda x: x + 1})
    where_right = assert_fails(double, lambda x: 2 * x if x[0] == 1 else x - 7)
    found = {x.mistake for x in (some_right, unlike, two_fit, where_right)}
    assert found == {None}


def test_a_mistake_that_explains_one_wrong_result_of_many_is_only_a_likeness() -> None:
    numbers = [(torch.full((2,), float(i)),) for i in range(2, 7)]
    double = Exercise("double", lambda x: 2 * x, numbers, {"no scale": lambda x: x + 7})

    def add_seven(*where: int) -> Answer:
        return lambda x: x + 7 if x[0] in where else x - 7

    once = assert_fails(double, add_seven(2), "on this input it looks like no scale, not on all.")
    assert once.mistake is None
    assert assert_fails(double, add_seven(2, 3), "looks like").mistake is None
    assert assert_fails(double, add_seven(2, 3, 4), "Not yet: no scale.").mistake == "no scale"


@every_exercise
def test_a_result_of_nan_alone_is_called_that(exercise: Exercise) -> None:
    def answer(*args: Any) -> Any:
        right = exercise._right(*args)
        return right * math.nan if isinstance(right, Tensor) and right.is_floating_point() else None

    verdict = exercise(answer)
    assert verdict.mistake == ("NaN" if "Waiting" not in verdict.message else None)


def test_values_have_to_be_of_the_right_kind_and_number() -> None:
    assert_fails(check.contiguous_strides, lambda shape: [], "expected [3, 1], got []")
    kinds = [
        (check.can_merge, 1, "returns an int. A bool is asked for. 1 and 0 are numbers"),
        (check.can_merge, np.array([True]), "returns a NumPy array. A bool is asked for."),
        (check.can_merge, torch.ones(2), "returns a tensor. A bool is asked for. .all()"),
        (check.score_bytes, True, "returns a bool. An int is asked for."),
        (check.score_bytes, torch.ones(1), "returns a tensor. An int is asked for. .item()"),
        (check.contiguous_strides, 3, "returns an int. A tuple is asked for."),
        (check.contiguous_strides, torch.tensor([3, 1]), "A tuple is asked for. tuple(x.tolist())"),
        (check.causal_mask, [[True]], "returns a list. A tensor is asked for. torch.stack"),
    ]
    for exercise, result, words in kinds:
        assert_fails(exercise, lambda *args, result=result: result, words)


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


def test_numbers_that_only_move_may_not_change_in_the_last_bit() -> None:
    numbers = [(torch.arange(1.0, 5.0),)]
    for exact in (False, True):
        flip = Exercise("flip", lambda x: x.flip(0), numbers, {}, exact=exact)
        assert flip(lambda x: x.flip(0)).passed
        assert flip(lambda x: x.flip(0) * (1 + 1e-6)).passed is not exact
    assert_fails(flip, lambda x: x.flip(0) * (1 + 1e-6), "expected 4, got 4.00000")


def test_an_exercise_that_breaks_says_so_and_is_tried_again() -> None:
    error = ODD["error"][0]
    broken = Exercise("broken", lambda x: error() if fails else x, [(1,)], {"no scale": error})
    fails = [True]
    for answer in (error, lambda x: x):
        verdict = assert_fails(broken, answer, "The fault is not yours.", "ValueError: d_model")
        assert verdict.mistake is None
    fails.clear()
    assert broken(lambda x: x).passed


# ---- right, and a remark


def remarks(exercise: Exercise, answer: Answer) -> list[str]:
    verdict = exercise(answer)
    assert verdict.passed, verdict
    assert verdict.mistake is None
    return verdict.message.splitlines()[1:]


@pytest.mark.parametrize("exercise", [SPLIT, check.one_head], ids=repr)
def test_a_copy_passes_with_a_remark_where_a_view_would_do(exercise: Exercise) -> None:
    right = exercise._right
    assert remarks(exercise, right) == []
    copies: list[Answer] = [
        lambda *args: right(*args).clone(),
        lambda x, *rest: right(x.clone(), *rest),
        ORACLES[exercise.name] if exercise is SPLIT else lambda *args: right(*args) * 1.0,
    ]
    for answer in copies:
        (remark,) = remarks(exercise, answer)
        assert remark.startswith("A remark: it copies its input, as on check."), remark
    (last,) = remarks(SPLIT, lambda x, n: split(x.contiguous(), n))
    at = next(i for i, (x, _) in enumerate(SPLIT.inputs) if not x.is_contiguous())
    assert f"as on check.split_heads.example({at})" in last


FLOATS = [e for e in EXERCISES.values() if isinstance(e._right(*e.example(0)), Tensor)
          and e._right(*e.example(0)).is_floating_point()]  # fmt: skip


@pytest.mark.parametrize("exercise", FLOATS, ids=lambda exercise: exercise.name)
def test_a_gradient_that_is_cut_or_wrong_gets_a_remark(exercise: Exercise) -> None:
    right = exercise._right
    cuts: list[Answer] = [
        lambda *args: right(*args).detach(),
        torch.no_grad()(right),
        torch.inference_mode()(right),
        lambda *args: torch.tensor(right(*args).tolist()),
        lambda *args: torch.from_numpy(right(*args).numpy()),
    ]
    for answer in cuts:
        assert any("no gradient reaches " in x for x in remarks(exercise, answer)), answer
    doubled = remarks(exercise, lambda *args: 2 * right(*args) - right(*args).detach())
    assert "not that of the formula" in doubled[-1]


def test_a_remark_names_the_argument_whose_gradient_is_cut() -> None:
    (remark,) = remarks(MHA, lambda q, k, *rest: fused(q, k.detach(), *rest))
    assert remark.startswith("A remark: no gradient reaches k. detach, ")


@pytest.mark.parametrize(("exercise", "answer"), RIGHT.values(), ids=RIGHT)
def test_no_style_of_a_right_answer_gets_a_wrong_remark(
    exercise: Exercise, answer: Answer, request: pytest.FixtureRequest
) -> None:
    style = request.node.callspec.id
    copies = ("cat", "loop", "module", "bound method", "reused memory")
    cut = ("inference mode", "parameter")
    expected = ["it copies"] * (style in copies) + ["no gradient"] * (style in cut)
    for _ in range(2):
        found = remarks(exercise, answer)
        assert [" ".join(x.split()[2:4]) for x in found] == expected


@pytest.mark.parametrize("key", [lambda x: x.shape, lambda x: x.numel(), lambda x: x.ndim])
def test_an_answer_that_remembers_is_found_out(key: Answer) -> None:
    for exercise in EXERCISES.values():
        if not any(isinstance(x, Tensor) for x in exercise.inputs[0]):
            continue
        if exercise in (check.permutation_test, check.padding_mask):  # of one shape, or told apart
            continue
        memory: dict[Any, Any] = {}

        def cached(*args: Any, memory: Any = memory, right: Any = exercise._right) -> Any:
            of = tuple(key(x) if isinstance(x, Tensor) else str(x) for x in args)
            return memory.setdefault(of, right(*args))

        assert not exercise(cached).passed, exercise
    cache = functools.cache(lambda shape, n: split(torch.arange(math.prod(shape)).view(shape), n))
    remembered: dict[Any, Any] = {}
    verdict = assert_fails(SPLIT, lambda x, n: remembered.setdefault(x.shape, split(x, n)))
    assert verdict.mistake == "remembers a call"
    assert not SPLIT(lambda x, n: cache(x.shape, n).float()).passed


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
        *(torch.empty(0).device, torch.get_num_threads(), torch.is_warn_always_enabled()),
        *(torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cpu")),
        *(torch.is_inference_mode_enabled(), torch._C._len_torch_function_stack()),
        *(torch.get_float32_matmul_precision(), str(np.random.get_state())),
        *(sys.getrecursionlimit(), dict(os.environ), Path.cwd(), sys.gettrace(), input),
        *(pyplot.get_fignums(), sys.breakpointhook, threading.active_count()),
    ]


class Mode(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def set_everything() -> None:
    print("printed", file=sys.stderr)
    sys.stdout.buffer.write(b"printed")
    warnings.warn("printed", stacklevel=1)
    logging.warning("printed")
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    torch.set_default_dtype(torch.float16)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    contextlib.ExitStack().enter_context(torch.autocast("cpu"))
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_float32_matmul_precision("medium")
    contextlib.ExitStack().enter_context(Mode())
    os.environ["MHA_TEST"] = "1"
    os.environ.pop("PATH", None)
    os.chdir("/")
    sys.setrecursionlimit(2000)
    sys.settrace(lambda *event: None)
    pyplot.figure()
    warnings.simplefilter("ignore")


@pytest.mark.parametrize(
    "end", [None, ValueError("x"), KeyboardInterrupt(), SystemExit()], ids=repr
)
def test_what_an_answer_prints_or_sets_stays_inside(
    end: BaseException | None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(x: Tensor, num_heads: int) -> Tensor:
        drawn = (torch.rand((), device="cpu").item(), random.random())
        seen.add((*drawn, torch.get_default_dtype(), torch.is_grad_enabled()))
        logger.error("printed")
        set_everything()
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


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AROUND: dict[str, Any] = {
    "default device": lambda: default_device("meta"), "device": lambda: torch.device("meta"),
    "default dtype": default_dtype, "autocast": lambda: torch.autocast("cpu"),
    "no_grad": torch.no_grad, "inference mode": torch.inference_mode, "mode": Mode,
    "trace": mha.trace,
}  # fmt: skip


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_what_is_set_around_the_first_check_does_not_reach_it(around: Any) -> None:
    for name in ("causal_mask", "multi_head_attention", "match_torch", "weighted_average"):
        known = EXERCISES[name]
        fresh = Exercise(name, known._right, known.inputs, known.mistakes, known.variants)
        with around():
            right = fresh(known._right)
            named = {x: fresh(wrong).mistake for x, wrong in list(known.mistakes.items())[:3]}
        assert right == known(known._right)
        assert all(x == y for x, y in named.items())
        assert fresh(known._right) == right


def test_what_is_set_before_the_import_does_not_reach_it() -> None:
    code = """
import torch
torch.set_default_device("meta"); torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False); torch.autocast("cpu").__enter__()
from mha import check
print([x.name for x in check.EXERCISES.values() if x(x._right).message.count("\\n")
       or not x(x._right).passed], torch.empty(0).device, torch.empty(0).dtype)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] meta torch.float64"


# ---- a limit of time and memory


def swallow(catch: type[BaseException]) -> Answer:
    def answer(*args: Any) -> None:
        while True:
            try:  # noqa: SIM105
                sum(range(100))
            except catch:
                pass

    return answer


def endless_once(x: Tensor, num_heads: int) -> Tensor:
    while len(x) == 3:
        pass
    return split(x, num_heads)


ENDLESS: dict[str, Answer] = {
    "loop": lambda *args: next(x for x in itertools.count() if x < 0),
    "except Exception": swallow(Exception),
    "bare except": swallow(BaseException),
    "one input": endless_once,
    "endless list": lambda *args: type(
        "Endless", (list,), {"__iter__": lambda self: iter(int, 1)})(),
}  # fmt: skip


@pytest.mark.parametrize("answer", ENDLESS.values(), ids=ENDLESS)
def test_an_answer_that_never_ends_is_stopped(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "LIMIT", 0.3)
    before, start = state(), time.monotonic()
    calls: Any = []
    verdict = assert_fails(
        SPLIT, lambda x, n: answer(x, calls.append(n) or n), "After 0.3 seconds", "Try it"
    )
    assert verdict.mistake == "too slow"
    once = answer is endless_once
    slow = next(i for i, (x, _) in enumerate(SPLIT.inputs) if not once or len(x) == 3)
    assert len(calls) == slow + 1, "no call after the slow one"
    assert time.monotonic() - start < 3
    assert state() == before
    assert SPLIT(split).passed


def test_an_answer_that_sleeps_leaves_the_kernel_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "LIMIT", 0.2)
    monkeypatch.setattr(alone, "GRACE", 0.1)
    start = time.monotonic()
    sleeps: Any = time.sleep
    assert_fails(SPLIT, lambda x, n: sleeps(3), "it is not done", "runs on: restart the kernel")
    assert time.monotonic() - start < 2
    assert SPLIT(split).passed


def test_all_slow_calls_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "LIMIT", 0.5)
    sleeps: Any = time.sleep
    start = time.monotonic()
    assert SPLIT(lambda x, n: split(x, n + (sleeps(0.2) or 0))).mistake == "too slow"
    assert time.monotonic() - start < 2


def test_the_users_interrupt_comes_through() -> None:
    before = state()
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        SPLIT(swallow(Exception))
    timer.join()
    assert state() == before
    assert SPLIT(split).passed


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot limit memory")
def test_a_huge_list_is_refused_at_once() -> None:
    verdict = assert_fails(SPLIT, lambda x, n: [0] * 10**9, "but it raises MemoryError")
    assert verdict.mistake == "too much memory"


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
        "Try it: my_split_heads(*check.split_heads.example(0))",
    ]


@every_exercise
def test_the_last_line_makes_the_failing_call(exercise: Exercise) -> None:
    for at, args in enumerate(exercise.inputs):
        calls = iter(range(100))

        def answer(*args: Any, calls: Any = calls, at: int = at) -> Any:
            return "wrong" if next(calls) == at else exercise._right(*args)

        *_, where, line, call = exercise(answer).message.splitlines()
        assert call.startswith(f"Try it: my_{exercise.name}(")
        names = {"check": check, f"my_{exercise.name}": lambda *given: given}
        given = eval(call.removeprefix("Try it: "), names)
        assert all(map(verdict._unchanged, args, given)), (where, line)
        assert not any(x is y for x, y in zip(args, given, strict=True) if isinstance(x, Tensor))


@every_exercise
def test_help_shows_the_task_and_hides_the_answer(
    exercise: Exercise, capsys: pytest.CaptureFixture[str]
) -> None:
    help(exercise)
    shown = capsys.readouterr().out
    asked = re.search(rf"def my_({exercise.name}\(.*\)):", NOTEBOOKS)
    assert asked
    assert asked[1] in shown
    assert "Return" in shown
    assert f"check.{exercise.name}(my_{exercise.name})" in shown
    assert f"help(check.{exercise.name})" in repr(exercise)
    assert [name for name in vars(exercise) if name == "right"] == []
    assert not hasattr(exercise, "right")
    assert HINTS.keys().isdisjoint(GENERAL)


def test_completion_offers_the_exercises_and_nothing_else() -> None:
    assert sorted(dir(check)) == sorted(EXERCISES)
    assert sorted(EXERCISES) == sorted(TASKS)


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
    assert message.splitlines()[1:-1] == [
        "In my_row(tensor (30,)):",
        f"  at [{at}]: expected {at}, got -1",
        f"  row of all: expected {row}, got {wrong}",
    ]
