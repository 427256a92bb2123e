"""Calls an answer, compares it with the right one, and finds the mistake that explains it."""

import builtins
import contextlib
import copy
import difflib
import functools
import inspect
import io
import linecache
import math
import re
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mha.check.alone as alone
from mha.check.hints import ERRORS, HINTS, SLIPS, TASKS

Answer = Callable[..., Any]
Warned = list[warnings.WarningMessage]

# Advice on a mistake without a name.
ENDS = "your function raises. Call it on such an input yourself, and print shapes on the way."
RETURNS = "it gives another kind of thing than asked for. Look at the line with return."
VALUE = "not the right value, and none of the usual mistakes. Work it out by hand."
SHAPE = "the shape differs, so start there. Which axis is it, and which line makes it?"
DTYPE = "the shape is right, the dtype is not."
NUMBERS = "right shape, wrong numbers, none of the usual mistakes. Work out the first by hand."
BROKEN = """This exercise cannot be marked: its own answer fails here. The fault is not yours.
Restart the kernel and run the cells again. The right answer runs on this input,"""

KINDS: dict[Any, str] = {
    bool | np.bool_: "a bool",
    int | np.integer: "an int",
    float | np.floating: "a float",
    complex | np.complexfloating: "a complex number",
    str: "a str",
    tuple: "a tuple",
    list: "a list",
    dict: "a dict",
    np.ndarray: "a NumPy array",
    types.GeneratorType: "a generator",
    types.CoroutineType: "a coroutine",
    types.NoneType: "None",
}
MOST = 10_000  # numbers of a result that are looked at; no right one has as many


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


@dataclass(frozen=True)
class _Failure:
    """Stands for the result of a call that has none to compare; `why` goes on "expected .., "."""

    why: str


@dataclass(frozen=True)
class _Raised(_Failure):
    """Stands for the error of a call."""

    slip: tuple[str, str] | None = field(default=None, compare=False)
    line: str = field(default="", compare=False)


@dataclass(frozen=True)
class _Outcome:
    """What a call gave: a result to compare or a `_Failure`, and what else was seen."""

    value: Any
    kind: str = ""
    copied: bool = False
    turned: bool = False  # by .T, on more than two axes


_CHANGED = _Failure("but an argument is not what it was before the call")


