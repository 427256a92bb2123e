"""`mha.attention` against a plain loop and torch's own attention; its contract row by row."""

import itertools
import math
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from mha import (
    attention_weights,
    merge_heads,
    multi_head_attention,
    scaled_dot_product_attention,
    split_heads,
)

fused: Callable[..., Tensor] = F.scaled_dot_product_attention
each_attend = pytest.mark.parametrize(
    "attend", [scaled_dot_product_attention, fused], ids=["formula", "fused"]
)
masked_or_not = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])

Relayout = Callable[[Tensor], Tensor]
RELAYOUTS: list[Relayout] = [
    lambda x: x,
    lambda x: x.mT.contiguous().mT,
    lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    lambda x: F.pad(x, (2, 1), value=math.nan)[..., 2:-1],
    lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    lambda x: x[:1].expand_as(x),
    lambda x: x[..., :1].expand_as(x),
]


class Problem(NamedTuple):
    """The arguments of `multi_head_attention`, in its order."""

    q: Tensor
    k: Tensor
    v: Tensor
    num_heads: int
    mask: Tensor | None


def rand(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def rand_mask(*shape: int, seed: int = 0) -> Tensor:
    return rand(*shape, seed=seed) < 0.3


def problem_of(batch: int = 2, seq_q: int = 4, seq_k: int = 5, *, masked: bool = True) -> Problem:
    """Three heads. The last query of the first example may attend to nothing."""
    shapes = (batch, seq_q, 12), (batch, seq_k, 12), (batch, seq_k, 9)
    q, k, v = (rand(*shape, seed=seed) for seed, shape in enumerate(shapes))
    mask = rand_mask(batch, seq_q, seq_k)
    mask[..., :1] = True
    mask[:1, -1:] = False
    return Problem(q, k, v, 3, mask if masked else None)


@st.composite
def problems(draw: st.DrawFn, smallest: int = 0) -> Problem:
    batch, seq_q, seq_k = (draw(st.integers(smallest, most)) for most in (3, 4, 5))
    num_heads, head_dim, value_dim = (draw(st.integers(1, most)) for most in (4, 4, 3))
    seed = draw(st.integers(0, 2**32))
    q, k, v = (
        draw(st.sampled_from(RELAYOUTS))(rand(batch, seq, num_heads * size, seed=seed + i))
        for i, seq, size in [(0, seq_q, head_dim), (1, seq_k, head_dim), (2, seq_k, value_dim)]
    )
    shape = batch, seq_q, seq_k
    masks = [
        None,
        rand_mask(*shape, seed=seed),
        torch.ones(seq_q, seq_k, dtype=torch.bool).tril().expand(shape),
        rand_mask(batch, 1, seq_k, seed=seed).expand(shape),
        rand_mask(batch, seq_q, 1, seed=seed).expand(shape),
    ]
    return Problem(q, k, v, num_heads, draw(st.sampled_from(masks)))


def slices(x: Tensor, num_heads: int) -> list[Tensor]:
    size = x.shape[2] // num_heads
    return [x[:, :, size * head : size * (head + 1)] for head in range(num_heads)]


def plain_loop(q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Tensor | None) -> Tensor:
    """One head of one example at a time, one query after another, one key after another."""
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)
    by_head = zip(*(slices(x, num_heads) for x in (q, k, v, out)), strict=True)
    for (qh, kh, vh, out_h), b in itertools.product(by_head, range(q.shape[0])):
        for i in range(q.shape[1]):
            keys = [j for j in range(k.shape[1]) if mask is None or mask[b, i, j]]
            scores = [qh[b, i].dot(kh[b, j]) / math.sqrt(qh.shape[2]) for j in keys]
            total = sum(score.exp() for score in scores)
            for j, score in zip(keys, scores, strict=True):
                out_h[b, i] += score.exp() / total * vh[b, j]
    return out


def torch_per_head(
    q: Tensor, k: Tensor, v: Tensor, num_heads: int, mask: Tensor | None, **options: bool
) -> Tensor:
    by_head = zip(*(slices(x, num_heads) for x in (q, k, v)), strict=True)
    return torch.cat([fused(*qkv_h, mask, **options) for qkv_h in by_head], dim=-1)


