"""What heads cost: a loop over heads, the formula for all at once, and the fused kernel, measured.

`python -m mha.cost` compares them in five fresh processes and prints the median of their ratios.
"""

import json
import math
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mha.attention import multi_head_attention, scaled_dot_product_attention, split_heads

# batch, seq, d_model, num_heads; then the most that explicit/textbook and fused/kernel may be.
SIZES = {
    (2, 5, 12, 3): (1.6, math.inf),
    (2, 512, 512, 8): (1.1, 1.05),
    (1, 2048, 768, 12): (0.95, 1.05),
}

fused = partial(multi_head_attention, attend=F.scaled_dot_product_attention)


def looped(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
    """One head after the other: (batch, seq_q, d_model), the heads side by side."""
    heads = zip(*(x.chunk(num_heads, dim=-1) for x in (q, k, v)), strict=True)
    return torch.cat([scaled_dot_product_attention(*head) for head in heads], dim=-1)


def textbook(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
    """The formula as it is usually written: input unchecked, and the scores scaled, not q."""
    batch, seq, d_model = q.shape
    head_dim = d_model // num_heads
    qh, kh, vh = (x.view(batch, seq, num_heads, head_dim).transpose(1, 2) for x in (q, k, v))
    scores = qh @ kh.transpose(-1, -2) / math.sqrt(head_dim)
    out_h = scores.softmax(dim=-1) @ vh
    return out_h.transpose(1, 2).contiguous().view(batch, seq, d_model)


def score_bytes(batch: int, num_heads: int, seq_q: int, seq_k: int, itemsize: int = 4) -> int:
    """The memory that the scores of all heads take at once, in bytes.

    >>> score_bytes(batch=1, num_heads=12, seq_q=2048, seq_k=2048) // 2**20
    192
    """
    return batch * num_heads * seq_q * seq_k * itemsize


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that the tensors made inside `call` hold at one time, in bytes.

    What a kernel uses inside one operation is not seen; the fused one needs a little.

    >>> x = torch.zeros(1000)
    >>> peak_bytes(lambda: (x + 1) * 2)
    8000
    """
    held = _Held()
    with torch.no_grad(), held:
        call()
    return held.peak


class _Held(TorchDispatchMode):
    """Adds up, after every operation, the storages that are still in use."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[StorageWeakRef, int] = {}
        self.peak: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = set(_storages((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        made = {ref: size for ref, size in _storages(result).items() if ref not in given}
        self.sizes = {ref: n for ref, n in {**self.sizes, **made}.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


def _storages(tree: Any) -> dict[StorageWeakRef, int]:
    found = (x.untyped_storage() for x in pytree.tree_leaves(tree) if isinstance(x, Tensor))
    return {StorageWeakRef(storage): storage.nbytes() for storage in found}


def page_faults(call: Callable[[], object]) -> int | None:
    """How many pages of memory a second `call` takes from the operating system.

    Memory that was freed and kept is used again; a large block goes back to the system, and the
    next one costs a fault for each page that is touched. None on Windows, which does not tell.
    """
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        return None
    call()
    before = getrusage(RUSAGE_SELF).ru_minflt
    call()
    return getrusage(RUSAGE_SELF).ru_minflt - before


def interleaved(
    calls: dict[str, Callable[[], object]],
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time calls in turn, so that whatever slows the machine slows all of them alike.

    Args:
        calls: what to time, by name.
        seconds: how long to go on; at least 5 rounds, each in the reverse order of the one before.
        clock: tells the time, in seconds.

    Returns:
        The seconds that one call took, a number for each round, by name.
    """
    timers = {name: timeit.Timer(call, timer=clock) for name, call in calls.items()}
    # The first call is always slow; short ones are repeated until the clock tells them apart.
    once = {name: min(timer.repeat(repeat=2, number=1)) for name, timer in timers.items()}
    repeats = {name: math.ceil(2e-3 / max(one, 1e-6)) for name, one in once.items()}
    spent: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    end = clock() + seconds
    while len(spent[order[0]]) < 5 or clock() < end:
        for name in order:
            spent[name].append(timers[name].timeit(repeats[name]) / repeats[name])
        order.reverse()
    return spent


def ratio(spent: dict[str, list[float]], name: str, to: str) -> float:
    """The median, over the rounds, of the time of one call as a multiple of another's."""
    return median(a / b for a, b in zip(spent[name], spent[to], strict=True))


def _ratios(batch: int, seq: int, d_model: int, num_heads: int) -> dict[str, float]:
    q, k, v = torch.randn(3, batch, seq, d_model)
    qh, kh, vh = (split_heads(x, num_heads) for x in (q, k, v))
    calls: dict[str, Callable[[], object]] = {
        "looped": lambda: looped(q, k, v, num_heads),
        "textbook": lambda: textbook(q, k, v, num_heads),
        "explicit": lambda: multi_head_attention(q, k, v, num_heads),
        "fused": lambda: fused(q, k, v, num_heads),
        "kernel": lambda: F.scaled_dot_product_attention(qh, kh, vh),
    }
    pairs = ("explicit", "textbook"), ("fused", "kernel"), ("looped", "explicit")
    with torch.inference_mode():
        return {f"{a}/{b}": ratio(interleaved({a: calls[a], b: calls[b]}), a, b) for a, b in pairs}


if __name__ == "__main__":
    if "--once" in sys.argv:
        print(json.dumps([_ratios(*size) for size in SIZES]))
        sys.exit()
    once = [sys.executable, "-m", "mha.cost", "--once"]
    runs = [json.loads(subprocess.check_output(once)) for _ in range(5)]
    print(f"median of {len(runs)} processes, {torch.get_num_threads()} threads")
    for place, (size, most) in enumerate(SIZES.items()):
        print("batch {}, seq {}, d_model {}, num_heads {}".format(*size))
        for pair, bar in zip(runs[0][place], (*most, math.inf), strict=True):
            found = sorted(run[place][pair] for run in runs)
            limit = f"  at most {bar}" if bar < math.inf else ""
            print(f"  {pair:18} {median(found):5.2f}  ({found[0]:.2f} to {found[-1]:.2f}){limit}")