class Exercise:
    """One exercise, called with an answer.

    Args:
        name: what it asks for; the learner writes a function `my_` and this name.
        right: a right answer.
        inputs: what to call it with, smallest first.
        mistakes: a wrong answer by the name of its mistake, a key of `HINTS`.
        variants: more wrong answers, such as two mistakes at once, each under one of these names.
        views: whether the result is to share the memory of an argument; a copy passes with a
            remark.
        exact: numbers only move, so none may change, not even in the last bit.
    """

    def __init__(
        self,
        name: str,
        right: Answer,
        inputs: Sequence[tuple[Any, ...]],
        mistakes: Mapping[str, Answer],
        variants: Sequence[tuple[str, Answer]] = (),
        *,
        views: bool = False,
        exact: bool = False,
    ) -> None:
        self.name, self._right, self.inputs = name, right, inputs
        self.mistakes, self.variants = mistakes, variants
        self.views, self.exact = views, exact
        self.__doc__ = f"""{TASKS.get(name, "An exercise.")}

Write the function and let the check call it: `check.{name}(my_{name})`.
`check.{name}.example(0)` is a tuple of arguments to try it on."""

    def __repr__(self) -> str:
        return f"check.{self.name}(my_{self.name}); help(check.{self.name}) shows the task"

    def __call__(self, answer: Any) -> Verdict:
        """Mark an answer, a function."""
        mine = f"my_{self.name}"
        if alone.inside():
            raise RuntimeError(f"check.{self.name} stands inside the function; move it out")
        if not callable(answer):
            text = f"Pass your function itself, not its result, {type(answer).__name__}"
            return Verdict(False, None, f"{text}: check.{self.name}({mine}).")
        got: list[_Outcome] = []
        slopes: list[Any] = []
        with alone.sealed() as (printed, warned):
            if broken := self._prepare():
                return Verdict(False, None, f"{BROKEN} {broken}")
            runs_on = False
            try:
                with alone.little_memory():
                    alone.alone(lambda: self._try(answer, got, slopes, warned), alone.LIMIT)
            except TimeoutError as late:
                runs_on = late.args[0]
            if len(got) < len(self._calls):
                hint = f"After {alone.LIMIT:g} seconds it is not done. Does each loop end?"
                hint += " It cannot be stopped and runs on: restart the kernel." * runs_on
                return self._not_yet("too slow", hint, len(got))
            if all(x.value is None for x in got):
                return self._nothing(answer, printed)
            return alone.alone(lambda: self._compare(got, slopes[:1]))

    def example(self, number: int) -> tuple[Any, ...]:
        """The arguments of one of the calls that the check makes, for you to try.

        Args:
            number: which call, from 0, as the message of a check gives it.
        """
        return copy.deepcopy(self._calls[number])

    @functools.cached_property
    def _calls(self) -> list[tuple[Any, ...]]:
        """The inputs, then the largest once more with the numbers of its tensors in reverse.

        That one has the shapes of an input, but another result: who remembers a call is found out.
        """
        sizes = [sum(x.numel() for x in args if isinstance(x, Tensor)) for args in self.inputs]
        if not any(sizes):
            return [*self.inputs]
        largest = self.inputs[sizes.index(max(sizes))]
        fresh = tuple(
            x.flip(*range(x.ndim)) if isinstance(x, Tensor) and x.ndim else x for x in largest
        )
        return [*self.inputs, fresh]

    def _prepare(self) -> str:
        """Find what is right, once; or say why that fails, and try again the next time."""
        if "_expected" not in vars(self):
            expected, slopes = alone.alone(self._answer_key)
            if failed := [x.value for x in expected if isinstance(x.value, _Failure)]:
                return failed[0].why
            self._expected, self._slopes = expected, slopes
        return ""

    def _answer_key(self) -> tuple[list[_Outcome], list[Tensor] | None]:
        calls = [(self._right, args, copy.deepcopy(args)) for args in self._calls]
        return [_outcome(*call) for call in calls], _slopes(self._right, self._calls[-1])

    def _try(self, answer: Answer, got: list[_Outcome], slopes: list[Any], warned: Warned) -> None:
        """Call the answer on everything, until the time is over."""
        for args, given in [(args, copy.deepcopy(args)) for args in self._calls]:
            if alone.over():
                return
            warned.clear()
            outcome = _outcome(answer, args, given, self.views)
            turned = any("of `x.T` on tensors" in str(warning.message) for warning in warned)
            got.append(replace(outcome, turned=turned))
        if self._slopes:
            slopes.append(_slopes(answer, self._calls[-1]))

    def _nothing(self, answer: Answer, printed: io.TextIOWrapper) -> Verdict:
        """What to say to an answer that only gives None."""
        with contextlib.suppress(ValueError):  # closed by the answer
            printed.flush()
            if printed.tell():
                return self._not_yet("print for return", SLIPS["print for return"], 0)
        text = f"Waiting for your answer: my_{self.name} returns None so far."
        return Verdict(False, None, text + " Is a return missing?" * _works(answer))

    def _compare(self, got: Sequence[_Outcome], slopes: Sequence[Any]) -> Verdict:
        passes = [
            _equal(one, other, self.exact) for one, other in zip(self._expected, got, strict=True)
        ]
        if all(passes):
            text = f"Right. my_{self.name} gives what it should on all {len(self.inputs)} inputs."
            remarks = [*self._copies(got), *(x for s in slopes for x in self._cuts(s))]
            return Verdict(True, None, "\n".join([text, *(f"A remark: {x}" for x in remarks)]))
        first = passes.index(False)
        expected, wrong = self._expected[first], got[first]
        advice, difference = _difference(expected.value, wrong.value)
        if mistake := self._mistake([x.value for x in got], passes):
            return self._not_yet(mistake, HINTS[mistake], first, difference)
        if slip := _slip(expected, wrong):
            return self._not_yet(*slip, first, difference)
        earlier = any(_equal(x, wrong) for x in self._expected[:first])
        if earlier and isinstance(wrong.value, Tensor):
            return self._not_yet("remembers a call", SLIPS["remembers a call"], first, difference)
        alike = [name for name, known in self._known if _alike(known[first], wrong.value)]
        if alike:
            advice = f"on this input it looks like {alike[0]}, not on all. {HINTS[alike[0]]}"
        return self._not_yet(None, advice, first, difference)

    def _not_yet(
        self, mistake: str | None, advice: str, at: int, difference: Sequence[str] = ()
    ) -> Verdict:
        """A wrong answer: the mistake, the call where it shows, and how to repeat that."""
        lines = [
            f"Not yet: {f'{mistake}. ' if mistake else ''}{advice}",
            f"In my_{self.name}({', '.join(map(_shown, self._calls[at]))}):",
            *(f"  {line}" for line in difference),
            f"Try it: my_{self.name}(*check.{self.name}.example({at}))",
        ]
        short = (line if len(line) < 160 else f"{line[:157]}.." for line in lines)
        return Verdict(False, mistake, "\n".join(short))

    def _mistake(self, got: Sequence[Any], passes: Sequence[bool]) -> str | None:
        """The mistake that explains every result, or else most wrong ones and at least two.

        Most are enough only for tensors, as any wrong bool is like many others, and only for one
        name. A result of NaN alone, which many mistakes give, is no evidence.
        """
        if got[passes.index(False)] == _CHANGED:
            return "changes its input"
        wrong = [i for i, right in enumerate(passes) if not right]
        for name, known in self._known:
            if all(map(_same, known, got)) and not all(_is_nan(got[i], all) for i in wrong):
                return name
        # The last call repeats one of the others.
        wrong = [i for i in wrong if i < len(self.inputs) and isinstance(got[i], Tensor)]
        for known in (self._known[: len(self.mistakes)], self._known):
            explained = [sum(_alike(results[i], got[i]) for i in wrong) for _, results in known]
            most = max(explained, default=0)
            names = {name for (name, _), n in zip(known, explained, strict=True) if n == most}
            if most > max(1, len(wrong) / 2) and len(names) == 1:
                return names.pop()
        return None

    @functools.cached_property
    def _known(self) -> list[tuple[str, list[Any]]]:
        def results(wrong: Answer) -> list[Any]:
            return [_outcome(wrong, args, copy.deepcopy(args)).value for args in self._calls]

        return [(name, results(f)) for name, f in [*self.mistakes.items(), *self.variants]]

    def _copies(self, got: Sequence[_Outcome]) -> Iterator[str]:
        if copied := [i for i, x in enumerate(got) if x.copied]:
            at = f"check.{self.name}.example({copied[0]})"
            yield f"it copies its input, as on {at}. A view gives the same, and no number moves."

    def _cuts(self, slopes: list[Tensor] | None) -> Iterator[str]:
        """Where the gradient of a right result is not that of the right answer."""
        differ = [
            i
            for i, x in enumerate(self._slopes or [])
            if slopes is None or not torch.allclose(x, slopes[i], rtol=1e-3, atol=1e-4)
        ]
        if differ:
            names = re.findall(r"\w+", TASKS.get(self.name, "").partition("\n")[0])[1:]
            floats = [n for n, x in enumerate(self._calls[-1]) if _is_float(x)]
            to = ", ".join(names[i] if i < len(names) else f"argument {i}"
                           for i in (floats[j] for j in differ))  # fmt: skip
            if slopes is None or not any(slopes[i].any() for i in differ):
                yield f"no gradient reaches {to}. {SLIPS['gradient cut']}"
            else:
                yield f"the gradient that reaches {to} is not that of the formula."