def gradients(function: Callable[..., Tensor], problem: Problem) -> tuple[Tensor, ...]:
    """Of q, k and v, where the gradient of the output differs from element to element."""
    qkv = [x.detach().clone().requires_grad_() for x in problem[:3]]
    out = function(*qkv, *problem[3:])
    return torch.autograd.grad(out, qkv, rand(*out.shape, seed=9).to(out.dtype))


# The values


@given(problems())
def test_it_equals_a_plain_loop_and_torchs_attention_called_for_each_head(problem: Problem) -> None:
    out = multi_head_attention(*problem)
    assert_close(out, plain_loop(*problem))
    assert_close(out, torch_per_head(*problem))
    assert_close(multi_head_attention(*problem, attend=fused), out)


@masked_or_not
def test_it_equals_torchs_module_with_copied_weights(masked: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)
    inputs = rand(2, 4, 12), rand(2, 5, 12, seed=1), rand(2, 5, 12, seed=2)
    mask = rand_mask(2, 4, 5)
    mask[..., 2] = True  # where a row is empty the module gives NaN
    ignore = (~mask).repeat_interleave(3, dim=0) if masked else None
    expected, expected_weights = module(*inputs, attn_mask=ignore, average_attn_weights=False)

    weights, biases = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    q, k, v = (F.linear(*xwb) for xwb in zip(inputs, weights, biases, strict=True))
    out = multi_head_attention(q, k, v, 3, mask if masked else None)
    assert_close(module.out_proj(out), expected)
    mask_h = mask.unsqueeze(1) if masked else None
    assert_close(attention_weights(split_heads(q, 3), split_heads(k, 3), mask_h), expected_weights)


@given(problems())
def test_one_head_is_single_head_attention(problem: Problem) -> None:
    q, k, v, _, mask = problem
    out = multi_head_attention(q, k, v, 1, mask)
    assert_close(out, scaled_dot_product_attention(q, k, v, mask))
    assert_close(out, fused(q, k, v, mask))


@given(problems(smallest=1))
def test_reordered_heads_and_queries_reorder_the_output_and_reordered_keys_change_nothing(
    problem: Problem,
) -> None:
    q, k, v, num_heads, mask = problem
    heads, queries, keys = (rand(n).argsort() for n in (num_heads, q.shape[1], k.shape[1]))

    def reordered(x: Tensor, tokens: Tensor) -> Tensor:
        by_head = slices(x[:, tokens], num_heads)
        return torch.cat([by_head[head] for head in heads.tolist()], dim=-1)

    mask = None if mask is None else mask[:, queries][:, :, keys]
    out = multi_head_attention(
        reordered(q, queries), reordered(k, keys), reordered(v, keys), num_heads, mask
    )
    assert_close(out, reordered(multi_head_attention(*problem), queries))


@each_attend
@pytest.mark.parametrize(
    ("batch", "num_heads", "seq_q", "seq_k"),
    [(3, 3, 4, 5), (2, 4, 4, 5), (2, 5, 4, 5), (2, 3, 2, 5), (2, 3, 5, 2), (4, 4, 4, 4)],
)
def test_equal_sizes_hide_no_mixed_up_axes(
    batch: int, num_heads: int, seq_q: int, seq_k: int, attend: Callable[..., Tensor]
) -> None:
    q, k, v = (rand(batch, seq, 4 * num_heads, seed=seq) for seq in (seq_q, seq_k, seq_k))
    mask = rand_mask(batch, seq_q, seq_k)
    out = multi_head_attention(q, k, v, num_heads, mask, attend=attend)
    assert_close(out, plain_loop(q, k, v, num_heads, mask))


# Split and merge


@given(*[st.integers(0, 4)] * 3, st.integers(1, 4), st.sampled_from(RELAYOUTS))
def test_merge_undoes_split_and_split_undoes_merge(
    batch: int, seq: int, head_dim: int, num_heads: int, relayout: Relayout
) -> None:
    x = relayout(rand(batch, seq, num_heads * head_dim))
    heads = split_heads(x, num_heads)
    assert torch.equal(heads, torch.stack(slices(x, num_heads), dim=1))
    assert torch.equal(merge_heads(heads), x)
    assert torch.equal(split_heads(merge_heads(heads.contiguous()), num_heads), heads)


def test_split_heads_is_a_view_with_the_textbook_strides() -> None:
    x = torch.arange(2 * 5 * 12).view(2, 5, 12)
    heads = split_heads(x, num_heads=3)
    assert heads.stride() == (5 * 12, 4, 12, 1)
    heads[1, 2, 3, 0] = -1
    assert x[1, 3, 2 * 4] == -1


