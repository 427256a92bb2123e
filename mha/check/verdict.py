"""Calls an answer, compares it with the right one, and finds the mistake that explains it."""

import contextlib
import copy
import functools
import io
import logging
import math
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mha.check.hints import HINTS

Answer = Callable[..., Any]

# Advice on a mistake without a name.
ENDS = "your function raises. Call it on such an input yourself, and print shapes on the way."
RETURNS = "it gives another kind of thing than asked for. Look at the line with return."
VALUE = "not the right value, and none of the usual mistakes. Work it out by hand."
SHAPE = "the shape differs, so start there. Which axis is it, and which line makes it?"
DTYPE = "the shape is right, the dtype is not."
NUMBERS = "right shape, wrong numbers, none of the usual mistakes. Work out the first by hand."


@dataclass(frozen=True)
class Verdict:
    """What the check says about an answer; it prints as its message.

    `mistake` is the short name of the mistake, None where it is none that is known.
    """

    passed: bool
    mistake: str | None
    message: str

    def __repr__(self) -> str:
        return self.message


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise, called with an answer.

    Args:
        name: what it asks for; the learner writes a function `my_` and this name.
        right: a right answer.
        inputs: what to call it with, smallest first.
        mistakes: a wrong answer by the name of its mistake, a key of `HINTS`.
        variants: more wrong answers, such as two mistakes at once, each under one of these names.
        exact: numbers only move, so none may change, not even in the last bit.
    """

    name: str
    right: Answer = field(repr=False)
    inputs: Sequence[tuple[Any, ...]] = field(repr=False)
    mistakes: Mapping[str, Answer] = field(repr=False)
    variants: Sequence[tuple[str, Answer]] = field(default=(), repr=False)
    exact: bool = field(default=False, repr=False)

    def __call__(self, answer: Any) -> Verdict:
        """Mark an answer, a function."""
        mine = f"my_{self.name}"
        if not callable(answer):
            text = f"Pass your function itself, not its result, {type(answer).__name__}"
            return Verdict(False, None, f"{text}: check.{self.name}({mine}).")
        got = [_outcome_alone(answer, args) for args in self.inputs]
        if all(result is None for result in got):
            return Verdict(False, None, f"Waiting for your answer: {mine} returns None so far.")
        with _sealed():
            return self._compare(got)

    def _compare(self, got: Sequence[Any]) -> Verdict:
        expected = self._expected
        passes = [
            _same(one, other) and not isinstance(other, _Failure) and not self._moved(one, other)
            for one, other in zip(expected, got, strict=True)
        ]
        if all(passes):
            text = f"Right. my_{self.name} gives what it should on all {len(got)} inputs."
            return Verdict(True, None, text)
        first = passes.index(False)
        mistake = self._mistake(got, passes)
        advice, difference = _difference(expected[first], got[first])
        title = f"Not yet: {f'{mistake}. {HINTS[mistake]}' if mistake else advice}"
        where = f"In my_{self.name}({', '.join(map(_shown, self.inputs[first]))}):"
        lines = [title, where, *(f"  {line}" for line in difference)]
        short = (line if len(line) < 160 else f"{line[:157]}.." for line in lines)
        return Verdict(False, mistake, "\n".join(short))

    def _moved(self, expected: Any, got: Any) -> bool:
        """Whether a number that should only move is another one now, however near."""
        return self.exact and isinstance(got, Tensor) and not torch.equal(expected, got)

    def _mistake(self, got: Sequence[Any], passes: Sequence[bool]) -> str | None:
        """The mistake that explains every result, or else most wrong ones and at least two.

        Most are enough only for tensors, as any wrong bool is like many others.
        """
        first = passes.index(False)
        if got[first] == _CHANGED:
            return "changes its input"
        known = self._known
        for name, results in known:
            if all(map(_same, results, got)):
                return name
        wrong = [i for i, x in enumerate(got) if isinstance(x, Tensor) and not passes[i]]
        singles = known[: len(self.mistakes)]
        explained = [sum(_same(results[i], got[i]) for i in wrong) for _, results in singles]
        most = max(explained)
        if most > max(1, len(wrong) / 2) and explained.count(most) == 1:
            return known[explained.index(most)][0]
        return None

    @functools.cached_property
    def _expected(self) -> list[Any]:
        return [_outcome(self.right, args) for args in self.inputs]

    @functools.cached_property
    def _known(self) -> list[tuple[str, list[Any]]]:
        return [
            (name, [_outcome(wrong, args) for args in self.inputs])
            for name, wrong in [*self.mistakes.items(), *self.variants]
        ]


@dataclass(frozen=True)
class _Failure:
    """Stands for the result of a call that has none to compare; `why` goes on "expected .., "."""

    why: str


class _Raised(_Failure):
    """Stands for the error of a call."""


_CHANGED = _Failure("but an argument is not what it was before the call")


def _outcome(function: Answer, args: tuple[Any, ...]) -> Any:
    """What a call gives: a result to compare, or a `_Failure`."""
    try:
        return _settled(function(*args))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _Raised(f"but it raises {_said(error)}")


def _outcome_alone(function: Answer, args: tuple[Any, ...]) -> Any:
    """The outcome on a copy of the input, of a call that neither feels others nor is felt."""

    def call(*given: Any) -> Any:
        result = _settled(function(*given))
        return result if all(map(_unchanged, args, given)) else _CHANGED

    with _sealed():
        return _outcome(call, copy.deepcopy(args))


@contextlib.contextmanager
def _sealed() -> Iterator[None]:
    """Begin the same every time, let nothing print, and put back what a call may have set."""
    sink = io.TextIOWrapper(io.BytesIO())
    dtype, state = torch.get_default_dtype(), random.getstate()
    disabled, handlers = logging.root.manager.disable, logging.root.handlers[:]
    with (
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
    ):
        try:
            warnings.simplefilter("ignore")
            logging.disable()
            torch.set_default_dtype(torch.float32)
            torch.default_generator.manual_seed(0)
            random.seed(0)
            yield
        finally:
            random.setstate(state)
            torch.set_default_dtype(dtype)
            logging.disable(disabled)
            logging.root.handlers[:] = handlers


def _settled(result: Any) -> Any:
    """A result as what can be compared and no longer changes: tensor, number, list or None."""
    if type(result) in (Tensor, nn.Parameter):
        if result.is_nested or result.layout != torch.strided or result.device.type != "cpu":
            kind = "nested" if result.is_nested else result.layout
            return _Failure(f"got a tensor that is {kind} on {result.device}")
        return result.detach().clone() if result.ndim else _settled(result.item())
    if getattr(result, "ndim", None) == 0:  # a number of numpy's
        return _settled(result.item())
    if isinstance(result, list | tuple):
        return [_settled(x) for x in result]
    if isinstance(result, int | float):
        float(result)  # raises where it is too large to compare
        return result
    if isinstance(result, _Failure | None):
        return result
    return _Failure(f"got type {type(result).__name__}")


def _unchanged(before: Any, after: Any) -> bool:
    """Whether an argument still has its numbers and strides, or a module its weights."""
    if isinstance(before, nn.Module):
        was, now = before.state_dict(), after.state_dict()
        return was.keys() == now.keys() and all(_unchanged(was[name], now[name]) for name in was)
    if isinstance(before, Tensor):
        old, new = ((x.dtype, x.stride()) for x in (before, after))
        return old == new and torch.equal(before, after)
    return callable(before) or bool(before == after)


def _same(a: Any, b: Any) -> bool:
    """Whether two outcomes are equal: numbers within rounding, failures by their reason."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(_close(a, b).all())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b)
    return type(a) is type(b) and bool(a == b)