def _outcome(
    function: Answer, args: tuple[Any, ...], given: tuple[Any, ...], views: bool = False
) -> _Outcome:
    """What a call on `given`, a copy of `args`, gives."""
    alone.neutral()
    memory = {_memory(x) for x in given if isinstance(x, Tensor)}
    try:
        result = function(*given)
    except alone.Stopped:
        raise
    except BaseException as error:
        return _Outcome(_raised(error, function, args))
    kind = _kind(result)
    try:
        if not all(map(_unchanged, args, given)):
            return _Outcome(_CHANGED, kind)
        value = _settled(result)
    except alone.Stopped:
        raise
    except BaseException as error:
        return _Outcome(_Failure(f"got {kind} that cannot be compared: {_said(error)}"), kind)
    copied = views and isinstance(value, Tensor) and _memory(result) not in memory
    return _Outcome(value, kind, copied)


def _slopes(function: Answer, args: tuple[Any, ...]) -> list[Tensor] | None:
    """The gradient that reaches each tensor of floats; None where there is no way back."""
    given = copy.deepcopy(args)
    leaves = [x.requires_grad_() for x in given if _is_float(x)]
    alone.neutral()
    try:
        result = function(*given)
        # All different: the gradient of the sum of a softmax is 0.
        weights = torch.arange(result.numel(), device="cpu").view(result.shape) % 7 - 3
        slopes = torch.autograd.grad((result * weights).sum(), leaves, allow_unused=True)
    except alone.Stopped:
        raise
    except BaseException:
        return None
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, slopes, strict=True)]


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _kind(result: Any) -> str:
    """What a result is, in words."""
    if isinstance(result, Tensor):
        if type(result) not in (Tensor, nn.Parameter):
            return f"a tensor of type {type(result).__name__}"
        if result.is_nested or result.is_quantized:
            return "a nested tensor" if result.is_nested else "a quantized tensor"
        if result.layout != torch.strided:
            return "a sparse tensor"
        if result.device.type != "cpu":
            return f"a tensor on {result.device}"
        return "a tensor" if result.ndim else "a tensor of one number"
    for kind, name in KINDS.items():
        if isinstance(result, kind):
            return name
    return f"an object of type {type(result).__name__}"