@given(*[st.integers(1, 3)] * 4, st.permutations(range(4)), st.booleans())
def test_merge_heads_copies_wherever_a_view_cannot_and_not_where_memory_is_in_order(
    batch: int, num_heads: int, seq: int, head_dim: int, order: list[int], sliced: bool
) -> None:
    sizes = batch, num_heads, seq + sliced, head_dim
    memory = rand(*(sizes[axis] for axis in order))
    x = memory.permute(*(order.index(axis) for axis in range(4)))[:, :, int(sliced) :]
    merged, tokens = merge_heads(x), x.transpose(1, 2)
    assert torch.equal(merged, torch.cat(x.unbind(dim=1), dim=-1))
    assert merged.is_contiguous()
    copied = merged.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()
    assert copied is not tokens.is_contiguous()
    try:
        tokens.view(merged.shape)
    except RuntimeError:
        assert copied


# The weights


@given(problems())
def test_weights_sum_to_one_over_the_keys_and_to_zero_in_empty_rows(problem: Problem) -> None:
    q, k, v, _, mask = problem
    weights = attention_weights(q, k, mask)
    may = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask
    assert_close(weights.sum(dim=-1), may.any(dim=-1).double())
    assert torch.equal(weights > 0, may)
    assert_close(weights @ v, scaled_dot_product_attention(q, k, v, mask))


def test_scores_are_scaled_by_the_root_of_head_dim() -> None:
    q, k = torch.ones(2, 16), torch.tensor([[1.0], [0.75], [0.5]]).expand(3, 16)
    # Scores 16, 12 and 8, each divided by 4.
    expected = torch.tensor([4.0, 3.0, 2.0]).softmax(dim=0)
    assert_close(attention_weights(q, k), expected.expand(2, 3))


def test_a_masked_key_gets_no_weight_however_low_the_other_scores_are() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        q = torch.tensor([[torch.finfo(dtype).max]], dtype=dtype)
        k = torch.tensor([[-1.0], [1.0]], dtype=dtype)
        assert attention_weights(q, k, torch.tensor([[True, False]])).tolist() == [[1.0, 0.0]]


# Another `attend`


@masked_or_not
def test_attend_gets_the_heads_and_a_mask_with_one_head_axis_by_position(masked: bool) -> None:
    q, k, v, num_heads, mask = problem_of(masked=masked)

    def attend(*args: Any) -> Tensor:
        *heads, mask_h = args
        for x_h, x in zip(heads, (q, k, v), strict=True):
            assert torch.equal(x_h, torch.stack(slices(x, num_heads), dim=1))
        if mask is None:
            assert mask_h is None
        else:
            assert torch.equal(mask_h, torch.stack([mask], dim=1))
            assert mask_h.data_ptr() == mask.data_ptr(), "the heads share one mask, not a copy"
        return torch.arange(2 * 3 * 4 * 3).view(2, 3, 4, 3)

    out = multi_head_attention(q, k, v, num_heads, mask, attend=attend)
    assert out[1, 2].tolist() == [42, 43, 44, 54, 55, 56, 66, 67, 68]


def test_attend_is_given_by_name_only() -> None:
    attention: Callable[..., Tensor] = multi_head_attention
    with pytest.raises(TypeError, match="positional"):
        attention(*problem_of(), fused)


# What is refused, and what the message says


def refusal(error: type[Exception], function: Callable[..., object], *args: object) -> str:
    with pytest.raises(error) as info:
        function(*args)
    return str(info.value)


def usual_but(**shapes: tuple[int, ...]) -> list[Tensor]:
    usual: dict[str, tuple[int, ...]] = {"q": (2, 4, 12), "k": (2, 5, 12), "v": (2, 5, 9)}
    return [rand(*shape) for shape in (usual | shapes).values()]


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 5, 4), (12,), ()], ids=str)
def test_a_tensor_with_other_axes_is_named_with_its_shape(shape: tuple[int, ...]) -> None:
    for name in "qkv":
        message = refusal(ValueError, multi_head_attention, *usual_but(**{name: shape}), 3)
        assert message.startswith(f"{name} must be (batch, seq, ")
        assert str(shape) in message
    message = refusal(ValueError, split_heads, rand(*shape), 3)
    assert re.match(rf"x must be \(batch, seq, .*{re.escape(str(shape))}", message)


