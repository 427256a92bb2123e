"""Runs an answer where it neither feels nor changes what is around it, and not for ever.

An answer runs in a thread of its own, for three reasons. Modes of torch (default device, autocast,
no_grad, function modes) belong to a thread, so a new one begins without them and takes its own
with it. The main thread stays free: it sees the clock and the user's interrupt on every system,
whatever the answer is doing. And an interrupt of the user is never mistaken for the answer's own.
"""

import builtins
import contextlib
import ctypes
import io
import logging
import os
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

T = TypeVar("T")

# Seconds of work for all calls of an answer, or twice as many on the clock, where a busy machine
# lets it wait. A right one takes milliseconds, or seconds where it is compiled.
LIMIT = 5.0
MEMORY = 4 << 30  # bytes that it may add, on Linux, which can refuse more
GRACE = 0.5  # seconds to end in, once told to


class Stopped(BaseException):
    """Ends an answer that takes too long.

    Not an Exception, which an answer may catch. Where it is caught all the same, by a bare except,
    it comes again at the next line: being made in the answer's thread, it can see to that.
    """

    def __init__(self) -> None:
        frame = sys._getframe().f_back
        while frame and not frame.f_globals.get("__name__", "").startswith("mha.check"):
            frame.f_trace = _stop_again
            frame = frame.f_back
        sys.settrace(lambda *event: None)  # without one, that of a frame is not called


def _stop_again(frame: types.FrameType, event: str, argument: Any) -> NoReturn:
    raise Stopped


class _Thread(threading.Thread):
    """Runs an answer."""

    over = False  # its time


def inside() -> bool:
    """Whether this code is called by an answer that is being checked."""
    return isinstance(threading.current_thread(), _Thread)


def over() -> bool:
    """Whether the time of the answer that calls this is over."""
    return getattr(threading.current_thread(), "over", False)


def alone(function: Callable[[], T], seconds: float = float("inf")) -> T:
    """What a function returns, called in a new thread.

    A single call into C cannot be stopped: a thread that is in one is left to end later, and one
    that does not let other threads run is waited for.

    Raises:
        TimeoutError: It takes longer; `args` says whether it runs on.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            neutral()
            results.append(function())
        except Stopped:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = _Thread(target=run, daemon=True)
    clock, work = time.monotonic(), time.process_time()
    thread.start()
    try:
        # In short steps: on Windows an interrupt waits for the end of one. And not by join, which
        # takes a thread for dead when an interrupt comes.
        while not done.wait(0.05):
            passed, worked = time.monotonic() - clock, time.process_time() - work
            if min(passed, worked) > seconds or passed > 2 * seconds:
                break
    finally:
        _stop(thread, done)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(not done.is_set())
    return results[0]


def _stop(thread: _Thread, done: threading.Event) -> None:
    """Raise `Stopped` in a thread until it ends."""
    thread.over = True
    end = time.monotonic() + GRACE
    while not done.is_set() and time.monotonic() < end:
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Stopped))
        done.wait(0.01)
    if done.is_set():
        thread.join()


def neutral() -> None:
    """Begin the same every time; inside `sealed`, which undoes it."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    _set_determinism((False, False))
    torch.default_generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    _set_logging(logging.CRITICAL)
    warnings.simplefilter("always")
    torch.set_warn_always(True)
    builtins.input = sys.breakpointhook = _nobody_answers


@contextlib.contextmanager
def sealed() -> Iterator[tuple[io.TextIOWrapper, list[warnings.WarningMessage]]]:
    """Put back all that an answer may have set, and yield what it prints and its warnings."""
    sink = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace")
    saved = [(put, get()) for get, put in SETTINGS]
    with (
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
        warnings.catch_warnings(record=True) as warned,
        # Of this thread, for what is made in it.
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        try:
            yield sink, warned
        finally:
            for put, value in saved:
                with contextlib.suppress(OSError):  # a folder may be gone
                    put(value)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Let a huge allocation fail at once, where the system can see to it, and not fill memory."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as sizes:
        limit = int(sizes.read().split()[0]) * resource.getpagesize() + MEMORY
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _nobody_answers(*args: object, **options: object) -> NoReturn:
    raise EOFError("nobody answers here; call your function yourself to use input or breakpoint")


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_determinism(value: tuple[bool, bool]) -> None:
    if value != _determinism():  # takes milliseconds
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_logging(level: int) -> None:
    if level != logging.root.manager.disable:  # clears a cache of every logger
        logging.disable(level)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return os.curdir


def _set_environment(before: dict[str, str]) -> None:
    if before != os.environ.copy():
        os.environ.clear()
        os.environ.update(before)


def _figures() -> list[int]:
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    return pyplot.get_fignums() if pyplot else []


def _set_figures(before: list[int]) -> None:
    for number in {*_figures()} - {*before}:
        sys.modules["matplotlib.pyplot"].close(number)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


# What belongs to the process, each as the functions that get and set it.
SETTINGS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_warn_always_enabled, torch.set_warn_always),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.default_generator.get_state, torch.default_generator.set_state),
    (_determinism, _set_determinism),
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (os.environ.copy, _set_environment),
    (_folder, os.chdir),
    (_figures, _set_figures),
    (lambda: logging.root.manager.disable, _set_logging),
    (lambda: logging.root.handlers[:], lambda x: setattr(logging.root, "handlers", x)),
    _attribute(builtins, "input"),
    _attribute(sys, "breakpointhook"),
]
