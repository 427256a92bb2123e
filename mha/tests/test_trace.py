"""`trace` on our code and on code that we did not write."""

import contextlib
import copy
import functools
import gc
import html
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import einops
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention

from mha import multi_head_attention, split_heads
from mha.layout import Layout
from mha.steps import HEADER, Step, Steps
from mha.trace import trace

SIZES = {"batch": 2, "seq": 5, "num_heads": 3, "head_dim": 4, "d_model": 12}


def x_() -> Tensor:
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))


def calls(steps: Steps) -> list[str]:
    return [step.call for step in steps]


def memory(steps: Steps) -> list[str]:
    return [step.memory for step in steps]


def no_mode_is_left() -> bool:
    """Whether torch hands its calls to nobody."""
    return torch._C._len_torch_function_stack() == 0


def copy_then_raise(x: Tensor, error: type[BaseException]) -> None:
    x.mT.contiguous()
    raise error


# The table


def test_the_table_as_text() -> None:
    x = torch.arange(120.0).view(2, 5, 12)
    with trace(**SIZES) as steps:
        heads = x.view(2, 5, 3, 4).transpose(1, 2)
        scores = (heads / 2.0) @ heads.transpose(-1, -2)
        out_h = scores.softmax(dim=-1) @ heads
        out_h.transpose(1, 2).contiguous().view(2, 5, 12).sum()
    assert (
        repr(steps)
        == """\
call               shape         strides         contiguous  memory  axes
view(2, 5, 3, 4)   (2, 5, 3, 4)  (60, 12, 4, 1)  yes         same    batch seq num_heads head_dim
transpose(1, 2)    (2, 3, 5, 4)  (60, 4, 12, 1)  no          same    batch num_heads seq head_dim
div(2)             (2, 3, 5, 4)  (60, 4, 12, 1)  no          new     batch num_heads seq head_dim
transpose(-1, -2)  (2, 3, 4, 5)  (60, 4, 1, 12)  no          same    batch num_heads head_dim seq
matmul(2×3×4×5)    (2, 3, 5, 5)  (75, 25, 5, 1)  yes         new     batch num_heads seq seq
softmax(dim=-1)    (2, 3, 5, 5)  (75, 25, 5, 1)  yes         new     batch num_heads seq seq
matmul(2×3×5×4)    (2, 3, 5, 4)  (60, 20, 4, 1)  yes         new     batch num_heads seq head_dim
transpose(1, 2)    (2, 5, 3, 4)  (60, 4, 20, 1)  no          same    batch seq num_heads head_dim
contiguous()       (2, 5, 3, 4)  (60, 12, 4, 1)  yes         copied  batch seq num_heads head_dim
view(2, 5, 12)     (2, 5, 12)    (60, 12, 1)     yes         same    batch seq d_model
sum()              ()            ()              yes         new"""
    )


def test_without_sizes_there_are_no_axes_and_without_steps_only_the_header() -> None:
    with trace() as steps:
        assert repr(steps) == "  ".join(HEADER)
        torch.arange(6)
    assert (
        repr(steps)
        == """\
call       shape  strides  contiguous  memory
arange(6)  (6,)   (1,)     yes         new"""
    )
    assert steps[0].axes == ()


def test_sizes_that_are_equal_share_their_axis() -> None:
    with trace(batch=2, num_heads=2, seq=5, head_dim=2) as steps:
        torch.zeros(2, 5, 7)
    assert steps[0].axes == ("batch/num_heads/head_dim", "seq", "7")