@pytest.mark.parametrize("shape", [(2, 5, 12), (2, 3, 5, 4, 1)], ids=str)
def test_merge_heads_wants_four_axes(shape: tuple[int, ...]) -> None:
    message = refusal(ValueError, merge_heads, rand(*shape))
    assert message.startswith("x must be (batch, num_heads, seq, head_dim)")
    assert str(shape) in message


@pytest.mark.parametrize(
    ("name", "shape", "facts"),
    [
        ("q", (7, 4, 12), ["batch", "'q': 7", "'k': 2"]),
        ("k", (1, 5, 12), ["batch", "'q': 2", "'k': 1"]),
        ("v", (7, 5, 9), ["batch", "'k': 2", "'v': 7"]),
        ("k", (2, 7, 12), ["seq_k", "'k': 7", "'v': 5"]),
        ("v", (2, 1, 9), ["seq_k", "'k': 5", "'v': 1"]),
        ("q", (2, 4, 24), ["d_model", "'q': 24", "'k': 12"]),
        ("k", (2, 5, 3), ["d_model", "'q': 12", "'k': 3"]),
        ("q", (2, 4, 10), ["num_heads=3", "q's width 10", "[1, 2, 5, 10]"]),
        ("k", (2, 5, 8), ["num_heads=3", "k's width 8", "[1, 2, 4, 8]"]),
        ("v", (2, 5, 7), ["num_heads=3", "v's width 7", "[1, 7]"]),
    ],
)
def test_a_size_that_does_not_fit_is_named_with_both_numbers(
    name: str, shape: tuple[int, ...], facts: list[str]
) -> None:
    message = refusal(ValueError, multi_head_attention, *usual_but(**{name: shape}), 3)
    assert message.startswith(f"{facts[0]} must ")
    assert [fact for fact in facts if fact not in message] == []


@pytest.mark.parametrize("num_heads", [True, False, 3.0, Fraction(3), "3", None, torch.tensor(3)])
def test_num_heads_that_is_no_int_is_a_type_error(num_heads: Any) -> None:
    for function, args in (multi_head_attention, usual_but()), (split_heads, [rand(2, 5, 12)]):
        message = refusal(TypeError, function, *args, num_heads)
        assert re.match(r"num_heads must be an int\b.*>= 1", message)
        assert repr(num_heads) in message