def _close(a: Tensor, b: Tensor) -> Tensor:
    return torch.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def _said(error: BaseException) -> str:
    """An error in one line, without what changes from call to call."""
    try:
        lines = [] if isinstance(error, RecursionError) else str(error).splitlines()
    except (Exception, SystemExit):
        lines = []
    text = ": ".join([type(error).__name__, *lines[:1]])
    return re.sub(r"0x[0-9a-fA-F]+", "0x..", text)


def _difference(expected: Any, got: Any) -> tuple[str, list[str]]:
    """What to do about it without a name for it, and the first place where it shows."""
    if isinstance(got, _Failure):
        return ENDS if isinstance(got, _Raised) else RETURNS, [
            f"expected {_value(expected)}, {got.why}"
        ]
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        other = got is None or isinstance(expected, Tensor) or isinstance(got, Tensor)
        return RETURNS if other else VALUE, [_versus(expected, got)]
    if expected.shape != got.shape:
        return SHAPE, [f"expected shape {tuple(expected.shape)}, got {tuple(got.shape)}"]
    if expected.dtype != got.dtype:
        return DTYPE, [f"expected dtype {expected.dtype}, got {got.dtype}"]
    off = ~_close(expected, got)
    *row, at = (off if off.any() else expected != got).nonzero()[0].tolist()
    here = tuple(row)
    return NUMBERS, [
        f"at {[*row, at]}: {_versus(expected[here][at].item(), got[here][at].item())}",
        f"row {row or 'of all'}: {_versus(expected[here].tolist(), got[here].tolist(), at)}",
    ]


def _versus(expected: Any, got: Any, at: int = 0) -> str:
    """Both values, with as many digits as it takes to see that they differ."""
    one, other = (_value(x, at) for x in (expected, got))
    for digits in (6, 9):
        if one == other:
            one, other = (_value(x, at, digits=digits) for x in (expected, got))
    return f"expected {one}, got {other}"


def _value(x: Any, at: int = 0, digits: int = 3) -> str:
    """A result as a reader wants it: numbers rounded, and of a long list what is around `at`."""
    if isinstance(x, list):
        start = max(0, min(at - 2, len(x) - 5)) if len(x) > 6 else 0
        stop = start + 5 if len(x) > 6 else len(x)
        parts = [_value(y, digits=digits) for y in x[start:stop]]
        return f"[{', '.join(['..'] * (start > 0) + parts + ['..'] * (stop < len(x)))}]"
    if isinstance(x, Tensor):
        return _shown(x)
    if isinstance(x, int | float) and not isinstance(x, bool):
        return f"{int(x)}" if abs(x) < 1e9 and x == int(x) else f"{x:.{digits}g}"
    return x.why.removeprefix("got ") if isinstance(x, _Failure) else str(x)


def _shown(x: Any) -> str:
    """An argument as a reader wants it: a tensor by its shape."""
    if isinstance(x, Tensor):
        return f"{'mask' if x.dtype == torch.bool else 'tensor'} {tuple(x.shape)}"
    if isinstance(x, nn.Module):
        return type(x).__name__
    return "attention" if callable(x) else str(x)