class Table(HTMLParser):
    """The cells of a table, row by row, as (tag, colspan, text)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, int, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append((tag, int(dict(attrs).get("colspan") or 1), ""))
        assert tag in ("table", "thead", "tbody", "tr", "td", "th"), "not escaped"

    def handle_data(self, data: str) -> None:
        if data.strip():
            tag, span, text = self.rows[-1][-1]
            self.rows[-1][-1] = (tag, span, text + data)


def test_the_table_as_html_says_the_same() -> None:
    x = x_()
    with trace(**SIZES) as steps, contextlib.suppress(RuntimeError):
        x.transpose(1, 2).view(2, 60)
    header, transposed, failed = Table(steps._repr_html_()).rows
    assert [text for _, _, text in header] == list(steps.header())
    assert {tag for tag, _, _ in header} == {"th"}
    assert [text for _, _, text in transposed] == list(steps[0].cells())
    assert [(tag, span) for tag, span, _ in failed] == [("td", 1), ("td", len(header) - 1)]
    assert failed[1][2] == steps[1].error


def test_html_escapes_what_the_traced_code_says() -> None:
    steps = Steps([Step("<script>&", (2,), (1,)), Step("f", error='<b>"bad" & worse</b>')])
    assert "<script>" not in steps._repr_html_()
    texts = [text for row in Table(steps._repr_html_()).rows[1:] for _, _, text in row]
    assert texts[0] == "<script>&"
    assert texts[-1] == '<b>"bad" & worse</b>'
    assert html.escape("<script>&") in steps._repr_html_()


def test_a_part_of_the_steps_prints_as_a_table_too() -> None:
    x = x_()
    with trace() as steps:
        x.mT.contiguous().sum()
    assert isinstance(steps[1:], Steps)
    assert repr(steps[1:]).splitlines()[1].startswith("contiguous()")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (lambda x: x[..., None], "[..., None]"),
        (lambda x: x[:, 1:], "[:, 1:]"),
        (lambda x: x[0, ::2, :-1], "[0, ::2, :-1]"),
        (lambda x: x[x > 0], "[2×5×12]"),
        (lambda x: x.T if x.ndim < 3 else x.mT, ".mT"),
        (lambda x: 1 - x, "rsub(1)"),
        (lambda x: x / 3, "div(3)"),
        (lambda x: -x, "neg()"),
        (lambda x: x @ x.mT, "matmul(2×12×5)"),
        (lambda x: torch.matmul(x, x.mT), "matmul(2×12×5)"),
        (lambda x: x.masked_fill(x > 0, float("-inf")), "masked_fill(2×5×12, -inf)"),
        (lambda x: x / 3**0.5, "div(1.732)"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), None),
        (lambda x: torch.einsum("bqd,bkd->bqk", x, x), "einsum(bqd,bkd->bqk, 2×5×12, 2×5×12)"),
        (lambda x: torch.cat([x, x], dim=1), "cat([2×5×12, 2×5×12], dim=1)"),
        (lambda x: x.unflatten(-1, (3, 4)), "unflatten(-1, (3, 4))"),
        (lambda x: x.to(torch.float64), "to(torch.float64)"),
        (lambda x: x.sum() + 0, "add(0)"),
        (lambda x: x * x.sum(), "mul(scalar)"),
    ],
)
def test_a_call_reads_as_it_was_written(code: Callable[[Tensor], Tensor], expected: str) -> None:
    x = x_()
    with trace() as steps:
        result = code(x)
    call = "scaled_dot_product_attention(2×5×12, 2×5×12, is_causal=True)"
    assert steps[-1].call == (expected or call)
    assert (steps[-1].shape, steps[-1].strides) == (tuple(result.shape), result.stride())
    assert steps[-1].contiguous == result.is_contiguous()


class Opaque:
    """Its text is an address, which no stored output may hold."""

    def __call__(self, x: float, y: float = 0.0) -> float:
        return x + y


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (lambda: torch.rand(2, generator=torch.Generator()), "rand(2, generator=Generator)"),
        (lambda: torch.tensor(np.ones((2, 2))), "tensor(ndarray)"),
        (lambda: torch.zeros(2).apply_(functools.partial(Opaque(), y=1.0)), "apply_(partial)"),
        (lambda: torch.zeros(2).apply_(Opaque()), "apply_(Opaque)"),
        (lambda: torch.zeros(2).apply_(abs), "apply_(abs)"),
        (lambda: copy.deepcopy([torch.zeros(2), torch.zeros(2)])[1], "deepcopy(dict)"),
    ],
)
def test_an_argument_that_has_no_short_text_shows_its_type(
    code: Callable[[], Tensor], expected: str
) -> None:
    with trace() as steps:
        code()
    assert steps[-1].call == expected
    assert len(repr(steps).splitlines()) == len(steps) + 1


def test_no_property_reads_but_views() -> None:
    x = x_()
    with trace() as steps:
        _ = (x.shape, x.dtype, x.device, x.grad, x.ndim, x.requires_grad, x.is_leaf, x.layout)
        _ = (x.size(), x.stride(), x.numel(), x.is_contiguous(), len(x), str(x), x.data_ptr())
        assert not hasattr(x, "__cuda_array_interface__")
    assert [step for step in steps if not step.error] == []
    with trace() as steps:
        _ = (x[0].T, x.mT, x[0].H, x.mH, x.real, torch.view_as_complex(x.view(2, 5, 6, 2)).imag)
    assert [call for call in calls(steps) if call.startswith(".")] == [
        ".T", ".mT", ".H", ".mH", ".real", ".imag",
    ]  # fmt: skip
    assert set(memory(steps)) == {"same"}


# Memory


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (lambda x: x.view(2, 60), "same"),
        (lambda x: x.reshape(2, 60), "same"),
        (lambda x: x.mT.reshape(2, 60), "copied"),
        (lambda x: x.mT.flatten(), "copied"),
        (lambda x: x.flatten(), "same"),
        (lambda x: x.contiguous(), "same"),
        (lambda x: x.mT.contiguous(), "copied"),
        (lambda x: x.clone(), "copied"),
        (lambda x: x[:, None].expand(2, 3, 5, 12), "same"),
        (lambda x: x.repeat(1, 3, 1), "copied"),
        (lambda x: x.repeat_interleave(3, dim=1), "copied"),
        (lambda x: torch.stack([x, x]), "copied"),
        (lambda x: x[0], "same"),
        (lambda x: x[[0, 1]], "copied"),
        (lambda x: x[x > 3], "copied"),
        (lambda x: x.flip(1), "copied"),
        (lambda x: x.detach(), "same"),
        (lambda x: x.float(), "same"),
        (lambda x: x.double(), "new"),
        (lambda x: x + 0, "new"),
        (lambda x: x.softmax(-1), "new"),
        (lambda x: x.mul_(2), "same, written"),
        (lambda x: torch.add(x, 1, out=x), "same, written"),
        (lambda x: F.relu(x, inplace=True), "same, written"),
        (lambda x: x.unsqueeze_(0), "same"),
        (lambda x: x.transpose_(0, 1), "same"),
        (lambda x: x.data, "same"),
        (lambda x: F.dropout(x, 0.5, training=False), "same"),
        (lambda x: torch.zeros(3), "new"),
        (lambda x: torch.zeros(0, 3), "-"),
        (lambda x: torch.zeros(0, 3).mT.contiguous(), "-"),
        (lambda x: torch.zeros(2, 3, device="meta").mT, "-"),
        (lambda x: x.to("meta"), "-"),
        (lambda x: x[0].to_sparse(), "-"),
    ],
)
def test_memory_is_same_copied_or_new(code: Callable[[Tensor], Tensor], word: str) -> None:
    x = x_()
    with trace() as steps:
        result = code(x)
    assert steps[-1].memory == word
    if word != "-":
        shared = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert shared == word.startswith("same"), "the test itself is wrong"


TABLE = torch.arange(24.0).view(4, 6)
ROWS = torch.tensor([[3], [0], [1], [2]])
MOVING: dict[str, Callable[[Tensor], Tensor]] = {
    "hstack": lambda t: torch.hstack([t, t]),
    "vstack": lambda t: torch.vstack([t, t]),
    "column_stack": lambda t: torch.column_stack([t, t]),
    "concatenate": lambda t: torch.concatenate([t, t]),
    "stack": lambda t: torch.stack([t, t]),
    "rot90": torch.rot90,
    "fliplr": torch.fliplr,
    "roll": lambda t: t.roll(1),
    "tile": lambda t: t.tile(2),
    "take_along_dim": lambda t: t.take_along_dim(ROWS, 0),
    "gather": lambda t: t.gather(0, ROWS),
    "index_select": lambda t: t.index_select(0, ROWS[:, 0]),
    "list": lambda t: t[[2, 0]],
    "mask": lambda t: t[[True, False, True, False]],
    "repeat_interleave": lambda t: t.repeat_interleave(2, 0),
    "repeat_interleave, each": lambda t: t.repeat_interleave(ROWS[:, 0], 0),
    "embedding": lambda t: F.embedding(ROWS, t),
    "to(copy)": lambda t: t.to(t.dtype, copy=True),
    "to(memory_format)": lambda t: t.view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "permute_copy": lambda t: torch.permute_copy(t, (1, 0)),
    "narrow_copy": lambda t: torch.narrow_copy(t, 0, 1, 2),
    "deepcopy": copy.deepcopy,
    "pixel_shuffle": lambda t: F.pixel_shuffle(t.view(1, 4, 2, 3), 2),
    "new_tensor": lambda t: t.new_tensor(t),
    "torch.tensor": lambda t: torch.tensor(t),
    "aten.clone": torch.ops.aten.clone.default,
    "where": lambda t: torch.where(ROWS > 1, t, t),
    "pad by reflection": lambda t: F.pad(t[None], (1, 1), mode="reflect"),
    "slice_scatter": lambda t: torch.slice_scatter(t, t.view(4, 6)[:2], 0, 0, 2),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64])
@pytest.mark.parametrize("name", MOVING)
def test_a_call_that_only_moves_has_copied(name: str, dtype: torch.dtype) -> None:
    """To move is to give back labels: relabel what goes in, and the same labels come out."""
    x = TABLE.to(dtype)
    with trace() as steps:
        moved = MOVING[name](x)
    assert steps[-1].memory == "copied"
    labels = torch.randperm(24).to(dtype) + 100
    assert torch.equal(MOVING[name](labels[TABLE.long()]), labels[moved.real.long()])


@pytest.mark.parametrize(
    "code",
    [
        lambda t: t.double(),
        lambda t: t.to(torch.float16, copy=True),
        lambda t: torch.cat([t, t.long()]),
        lambda t: t.tril(),
        lambda t: F.pad(t, (1, 1)),
        lambda t: torch.where(t > 3, t, 0.0),
        lambda t: torch.zeros_like(t),
        lambda t: t.sort().values,
        lambda t: t.cumsum(0),
        lambda t: F.embedding(ROWS, t) @ t.T,
        lambda t: F.dropout(t, 0.5),
        lambda t: torch.einsum("ij,kj->ik", t, t),
        lambda t: t.nonzero(),
    ],
)
def test_a_call_that_computes_fills_or_converts_is_new(code: Callable[[Tensor], Tensor]) -> None:
    with trace() as steps:
        code(TABLE)
    assert steps[-1].memory == "new"


def test_to_find_out_whether_a_call_moves_draws_no_random_number_and_runs_no_code_twice() -> None:
    ran = []

    @torch.overrides.wrap_torch_function(lambda x: (x,))
    def mine(x: Tensor) -> Tensor:
        ran.append(1)
        return x.clone()

    def code() -> list[float]:
        torch.manual_seed(0)
        F.dropout(x_(), 0.3, training=True)
        mine(x_())
        return torch.rand(3).tolist()

    plain = code()
    with trace():
        assert code() == plain
    assert len(ran) == 2


# Where it came from


def test_a_step_knows_the_steps_and_the_outside_tensors_it_was_made_of() -> None:
    q, k = x_(), x_()
    with trace(seq=5) as steps:
        a, b = q.chunk(2, -1)
        scores = a @ k[..., :6].mT
        torch.cat([scores, scores.exp()])
        q.mT.clone()
    by_call = {step.call: step for step in steps}
    product = by_call["matmul(2×6×5)"]
    assert [step.call for step in product.inputs] == ["chunk(2, -1)[0]", ".mT"]
    outside = by_call["chunk(2, -1)[0]"].inputs[0]
    assert (outside.call, outside.shape, outside.axes) == (
        "outside",
        (2, 5, 12),
        ("2", "seq", "12"),
    )
    assert by_call["clone()"].inputs[0].inputs[0] is outside is not by_call["[..., :6]"].inputs[0]
    assert by_call["cat([2×5×5, 2×5×5])"].inputs == (product, by_call["exp()"])
    assert b.shape == a.shape


def test_memory_that_is_used_again_is_not_taken_for_the_old() -> None:
    with trace() as steps:
        for _ in range(50):
            torch.zeros(1000).view(10, 100)
    made, viewed = steps[::2], steps[1::2]
    assert [step.inputs for step in viewed] == [(step,) for step in made]
    assert all(view.inputs[0] is zeros for view, zeros in zip(viewed, made, strict=True))
    assert len({step.storage.cdata for step in made}) == 50


# The names of axes


@pytest.mark.parametrize(
    ("code", "shape", "sizes", "axes"),
    [
        (lambda x: x[..., :4], (2, 4, 5, 8), {"num_heads": 4, "head_dim": 8}, "2 num_heads 5 4"),
        (lambda x: x + 0, (1, 1, 4, 4), {"batch": 1, "seq": 4}, "batch 1 seq seq"),
        (lambda x: x.view(2, 3, 5, 4), (2, 5, 12), SIZES, "batch 3 5 head_dim"),
        (lambda x: x.view(10, 12), (2, 5, 12), SIZES, "batch*seq d_model"),
        (lambda x: x.view(10, 12).view(2, 5, 12), (2, 5, 12), SIZES, "batch seq d_model"),
        (lambda x: x.flatten(0, 1), (2, 3, 5, 4), SIZES, "batch*num_heads seq head_dim"),
        (lambda x: torch.cat([x, x, x], -1), (2, 5, 12), SIZES, "batch seq 3*d_model"),
        (lambda x: torch.cat([x] * 3, -1).split(12, -1)[0], (2, 5, 12), SIZES, "batch seq d_model"),
        (lambda x: torch.stack([x] * 3), (2, 5, 12), SIZES, "3 batch seq d_model"),
        (lambda x: x[:, None].expand(2, 3, 5, 4), (2, 5, 4), SIZES, "batch num_heads seq head_dim"),
        (lambda x: x.movedim(1, -1), (2, 3, 5, 4), SIZES, "batch seq head_dim num_heads"),
        (lambda x: x.mT.reshape(2, 60), (2, 5, 12), SIZES, "batch d_model*seq"),
        (lambda x: x.sum(1), (2, 5, 12), SIZES, "batch d_model"),
        (lambda x: x @ torch.ones(12, 3), (2, 5, 12), SIZES, "batch seq num_heads"),
        (lambda x: torch.einsum("bqd,bkd->bqk", x, x), (2, 5, 12), SIZES, "batch seq seq"),
        (lambda x: F.linear(x, torch.ones(36, 12)), (2, 5, 12), SIZES, "batch seq 36"),
        (lambda x: x.unsqueeze(1), (2, 5, 12), {"batch": 2, "num_heads": 1}, "batch 1 5 12"),
        (lambda x: x.transpose(1, 2), (2, 1, 3, 4), {"seq_q": 1, "heads": 3}, "2 heads seq_q 4"),
    ],
)  # fmt: skip
def test_an_axis_keeps_the_name_of_the_axis_it_came_from(
    code: Callable[[Tensor], Tensor], shape: tuple[int, ...], sizes: dict[str, int], axes: str
) -> None:
    x = torch.randn(shape)
    with trace(**sizes) as steps:
        code(x)
    assert " ".join(steps[-1].axes) == axes


@pytest.mark.parametrize("size", [torch.tensor(5), 5.0, "5", True])
def test_a_size_that_is_not_a_whole_number_is_refused(size: Any) -> None:
    with pytest.raises(TypeError, match="seq must be a whole number"), trace(seq=size):
        pass


# How it reads


def test_a_call_shows_no_defaults_and_no_long_lists() -> None:
    x = x_()
    with trace() as steps:
        F.softmax(x, -1, _stacklevel=5)
        F.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3), None, (1, 1), (1, 1), (1, 1), 1)
        F.layer_norm(x, (12,))
        torch.tensor(list(range(5000)))
        x.sum(dim=1, keepdim=False)
    assert [call for call in calls(steps) if not call.startswith("ones")] == [
        "softmax(dim=-1)", "conv2d(4×3×3×3, None, (1, 1), (1, 1))", "layer_norm((12,))",
        "tensor([0, 1, 2, .. 5000 in all])", "sum(dim=1)",
    ]  # fmt: skip


def test_a_long_trace_prints_its_head_and_tail() -> None:
    x = x_()
    with trace(seq=5) as steps:
        for _ in range(10_000):
            _ = x.mT
    lines = repr(steps).splitlines()
    assert len(lines) == 102
    assert lines[51] == "... 9,900 steps ..."
    rows = Table(steps._repr_html_()).rows
    assert len(rows) == 102
    assert rows[51] == [("td", 6, "... 9,900 steps ...")]


# Tensors and code of every kind


def jagged() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)


def strided() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "code",
    [
        lambda: (strided() * 2).to_padded_tensor(0.0),
        lambda: (jagged() * 2).sum(),
        lambda: x_()[0].to_sparse() @ torch.ones(12, 2),
        lambda: x_()[0].to_sparse_csr().to_dense(),
        lambda: torch.quantize_per_tensor(x_(), 0.1, 0, torch.quint8).clone().dequantize(),
        lambda: torch.view_as_complex(x_().view(2, 5, 6, 2)).conj().clone().real,
        lambda: torch.masked.sum(x_(), mask=x_() > 0),
        lambda: torch.vmap(torch.func.grad(lambda x: x.clone().sum()))(x_()),
        lambda: torch.func.jvp(torch.exp, (x_(),), (x_(),))[1],
        lambda: torch.func.jacrev(lambda x: x.mT.reshape(-1))(x_()[0, :2]),
        lambda: torch.jit.trace(lambda x: x.mT.clone() + 1, (x_(),))(x_()),
        lambda: torch.compile(weights_of, backend="eager", fullgraph=True)(x_()),
        lambda: torch.compile(weights_of, backend="aot_eager", fullgraph=True)(x_()),
        lambda: flex_attention(x_()[None], x_()[None], x_()[None]),
    ],
)
def test_whatever_torch_offers_runs_as_without_a_trace(code: Callable[[], Tensor]) -> None:
    expected = code()
    with trace(**SIZES) as steps:
        found = code()
    assert torch.equal(found, expected)
    assert len(steps) > 0
    assert repr(steps)
    assert no_mode_is_left()


def test_an_error_of_the_bookkeeping_is_not_an_error_of_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(sys.modules["mha.trace"], "call_of", broken)
    with trace() as steps:
        y = x_().mT
    assert y.shape == (2, 12, 5)
    assert calls(steps)[-1] == "mT(..)"


def test_traces_that_close_out_of_order_remove_themselves() -> None:
    def suspended() -> Iterator[Steps]:
        with trace() as steps:
            yield steps

    first, second = suspended(), suspended()
    one, two = next(first), next(second)
    first.close()  # type: ignore[attr-defined]
    x = x_()
    second.close()  # type: ignore[attr-defined]
    assert calls(one) == []
    assert calls(two) == ["randn(2, 5, 12, generator=Generator)"]
    assert x.shape == (2, 5, 12)
    assert no_mode_is_left()
    assert torch.overrides.has_torch_function is torch._C._has_torch_function


def test_a_step_has_the_offset_where_its_tensor_begins() -> None:
    x = torch.arange(24).view(4, 6)
    with trace() as steps:
        y = x[1:, 2:]
    assert steps[0].offset == 8 == y.storage_offset()
    assert Layout(steps[0].shape or (), steps[0].strides or (), steps[0].offset).elements() == (
        y.flatten().tolist()
    )


def test_in_place_operations_and_assignment() -> None:
    x = torch.zeros(3, 4)
    with trace() as steps:
        x += 1
        x[0] = 5
        x[:, 1:3] = torch.ones(3, 2)
        x[1] *= 2
        x.T.zero_()
    assert calls(steps) == [
        "add_(1)", "[0] =", "ones(3, 2)", "[:, 1:3] =", "[1]", "mul_(2)", "[1] =", ".T", "zero_()",
    ]  # fmt: skip
    views = ("[1]", ".T")
    assert [s.memory for s in steps if s.call != "ones(3, 2)"] == [
        "same" if s.call in views else "same, written" for s in steps if s.call != "ones(3, 2)"
    ]
    assert x.tolist() == [[0.0] * 4] * 3
    assert steps[1].shape == (3, 4), "the row of an assignment is the tensor that was written to"


def test_several_outputs_are_several_steps() -> None:
    x = x_()
    with trace() as steps:
        x.chunk(3, dim=-1)
        x.unbind(0)
        torch.max(x, dim=1)
        first, second = x
    assert calls(steps) == [
        "chunk(3, dim=-1)[0]", "chunk(3, dim=-1)[1]", "chunk(3, dim=-1)[2]",
        "unbind(0)[0]", "unbind(0)[1]", "max(dim=1)[0]", "max(dim=1)[1]",
        "unbind(0)[0]", "unbind(0)[1]",
    ]  # fmt: skip
    assert [step.offset for step in steps[:3]] == [0, 4, 8]
    assert memory(steps) == ["same"] * 5 + ["new"] * 2 + ["same"] * 2
    assert steps[-1].offset == second.storage_offset() == 60
    assert first.shape == steps[-2].shape


# Code that we did not write


def same_bits(a: tuple[Tensor | None, ...], b: tuple[Tensor | None, ...]) -> bool:
    return all(
        p is q if p is None or q is None else torch.equal(p, q) for p, q in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("need_weights", "inner"), [(True, 28), (False, 25)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_inside_of_torchs_own_attention(
    batch_first: bool, need_weights: bool, inner: int, training: bool, masked: bool
) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(12, 3, batch_first=batch_first, dropout=0.1).train(training)
    x = x_() if batch_first else x_().transpose(0, 1).contiguous()
    kwargs: dict[str, Any] = {"need_weights": need_weights}
    if masked:
        kwargs["attn_mask"] = torch.ones(5, 5).triu(1).bool()
        kwargs["key_padding_mask"] = torch.tensor([[False] * 5, [False] * 4 + [True]])
    torch.manual_seed(1)
    expected = module(x, x, x, **kwargs)
    torch.manual_seed(1)
    with trace(**SIZES) as steps:
        found = module(x, x, x, **kwargs)
    assert same_bits(found, expected)
    assert no_mode_is_left()
    assert not any(step.error or "multi_head_attention_forward" in step.call for step in steps)
    if not masked:  # masks are made ready in a few calls more
        transposes = 0 if batch_first else 2
        dropouts = 1 if training and need_weights else 0
        assert len(steps) == inner - transposes + dropouts
    merges = [step for step in steps if step.call == "reshape(10, 12)"]
    assert [step.memory for step in merges] in (["copied"], ["same"])


@pytest.mark.parametrize("need_weights", [True, False])
def test_torchs_fast_path_stays_one_call(need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(64, 8, batch_first=True).eval()
    x = torch.randn(4, 33, 64)
    hidden = torch.ones(33, 33, dtype=torch.bool).triu(-1)  # row 0 and 1 may attend to nothing
    with torch.no_grad():
        for mask in (None, hidden):
            expected = module(x, x, x, need_weights=need_weights, attn_mask=mask)
            with trace(), trace() as steps:
                found = module(x, x, x, need_weights=need_weights, attn_mask=mask)
            for p, q in zip(found, expected, strict=True):
                assert (p is None) == (q is None)
                torch.testing.assert_close(p, q, rtol=0, atol=0, equal_nan=True)
            fused = [
                call for call in calls(steps) if call.startswith("_native_multi_head_attention")
            ]
            assert len(fused) == 1 + need_weights


@pytest.mark.parametrize("nested", [True, False])
def test_a_padded_encoder_gives_what_it_gives_unwatched(nested: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 20, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        with torch.no_grad():
            expected = encoder(x_(), src_key_padding_mask=padding)
            with trace(**SIZES) as steps:
                found = encoder(x_(), src_key_padding_mask=padding)
    assert torch.equal(found, expected)
    assert len([call for call in calls(steps) if "encoder_layer_fwd" in call]) == 2
    assert ("-" in {step.cells()[1] for step in steps}) == nested, "a nested tensor has no shape"
    assert torch.overrides.has_torch_function is torch._C._has_torch_function


def test_a_subclass_or_another_mode_still_leaves_the_fast_path() -> None:
    class Mine(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    module = nn.MultiheadAttention(12, 2, batch_first=True).eval()
    with torch.no_grad(), Mine(), trace() as steps:
        module(x_(), x_(), x_())
    assert not any(call.startswith("_native") for call in calls(steps))


def test_inside_of_torchs_attention_an_error_shows_the_inner_call() -> None:
    module = nn.MultiheadAttention(12, 3, batch_first=True)
    x, other_batch = x_(), torch.randn(3, 5, 12)
    with pytest.raises(RuntimeError, match="invalid for input"), trace() as steps:
        module(x, other_batch, other_batch)
    assert steps[-1].cells() == (
        "view(5, 6, 4)",
        "RuntimeError: shape '[5, 6, 4]' is invalid for input of size 180",
    )
    assert len(steps) > 10
    assert no_mode_is_left()


def test_inside_of_torchs_attention_its_own_checks_raise_as_ever() -> None:
    module = nn.MultiheadAttention(12, 3, batch_first=True)
    x = x_()
    with pytest.raises(AssertionError, match="embedding dimension"), trace() as steps:
        module(x[..., :11], x, x)
    assert calls(steps) == ["[..., :11]", "transpose(1, 0)", "transpose(1, 0)"]
    assert no_mode_is_left()


def test_inside_of_a_transformer_layer_and_its_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 24, dropout=0.0, batch_first=True)
    other = copy.deepcopy(layer)
    x = x_()
    layer(x).square().sum().backward()
    with trace() as steps:
        loss: Any = other(x).square().sum()
        loss.backward()
    for p, q in zip(layer.parameters(), other.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, q.grad)
    assert len([call for call in calls(steps) if call.startswith("layer_norm")]) == 2
    assert "transpose(1, 0)" in calls(steps)


def test_inside_of_einops() -> None:
    x = x_()
    with trace(**SIZES) as steps:
        heads = einops.rearrange(x, "b s (h d) -> b h s d", h=3)
        out = einops.rearrange(heads, "b h s d -> b s (h d)")
    assert torch.equal(heads, split_heads(x, 3))
    assert torch.equal(out, x)
    assert calls(steps) == [
        "reshape([2, 5, 3, 4])", "permute([0, 2, 1, 3])", "permute([0, 2, 1, 3])",
        "reshape([2, 5, 12])",
    ]  # fmt: skip
    assert memory(steps) == ["same"] * 4
    assert steps[1].axes == ("batch", "num_heads", "seq", "head_dim")


def test_grouped_queries_copy_when_they_say_so() -> None:
    k = torch.randn(2, 2, 5, 4)
    q = torch.randn(2, 6, 5, 4)
    with trace() as steps:
        repeated = k.repeat_interleave(3, dim=1)
        expanded = k[:, :, None].expand(2, 2, 3, 5, 4)
        merged = expanded.reshape(2, 6, 5, 4)
        scores = q @ merged.mT
    assert torch.equal(repeated, merged)
    assert torch.equal(scores, q @ repeated.mT)
    assert memory(steps) == ["copied", "same", "same", "copied", "same", "new"]
    assert steps[2].strides == (40, 20, 0, 4, 1)
    assert not steps[2].contiguous


def test_the_package_itself() -> None:
    x = x_()
    expected = multi_head_attention(x, x, x, 3)
    with trace() as steps:
        found = multi_head_attention(x, x, x, 3)
    assert torch.equal(found, expected)
    assert memory(steps) == ["same"] * 6 + ["new", "same", "new", "new", "new"] + [
        "same", "copied", "same",
    ]  # fmt: skip


def test_parameters_and_subclasses_stay_what_they_are() -> None:
    class Marked(Tensor):
        pass

    x = x_().as_subclass(Marked)
    weight = nn.Parameter(torch.eye(12))
    with trace() as steps:
        marked = x.mT.contiguous()
        weight.view(2, 6, 12)
        product = x_() @ weight
    assert type(marked) is Marked
    assert product.requires_grad
    assert calls(steps[:3]) == [".mT", "contiguous()", "view(2, 6, 12)"]
    assert memory(steps[:3]) == ["same", "copied", "same"]


def weights_of(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1)


@pytest.mark.parametrize("compiled_before", [True, False])
def test_compiled_functions_still_run(compiled_before: bool) -> None:
    """Dynamo cannot look into a trace, and falls back to the function as it was written."""
    torch._dynamo.reset()
    compiled = torch.compile(weights_of, backend="eager")
    x = x_()
    if compiled_before:
        compiled(x)
    with trace() as steps, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compiled(x)
    assert torch.equal(found, weights_of(x))
    assert calls(steps) == [".mT", "matmul(2×12×5)", "softmax(-1)"]
    assert no_mode_is_left()


def test_export_with_sizes_that_are_not_known() -> None:
    class Weights(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return weights_of(x)

    dynamic = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}}
    with trace(d_model=12) as steps:
        program = torch.export.export(Weights(), (x_(),), dynamic_shapes=dynamic)
    assert program.module()(torch.randn(3, 7, 12)).shape == (3, 7, 7)
    assert calls(steps)[-1] == "softmax(-1)"
    assert ".mT" in calls(steps)


def test_transforms_of_functions() -> None:
    x = x_()
    with trace(seq=5) as steps:
        found = torch.vmap(weights_of)(x)
    torch.testing.assert_close(found, weights_of(x))
    assert calls(steps) == [".mT", "matmul(12×5)", "softmax(-1)"]
    assert steps[-1].axes == ("seq", "seq")
    assert set(memory(steps)) == {"-"}
    with trace():
        gradient = torch.func.grad(lambda x: x.square().sum())(x)
    assert torch.equal(gradient, 2 * x)


def test_tensors_without_numbers() -> None:
    with FakeTensorMode(), trace() as steps:
        torch.ones(2, 3).mT.contiguous()
    assert calls(steps) == ["ones(2, 3)", ".mT", "contiguous()"]
    assert set(memory(steps)) == {"-"}
    assert steps[1].strides == (1, 3)


def test_sparse_and_jagged_tensors_have_no_strides_to_show() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    with trace(width=3) as steps:
        doubled = jagged * 2
        torch.eye(3).to_sparse()
    assert doubled.unbind()[1].tolist() == [[2.0] * 3] * 4
    assert [(step.strides, step.memory) for step in steps] == [
        (None, "-"), ((3, 1), "new"), (None, "-"),
    ]  # fmt: skip
    assert (steps[0].axes[0], steps[0].axes[2]) == ("2", "width")
    assert len(repr(steps).splitlines()) == 4


# Errors


def test_a_view_that_fails_keeps_the_steps_and_shows_the_reason() -> None:
    heads = split_heads(x_(), 3).contiguous()
    with pytest.raises(RuntimeError) as untraced:
        heads.transpose(1, 2).view(2, 5, 12)
    with pytest.raises(RuntimeError) as caught, trace(**SIZES) as steps:
        heads.transpose(1, 2).view(2, 5, 12)
    assert str(caught.value) == str(untraced.value), "the error itself is torch's, unchanged"
    assert repr(steps) == (
        "call             shape         strides         contiguous  memory  axes\n"
        "transpose(1, 2)  (2, 5, 3, 4)  (60, 4, 20, 1)  no          same"
        "    batch seq num_heads head_dim\n"
        "view(2, 5, 12)   RuntimeError: view: axes 2 and 3 cannot merge: "
        "stride[2] is 20, but size[3]*stride[3] is 4*1."
    )
    assert no_mode_is_left()


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x.view(2, 60),
        lambda x: x.view((2, 60)),
        lambda x: x.view([2, 60]),
        lambda x: x.view(torch.Size([2, 60])),
        lambda x: x.view(size=(2, 60)),
        lambda x: x.view(2, -1),
        lambda x: x.view(size=(-1, 60)),
    ],
)
def test_the_reason_is_found_however_view_is_written(code: Callable[[Tensor], Tensor]) -> None:
    x = x_().mT
    with pytest.raises(RuntimeError, match="not compatible"), trace() as steps:
        code(x)
    assert steps[0].error == (
        "RuntimeError: view: axes 1 and 2 cannot merge: stride[1] is 1, but size[2]*stride[2] is "
        "5*12."
    )


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (lambda x: x.view(7), RuntimeError, "invalid for input of size 120"),
        (lambda x: x.view(-1, -1), RuntimeError, "only one dimension can be inferred"),
        (lambda x: x[..., :11].view(torch.float64), RuntimeError, "divisible by 2"),
        (lambda x: x.mT.view(torch.float64), RuntimeError, "must be"),
        (lambda x: x @ x, RuntimeError, "[2, 12]"),
        (lambda x: x[0, 0].mT, RuntimeError, "1-D tensor"),
        (lambda x: x[7], IndexError, "index 7"),
        (lambda x: x.__setitem__(0, torch.ones(7)), RuntimeError, "(7)"),
        (lambda x: x.imag, (RuntimeError, TypeError), "imag"),  # a TypeError from torch 2.15 on
        (lambda x: x.to_sparse().view(2, 60), NotImplementedError, "view"),
    ],
)
def test_an_error_passes_through_and_is_the_last_step(
    code: Callable[[Tensor], object],
    error: type[Exception] | tuple[type[Exception], ...],
    words: str,
) -> None:
    with pytest.raises(error) as untraced:
        code(x_())
    with pytest.raises(error) as caught, trace() as steps:
        code(x_())
    assert type(caught.value) is type(untraced.value)
    assert str(caught.value) == str(untraced.value)
    assert [step for step in steps if step.error] == [steps[-1]]
    assert steps[-1].error.startswith(f"{type(caught.value).__name__}: ")
    assert words in steps[-1].error
    assert steps[-1].error.splitlines() == [steps[-1].error]
    assert no_mode_is_left()


def test_an_error_without_a_message() -> None:
    mine = ValueError()

    @torch.overrides.wrap_torch_function(lambda x: (x,))
    def broken(x: Tensor) -> Tensor:
        raise mine

    with pytest.raises(ValueError, match=r"^$") as caught, trace() as steps:
        broken(x_())
    assert caught.value is mine
    assert steps[-1].cells() == ("broken()", "ValueError: ")


def test_an_error_that_the_code_handles_stands_among_the_steps() -> None:
    x = x_()
    with trace() as steps:
        try:
            flat = x.mT.view(2, 60)
        except RuntimeError:
            flat = x.mT.reshape(2, 60)
    assert flat.shape == (2, 60)
    assert calls(steps) == [".mT", "view(2, 60)", ".mT", "reshape(2, 60)"]
    assert [bool(step.error) for step in steps] == [False, True, False, False]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, ZeroDivisionError])
def test_whatever_ends_the_block_ends_the_trace(stop: type[BaseException]) -> None:
    x = x_()
    with pytest.raises(stop), trace() as steps:
        copy_then_raise(x, stop)
    x.sum()
    assert calls(steps) == [".mT", "contiguous()"]
    assert no_mode_is_left()


def test_an_interrupt_within_a_call_leaves_no_mode_behind() -> None:
    @torch.overrides.wrap_torch_function(lambda x: (x,))
    def interrupted(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    x = x_()
    with pytest.raises(KeyboardInterrupt), trace() as outer, trace() as inner:
        interrupted(x.mT.contiguous())
    assert calls(outer) == calls(inner) == [".mT", "contiguous()"]
    assert no_mode_is_left()


# One trace and another


def nested_code(x: Tensor) -> Tensor:
    module = nn.MultiheadAttention(12, 3, batch_first=True, device="cpu")
    y, _ = module(x, x, x)
    y += 1
    y[0] = 0
    return torch.cat(y.chunk(3, dim=-1)).sum()


def test_nested_traces_record_the_same() -> None:
    with trace(**SIZES) as outer, trace(**SIZES) as inner:
        nested_code(x_())
    assert inner == outer
    assert len(inner) > 30
    with trace(**SIZES) as alone:
        nested_code(x_())
    assert alone == inner


def test_nested_traces_record_the_same_error() -> None:
    x = x_()
    with pytest.raises(RuntimeError), trace() as outer, trace() as inner:
        x.mT.view(2, -1)
    assert inner == outer
    assert calls(inner) == [".mT", "view(2, -1)"]
    assert "axes 1 and 2 cannot merge" in inner[-1].error


def test_an_inner_trace_sees_only_its_own_block() -> None:
    x = x_()
    with trace() as outer:
        y = x.exp()
        with pytest.raises(ZeroDivisionError), trace() as inner:
            copy_then_raise(y, ZeroDivisionError)
        y.sum()
    assert calls(outer) == ["exp()", ".mT", "contiguous()", "sum()"]
    assert calls(inner) == [".mT", "contiguous()"]


def test_traces_one_after_the_other_are_independent() -> None:
    x = x_()
    with trace() as first:
        x.mT.contiguous()
    with trace() as second:
        x.mT.contiguous()
    assert first == second
    assert first is not second
    assert len(first) == 2


def test_printing_within_the_block_records_nothing() -> None:
    x = x_()
    with trace() as steps:
        x.mT.contiguous()
        before = len(steps)
        repr(steps), steps._repr_html_(), repr(x), f"{x.sum():.2f}"
    assert calls(steps)[before:] == ["sum()"]


def test_a_trace_keeps_no_tensor_alive() -> None:
    x = x_()
    with trace() as steps, contextlib.suppress(RuntimeError):
        y = x.mT.contiguous()
        y.view(7)
    alive = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    assert len(steps) == 3


def test_a_trace_changes_neither_results_nor_gradients() -> None:
    def run(watch: bool) -> tuple[Tensor, Tensor, str]:
        x = x_().requires_grad_()
        with trace() if watch else contextlib.nullcontext():
            out = multi_head_attention(x, x, x, 3)
        torch.autograd.backward(out.square().sum())
        assert x.grad is not None
        return out.detach(), x.grad, type(out.grad_fn).__name__

    (out, grad, node), (plain_out, plain_grad, plain_node) = run(True), run(False)
    assert torch.equal(out, plain_out)
    assert torch.equal(grad, plain_grad)
    assert node == plain_node


def test_a_table_holds_no_addresses_and_is_the_same_every_time() -> None:
    def table() -> str:
        torch.manual_seed(0)
        with trace(**SIZES) as steps:
            nested_code(x_())
            torch.randn(3, generator=torch.Generator().manual_seed(0))
            copy.deepcopy(nn.Linear(3, 3))
        return repr(steps)

    assert table() == table()
    assert not re.search(r"0x[0-9a-f]{4}", table())