@given(st.integers(-3, 30), st.integers(0, 24))
@example(0, 12)
@example(-3, 12)
@example(24, 12)
def test_num_heads_is_refused_exactly_when_it_does_not_divide_and_those_listed_do(
    num_heads: int, width: int
) -> None:
    x = rand(2, 5, width)
    divisors = [n for n in range(1, width + 1) if n * (width // n) == width]
    if num_heads in divisors or (width == 0 < num_heads):
        assert split_heads(x, num_heads).shape == (2, num_heads, 5, width // num_heads)
        return
    for function, args in (multi_head_attention, [x, x, x]), (split_heads, [x]):
        message = refusal(ValueError, function, *args, num_heads)
        assert message.startswith(f"num_heads={num_heads} must divide ")
        assert f"width {width}" in message
        assert str(divisors) in message


Q4, K5, V5, THREE, MASK = problem_of()


def advised(mask: Any, *readings: str) -> Tensor:
    """Follow the messages, each by the label that names this mask, until the call works."""
    labels = iter(readings)
    while True:
        try:
            return multi_head_attention(Q4, K5, V5, THREE, mask)
        except (TypeError, ValueError) as error:
            advice = re.search(rf"{next(labels)}[^:]*: (.*?)\.(?: [A-Z0-9]|$)", str(error))
            if advice is None:
                raise
            if advice[1].startswith("attend="):
                names = {"scaled_dot_product_attention": scaled_dot_product_attention, "mask": mask}
                attend = eval(advice[1].removeprefix("attend="), names)
                assert next(labels, None) is None
                return multi_head_attention(Q4, K5, V5, THREE, attend=attend)
            mask = eval(advice[1], {"mask": mask, "torch": torch})


assert MASK is not None
ADDED = torch.zeros(MASK.shape).masked_fill(~MASK, -math.inf)
OPEN = torch.ones(4, 5).bool()
CORNER = OPEN.tril()
KEYS = torch.arange(5) < torch.tensor([[2], [3]])  # padding: sequences of 2 and 3 tokens
HEADS = rand_mask(2, 3, 4, 5, seed=7)


@pytest.mark.parametrize(
    ("mask", "same", "readings"),
    [
        *((MASK.to(dtype), MASK, ["0 and 1"]) for dtype in (torch.int64, torch.uint8, torch.half)),
        (ADDED, MASK, ["0 and -inf"]),
        (ADDED.clamp(min=-3e38), MASK, ["0 and -inf"]),
        (ADDED.bfloat16(), MASK, ["0 and -inf"]),
        (MASK.numpy(), MASK, ["Array or list"]),
        (MASK.numpy().astype("float32"), MASK, ["Array or list", "0 and 1"]),
        (MASK.tolist(), MASK, ["Array or list"]),
        (True, OPEN, ["Array or list", "Sizes 1"]),
        (torch.tensor(1.0), OPEN, ["0 and 1", "Sizes 1"]),
        (CORNER, CORNER, ["Causal"]),
        (CORNER[None], CORNER, ["Sizes 1"]),
        (KEYS, KEYS[:, None], ["Padding"]),
        (KEYS.long(), KEYS[:, None], ["0 and 1", "Padding"]),
        (KEYS[0], KEYS[0], ["Sizes 1"]),
        (KEYS[:, None], KEYS[:, None], ["Sizes 1"]),
        (MASK[:, :, :1], MASK[:, :, :1], ["Sizes 1"]),
        # Hugging Face
        (ADDED[:, None].clamp(min=-3e38), MASK, ["0 and -inf", "One for all heads"]),
        (KEYS[:, None, None], KEYS[:, None], ["One for all heads"]),
        (
            ((~KEYS)[:, None, None] * torch.finfo().min),
            KEYS[:, None],
            ["0 and -inf", "One for all"],
        ),
        # nanoGPT
        (CORNER.float()[None, None], CORNER, ["0 and 1", "One for all heads"]),
        # The annotated Transformer
        (torch.triu(torch.ones(1, 4, 5), 1).type(torch.uint8) == 0, CORNER, ["Sizes 1"]),
        # d2l, whose lengths are of a sequence or of each query
        (torch.tensor([2, 3]), KEYS[:, None], ["Lengths", "Padding"]),
        (
            torch.arange(1, 9).view(2, 4),
            torch.arange(1, 9).view(2, 4, 1) > torch.arange(5),
            ["Len"],
        ),
        # timm, and whoever has one a head
        (HEADS, HEADS, ["One for each head"]),
        (HEADS[:1], HEADS[:1], ["One for each head"]),
        (HEADS.flatten(0, 1), HEADS, ["Folded heads", "One for each head"]),
        (HEADS.float().flatten(0, 1), HEADS, ["0 and 1", "Folded heads", "One for each head"]),
    ],
)
def test_the_advice_on_any_mask_works(mask: Any, same: Tensor, readings: list[str]) -> None:
    out = advised(mask, *readings)
    expected = torch.empty_like(out)
    for head in range(3):  # by hand, one head at a time
        heads = [slices(x, 3)[head] for x in (Q4, K5, V5)]
        of_head = same[:, head] if same.ndim == 4 else same
        slices(expected, 3)[head].copy_(fused(*heads, of_head.expand(2, 4, 5)))
    assert_close(out, expected)


def test_a_mask_that_is_not_boolean_is_named_with_its_type() -> None:
    for mask, name in (ADDED, "torch.float32"), (ADDED.numpy(), "numpy.ndarray"), ([1], "list"):
        message = refusal(TypeError, multi_head_attention, Q4, K5, V5, THREE, mask)
        assert re.match(rf"mask must be boolean, not .*{name}.*: True = may attend\.", message)


@pytest.mark.parametrize(
    "shape",
    [(4, 5), (2, 5), (5,), (), (2, 1, 4, 5), (2, 3, 4, 5), (1, 4, 5), (2, 1, 5), (2, 4, 1),
     (2, 5, 4), (6, 4, 5)],
    ids=str,
)  # fmt: skip
def test_a_mask_of_any_other_shape_is_refused_with_both_shapes(shape: tuple[int, ...]) -> None:
    *args, _ = problem_of()
    message = refusal(ValueError, multi_head_attention, *args, torch.ones(shape).bool())
    assert message.startswith("mask must be (batch, seq_q, seq_k) = (2, 4, 5)")
    assert f"is {shape}" in message


@pytest.mark.parametrize(("batch", "seq_q", "seq_k"), [(2, 4, 5), (3, 3, 3)])
def test_the_advice_for_2d_masks_gives_the_right_result(batch: int, seq_q: int, seq_k: int) -> None:
    """Also where all sizes are equal, so that a 2-D mask could be either of the two."""
    q, k, v, _, _ = problem_of(batch, seq_q, seq_k)
    causal = torch.ones(seq_q, seq_k).tril().bool()
    padding = torch.ones(batch, seq_k).tril().bool()  # example b has b + 1 tokens
    without_padding = [
        plain_loop(q[b, None], k[b, None, : b + 1], v[b, None, : b + 1], 3, None)
        for b in range(batch)
    ]
    for name, mask, expected in [
        ("Causal", causal, torch_per_head(q, k, v, 3, None, is_causal=True)),
        ("Padding", padding, torch.cat(without_padding)),
    ]:
        message = refusal(ValueError, multi_head_attention, q, k, v, 3, mask)
        advice = re.search(rf"{name}[^:]*: (mask[^.]*\.expand\([^)]*\))", message)
        assert advice is not None, message
        expanded = eval(advice[1], {"mask": mask})
        assert_close(multi_head_attention(q, k, v, 3, expanded), expected)


# Hard inputs


@each_attend
def test_a_query_that_may_attend_to_nothing_gets_zeros(attend: Callable[..., Tensor]) -> None:
    out = multi_head_attention(*problem_of(), attend=attend)
    empty = torch.zeros(2, 4, 9, dtype=torch.bool)
    empty[0, -1] = True
    assert torch.equal(out == 0, empty)


def test_nan_in_a_masked_value_spreads_over_its_column_as_documented() -> None:
    q, k, v, num_heads, mask = problem_of()
    assert mask is not None
    mask[..., 3] = False
    v[0, 3, 4] = math.nan
    spread = torch.zeros(2, 4, 9, dtype=torch.bool)
    spread[0, :, 4] = True
    assert torch.equal(multi_head_attention(q, k, v, num_heads, mask).isnan(), spread)
    assert re.search(r"NaN in a masked v\b.*spreads", multi_head_attention.__doc__ or "")


@each_attend
@masked_or_not
@pytest.mark.parametrize("sizes", [(0, 4, 5), (2, 0, 5), (2, 4, 0), (0, 0, 0)], ids=str)
def test_no_examples_no_queries_or_no_keys_give_an_empty_or_a_zero_result(
    sizes: tuple[int, int, int], masked: bool, attend: Callable[..., Tensor]
) -> None:
    out = multi_head_attention(*problem_of(*sizes, masked=masked), attend=attend)
    assert torch.equal(out, torch.zeros(sizes[0], sizes[1], 9, dtype=torch.float64))


def test_in_half_precision_only_the_scaled_score_has_to_fit() -> None:
    q, k = torch.full((1, 2, 128), 32.0).half(), torch.full((1, 3, 128), 32.0).half()
    k[:, 1:] = 16.0
    v = torch.arange(3.0).half().view(1, 3, 1).expand(1, 3, 128)
    assert (q[..., :64] @ k[..., :64].mT).isinf().any()
    mask = torch.tensor([[[False, True, True], [True, True, True]]])
    assert multi_head_attention(q, k, v, 2, mask)[0, :, 0].tolist() == [1.5, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precisions_keep_their_dtype_and_come_close(dtype: torch.dtype) -> None:
    q, k, v, num_heads, mask = problem_of()
    low = Problem(q.to(dtype), k.to(dtype), v.to(dtype), num_heads, mask)
    exact = Problem(low.q.double(), low.k.double(), low.v.double(), num_heads, mask)
    tolerance = 4 * torch.finfo(dtype).eps
    expected = plain_loop(*exact).to(dtype)
    assert_close(multi_head_attention(*low), expected, rtol=tolerance, atol=tolerance)
    assert all(grad.isfinite().all() for grad in gradients(multi_head_attention, low))


def test_under_autocast_the_result_has_the_precision_that_torchs_has() -> None:
    q, k, v, num_heads, mask = problem_of()
    problem = Problem(q.float(), k.float(), v.float(), num_heads, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, expected = multi_head_attention(*problem), torch_per_head(*problem)
    assert expected.dtype == torch.bfloat16
    assert_close(out, expected, rtol=0.03, atol=0.03)


@each_attend
@given(problem=problems())
def test_inputs_and_mask_are_never_written_to(
    attend: Callable[..., Tensor], problem: Problem
) -> None:
    tensors = [x for x in problem if isinstance(x, Tensor)]
    before = [(x.clone(), x._version) for x in tensors]
    multi_head_attention(*problem, attend=attend).fill_(math.nan)
    for x, (copy, version) in zip(tensors, before, strict=True):
        assert torch.equal(x, copy)
        assert x._version == version


# Gradients


@masked_or_not
def test_gradients_are_those_of_the_plain_loop_and_of_torch(masked: bool) -> None:
    problem = problem_of(masked=masked)
    with torch.autograd.set_detect_anomaly(True):
        ours = gradients(multi_head_attention, problem)
    assert_close(ours, gradients(plain_loop, problem))
    assert_close(ours, gradients(torch_per_head, problem))


@masked_or_not
def test_it_differentiates_twice(masked: bool) -> None:
    q, k, _, num_heads, mask = problem_of(1, 2, 3, masked=masked)
    # As wide as k: for such a v torch's fused kernel has no second derivative.
    inputs = [x.requires_grad_() for x in (q, k, rand(1, 3, 12, seed=2))]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return multi_head_attention(q, k, v, num_heads, mask)

    assert torch.autograd.gradcheck(attention, inputs)
    assert torch.autograd.gradgradcheck(attention, inputs, fast_mode=True)


# Without values, and transformed by torch


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return multi_head_attention(q, k, v, 3, mask)


def test_on_the_meta_device_it_gives_the_shape() -> None:
    q, k, v, num_heads, mask = problem_of()
    assert mask is not None
    q, k, v, mask = (x.to("meta") for x in (q, k, v, mask))
    out = multi_head_attention(q, k, v, num_heads, mask)
    assert (out.shape, out.device.type) == ((2, 4, 9), "meta")


@masked_or_not
def test_it_exports_with_dynamic_batch_and_lengths(masked: bool) -> None:
    q, k, v, _, mask = problem_of(masked=masked)
    batch, seq_q, seq_k = map(torch.export.Dim, ("batch", "seq_q", "seq_k"))
    of_q, of_kv = {0: batch, 1: seq_q}, {0: batch, 1: seq_k}
    dynamic = (of_q, of_kv, of_kv, of_q | {2: seq_k} if masked else None)
    exported = torch.export.export(Attention(), (q, k, v, mask), dynamic_shapes=dynamic).module()
    for sizes in (5, 2, 7), (1, 6, 1), (3, 1, 0):
        q, k, v, num_heads, mask = problem_of(*sizes, masked=masked)
        assert_close(exported(q, k, v, mask), plain_loop(q, k, v, num_heads, mask))


def compiled_is_the_same(masked: bool, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(multi_head_attention, fullgraph=True, backend=backend)
    problem, other = problem_of(masked=masked), problem_of(5, 2, 7, masked=masked)
    assert_close(compiled(*problem), plain_loop(*problem))
    assert_close(gradients(compiled, other), gradients(plain_loop, other))


@masked_or_not
def test_it_compiles_without_a_graph_break(masked: bool) -> None:
    compiled_is_the_same(masked, backend="aot_eager")


@pytest.mark.inductor
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_it_compiles_with_the_default_backend() -> None:
    compiled_is_the_same(masked=True, backend="inductor")


def test_vmap_gives_what_a_stack_of_calls_gives() -> None:
    q, k, v, num_heads, mask = problem_of()
    assert mask is not None
    stacked = [torch.stack([x, x.flip(0)]) for x in (q, k, v, mask)]
    out = multi_head_attention(q, k, v, num_heads, mask)
    # Two problems: the second has the examples of the first in the other order.
    assert_close(torch.vmap(Attention())(*stacked), torch.stack([out, out.flip(0)]))
    masks = torch.stack([mask, ~mask])
    only_masks = torch.vmap(Attention(), in_dims=(None, None, None, 0))(q, k, v, masks)
    assert_close(only_masks, torch.stack([out, multi_head_attention(q, k, v, num_heads, ~mask)]))