def _settled(result: Any, room: list[int] | None = None) -> Any:
    """A result as what can be compared and no longer changes: tensor, number, list or None."""
    room = [MOST] if room is None else room
    if isinstance(result, Tensor):
        kind = _kind(result)
        if kind not in ("a tensor", "a tensor of one number"):
            return _Failure(f"got {kind}")
        if result.numel() > MOST:  # its shape is enough to see that it is wrong
            return torch.empty(result.shape, dtype=result.dtype, device="meta")
        return result.detach().clone() if result.ndim else _settled(result.item())
    if isinstance(result, np.generic):
        return _settled(result.item())
    if isinstance(result, np.ndarray) and result.ndim == 0:
        return _settled(result.item())
    if isinstance(result, list | tuple):
        room[0] -= len(result)
        if room[0] < 0:
            raise OverflowError(f"more than {MOST:,} values")
        return [_settled(x, room) for x in result]
    if isinstance(result, int | float):
        float(result)  # raises where it is too large to compare
        return result
    if inspect.iscoroutine(result):
        result.close()
    return None if result is None else _Failure(f"got {_kind(result)}")


def _unchanged(before: Any, after: Any) -> bool:
    """Whether an argument still has its numbers and strides, or a module its weights."""
    if isinstance(before, nn.Module):
        was, now = before.state_dict(), after.state_dict()
        return was.keys() == now.keys() and all(_unchanged(was[name], now[name]) for name in was)
    if isinstance(before, Tensor):
        old, new = ((x.dtype, x.stride()) for x in (before, after))
        return old == new and torch.equal(before, after)
    return callable(before) or bool(before == after)


def _equal(expected: _Outcome, got: _Outcome, exact: bool = False) -> bool:
    one, other = expected.value, got.value
    if isinstance(other, _Failure) or not _same(one, other):
        return False
    return not exact or not isinstance(one, Tensor) or torch.equal(one, other)


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


def _alike(known: Any, got: Any) -> bool:
    """Whether a tensor is what a mistake gives, and more than NaN."""
    return isinstance(got, Tensor) and _same(known, got) and not _is_nan(got, all)


def _close(a: Tensor, b: Tensor) -> Tensor:
    return torch.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def _said(error: BaseException) -> str:
    """An error in one line, without what changes from call to call."""
    try:
        lines = [] if isinstance(error, RecursionError) else str(error).splitlines()
    except BaseException:
        lines = []
    text = ": ".join([type(error).__name__, *lines[:1]])
    return re.sub(r"0x[0-9a-fA-F]+", "0x..", text)


# ---- slips: mistakes that any exercise can meet


