"""What the measurements compare is equal, and the clock is read fairly. No test waits for time."""

import subprocess
import sys
from collections.abc import Callable
from mmap import mmap

import pytest
import torch
from torch import Tensor

from mha import cost, multi_head_attention
from mha.cost import (
    fused,
    interleaved,
    looped,
    page_faults,
    peak_bytes,
    ratio,
    score_bytes,
    textbook,
)


@pytest.mark.parametrize("function", [looped, textbook, fused])
@pytest.mark.parametrize(("batch", "num_heads", "head_dim"), [(2, 3, 4), (1, 1, 12), (3, 3, 2)])
def test_all_that_is_compared_computes_the_same(
    function: Callable[..., Tensor], batch: int, num_heads: int, head_dim: int
) -> None:
    q, k, v = torch.randn(3, batch, 5, num_heads * head_dim, dtype=torch.float64)
    expected = multi_head_attention(q, k, v, num_heads)
    torch.testing.assert_close(function(q, k, v, num_heads), expected)


def test_a_loop_takes_keys_of_another_length() -> None:
    q, k, v = torch.randn(2, 1, 12), torch.randn(2, 5, 12), torch.randn(2, 5, 6)
    expected = multi_head_attention(q, k, v, num_heads=3)
    torch.testing.assert_close(looped(q, k, v, num_heads=3), expected)
    torch.testing.assert_close(fused(q, k, v, num_heads=3), expected)


def test_score_bytes_is_the_memory_of_the_scores() -> None:
    scores = torch.empty(2, 3, 5, 7, dtype=torch.float64)
    assert score_bytes(2, 3, 5, 7, itemsize=8) == scores.untyped_storage().nbytes()


def test_peak_bytes_counts_what_is_held_at_once() -> None:
    x = torch.zeros(1000)  # 4,000 bytes, not counted: it is there before
    assert peak_bytes(lambda: x.view(10, 100).mT) == 0
    assert peak_bytes(lambda: x + 1) == 4000
    assert peak_bytes(lambda: ((x + 1) + 1) + 1) == 8000, "the first sum is free by the third"
    assert peak_bytes(lambda: [x + 1, x + 1, x + 1]) == 12000
    assert peak_bytes(lambda: x.clone().add_(1)) == 4000


def test_the_formula_holds_the_scores_of_all_heads_and_a_loop_those_of_one() -> None:
    q, k, v = torch.randn(3, 1, 64, 24)
    all_heads, one_head = (score_bytes(1, n, 64, 64) for n in (12, 1))
    width = q.untyped_storage().nbytes()
    assert peak_bytes(lambda: multi_head_attention(q, k, v, 12)) == 2 * all_heads
    assert one_head < peak_bytes(lambda: looped(q, k, v, 12)) < 2 * one_head + 2 * width
    assert peak_bytes(lambda: fused(q, k, v, 12)) < 2 * width


def test_page_faults_counts_fresh_memory() -> None:
    pytest.importorskip("resource")
    fresh = page_faults(lambda: mmap(-1, 2**24).write(b"x" * 2**24))
    kept = page_faults(lambda: sum(range(10)))
    assert fresh is not None
    assert kept is not None
    assert fresh > kept + 5, "16 MiB: 4,096 pages, or 8 huge ones"


def test_page_faults_says_that_it_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert page_faults(lambda: None) is None


class Bench:
    """Calls that write down their names and move a clock by what they cost."""

    def __init__(self, **costs: float) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.costs = costs

    def calls(self) -> dict[str, Callable[[], object]]:
        def call(name: str) -> Callable[[], object]:
            return lambda: self.run(name)

        return {name: call(name) for name in self.costs}

    def run(self, name: str) -> None:
        self.log.append(name)
        self.now += self.costs[name]

    def clock(self) -> float:
        return self.now


def test_rounds_take_turns_in_alternating_order() -> None:
    bench = Bench(a=1.0, b=3.0)
    spent = interleaved(bench.calls(), seconds=0, clock=bench.clock)
    assert "".join(bench.log) == "aabb" + "ab" + "ba" + "ab" + "ba" + "ab"
    assert spent == {"a": [1.0] * 5, "b": [3.0] * 5}
    assert ratio(spent, "b", to="a") == 3


def test_rounds_go_on_until_the_time_is_over() -> None:
    bench = Bench(a=1.0, b=3.0)
    assert len(interleaved(bench.calls(), seconds=79, clock=bench.clock)["a"]) == 20


def test_short_calls_are_repeated_and_counted_one_by_one() -> None:
    bench = Bench(short=0.25e-3, long=1.0)
    spent = interleaved(bench.calls(), seconds=0, clock=bench.clock)
    assert bench.log.count("short") == 2 + 5 * 8
    assert bench.log.count("long") == 2 + 5
    assert spent["short"] == pytest.approx([0.25e-3] * 5)


def test_a_slow_spell_of_the_machine_does_not_change_a_ratio() -> None:
    spent = {"a": [1.0, 10.0, 1.0, 1.0], "b": [2.0, 20.0, 2.0, 2.0]}
    assert ratio(spent, "a", to="b") == 0.5


def test_the_command_prints_every_size_and_its_limits() -> None:
    code = (
        "import json, runpy, subprocess, sys\n"
        "rows = [{'explicit/textbook': 1.5, 'fused/kernel': 1.0, 'looped/explicit': 2.0}] * 3\n"
        "subprocess.check_output = lambda command: json.dumps(rows)\n"
        "runpy.run_module('mha.cost', run_name='__main__')\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = out.stdout.splitlines()
    assert lines[0].startswith("median of 5 processes")
    assert len(lines) == 1 + len(cost.SIZES) * 4
    assert lines[1] == "batch 2, seq 5, d_model 12, num_heads 3"
    assert lines[2].split() == [
        "explicit/textbook",
        "1.50",
        "(1.50",
        "to",
        "1.50)",
        "at",
        "most",
        "1.6",
    ]
    assert lines[3] == "  fused/kernel        1.00  (1.00 to 1.00)"