def _raised(error: BaseException, function: Answer, args: tuple[Any, ...]) -> _Raised:
    """An error, the slip behind it, and the line of the answer where it is."""
    said = _said(error)
    frame, line = _place(error)
    slip = _slip_behind(error, said, frame, function, args)
    return _Raised(f"but it raises {said}", slip, line)


def _slip_behind(
    error: BaseException, said: str, frame: Any, function: Answer, args: tuple[Any, ...]
) -> tuple[str, str] | None:
    if isinstance(error, TypeError) and frame is None:
        with contextlib.suppress(TypeError, ValueError):  # it has no signature
            takes = inspect.signature(function)
            try:
                takes.bind(*args)
            except TypeError:
                hint = f"It takes {takes}, and is called with {len(args)} arguments."
                return "wrong number of parameters", hint
    if isinstance(error, UnboundLocalError):
        return "no value yet", SLIPS["no value yet"]
    if isinstance(error, NameError | AttributeError) and error.name:
        known = dir(error.obj) if isinstance(error, AttributeError) else dir(builtins)
        if isinstance(error, NameError) and frame is not None:
            known = [*frame.f_locals, *frame.f_globals, *known]
        near = difflib.get_close_matches(error.name, known, n=1)
        hint = f"{error.name}: did you mean {near[0]}?" if near else SLIPS["unknown name"]
        return "unknown name", hint
    for name, pattern in ERRORS.items():
        if re.search(pattern, said):
            return name, SLIPS[name]
    return None


def _place(error: BaseException) -> tuple[Any, str]:
    """The innermost frame of the learner's own code, and its line, as far as it is known."""
    frame, line, trace = None, "", error.__traceback__
    while trace:
        code = trace.tb_frame.f_code
        if not _is_library(code.co_filename):
            source = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            frame, line = trace.tb_frame, f"line {trace.tb_lineno}: {source}".removesuffix(": ")
        trace = trace.tb_next
    return frame, line


@functools.cache
def _is_library(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package, or to the exercises."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    path, here = Path(file), Path(__file__).parent
    ours = path.parent in (here, here.parent) or file.startswith("<frozen")
    return ours or any(path.is_relative_to(place) for place in places)


def _slip(expected: _Outcome, got: _Outcome) -> tuple[str, str] | None:
    """A mistake that does not depend on the exercise, and its hint."""
    value = got.value
    if got.turned:
        return ".T on more than two axes", SLIPS[".T on more than two axes"]
    if isinstance(value, _Raised):
        return value.slip
    if value is None:
        return "no return", SLIPS["no return"]
    if _group(expected.value) != _group(value):
        hint = SLIPS.get(f"{got.kind}, not {expected.kind}", SLIPS.get(got.kind, ""))
        asked = f"{expected.kind[0].upper()}{expected.kind[1:]} is asked for."
        return f"returns {got.kind}", f"{asked} {hint}".strip()
    if _is_nan(value, any) and not _is_nan(expected.value, any):
        return "NaN", SLIPS["NaN"]
    return None


def _group(value: Any) -> type:
    """Numbers are of one kind, whether whole or not; bools are of another."""
    return float if type(value) is int else type(value)


def _is_nan(value: Any, quantifier: Callable[[Any], bool]) -> bool:
    """Whether any or all of a result is NaN."""
    if isinstance(value, Tensor):
        floats = value.dtype in (torch.float32, torch.float64) and not value.is_meta
        return floats and bool(quantifier(value.isnan().flatten().tolist()))
    return isinstance(value, float) and math.isnan(value)


def _works(answer: Answer) -> bool:
    """Whether a function does more than `pass`."""
    code = getattr(inspect.unwrap(answer), "__code__", None)
    return code is not None and len(code.co_code) > len(_stub.__code__.co_code)


def _stub(x: Any) -> None:
    pass


# ---- what the message shows


def _difference(expected: Any, got: Any) -> tuple[str, list[str]]:
    """What to do about it without a name for it, and the first place where it shows."""
    if isinstance(got, _Failure):
        seen = f"expected {_value(expected)}, {got.why}"
        if isinstance(got, _Raised):
            return ENDS, [seen, *filter(None, [got.line])]
        return RETURNS, [seen]
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
