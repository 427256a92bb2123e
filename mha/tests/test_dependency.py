"""`dependency_map` on right and wrong attention, and where it cannot know."""

import contextlib
import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha import dependency_map, multi_head_attention, scaled_dot_product_attention, split_heads

CAUSAL = torch.ones(2, 6, 6, dtype=torch.bool).tril()
TOKENS = torch.randn(2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LOWER = torch.ones(6, 6, dtype=torch.bool).tril()


def attention(
    x: Tensor, mask: Tensor | None, wrong_split: bool = False, wrong_merge: bool = False
) -> Tensor:
    """Two heads of size 4; the wrong split and merge leave out their transpose."""
    h = x.view(2, 2, 6, 4) if wrong_split else split_heads(x, 2)
    out_h = scaled_dot_product_attention(h, h, h, None if mask is None else mask.unsqueeze(1))
    return out_h.reshape(2, 6, 8) if wrong_merge else out_h.transpose(1, 2).reshape(2, 6, 8)


def moved(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The map by experiment: move one input token of every sequence, see which outputs move."""
    result = fn(x)
    columns = []
    for token in range(x.shape[1]):
        y = x.clone()
        y[:, token] += torch.linspace(0.5, 1, x.shape[2], dtype=x.dtype)
        columns.append(((fn(y) - result).abs() > 1e-9).any(dim=2).any(dim=0))
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("wrong_merge", [False, True])
@pytest.mark.parametrize("wrong_split", [False, True])
@pytest.mark.parametrize("mask", [None, CAUSAL])
def test_the_map_agrees_with_moving_tokens(
    mask: Tensor | None, wrong_split: bool, wrong_merge: bool
) -> None:
    def fn(x: Tensor) -> Tensor:
        return attention(x, mask, wrong_split, wrong_merge)

    assert torch.equal(dependency_map(fn, TOKENS), moved(fn, TOKENS))


def test_full_attention_depends_on_every_token_and_causal_on_the_past() -> None:
    assert dependency_map(lambda x: attention(x, None), TOKENS).all()
    assert torch.equal(dependency_map(lambda x: attention(x, CAUSAL), TOKENS), LOWER)
    ours = dependency_map(lambda x: multi_head_attention(x, x, x, 2, CAUSAL), TOKENS)
    assert torch.equal(ours, LOWER)


@pytest.mark.parametrize(("wrong_split", "wrong_merge"), [(True, False), (False, True)])
def test_one_mistake_lets_the_future_leak(wrong_split: bool, wrong_merge: bool) -> None:
    found = dependency_map(lambda x: attention(x, CAUSAL, wrong_split, wrong_merge), TOKENS)
    assert (found & ~LOWER).any(), "a token depends on a later one"


def test_two_mistakes_cut_the_sequence_and_pass_the_causality_test() -> None:
    found = dependency_map(lambda x: attention(x, CAUSAL, True, True), TOKENS)
    assert not (found & ~LOWER).any()
    assert not found[3:, :3].any(), "the second half never hears of the first"
    assert found.diagonal().all()


def test_a_map_of_other_lengths() -> None:
    assert dependency_map(lambda x: x[:, :2, :3], TOKENS).tolist() == [
        [True, False, False, False, False, False],
        [False, True, False, False, False, False],
    ]
    assert dependency_map(lambda x: x[:, -1:], TOKENS).tolist() == [[False] * 5 + [True]]
    assert dependency_map(lambda x: x[:, :0], TOKENS).shape == (0, 6)
    assert not dependency_map(torch.zeros_like, TOKENS).any()


@pytest.mark.parametrize("around", [torch.no_grad, contextlib.nullcontext])
def test_a_map_needs_no_gradients_around_it_and_leaves_none(
    around: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    x = TOKENS.clone().requires_grad_()
    layer = nn.Linear(8, 8, dtype=torch.float64)
    with around():
        found = dependency_map(lambda x: layer(x).cumsum(1), x)
    assert torch.equal(found, LOWER)
    assert not found.requires_grad
    assert x.grad is None
    assert layer.weight.grad is None


def error_of(fn: Callable[[Tensor], Any], x: Any = TOKENS, **options: Any) -> str:
    with pytest.raises(ValueError, match=r"^(fn|x|dim)\b.*\.$") as caught:
        dependency_map(fn, x, **options)
    return str(caught.value)


# Zeros that are not independence


def future_less(scores_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def fn(x: Tensor) -> Tensor:
        scores = scores_of(x).masked_fill(~LOWER, torch.finfo(x.dtype).min)
        return scores.softmax(dim=-1) @ x

    return fn


def renormalised(x: Tensor) -> Tensor:
    """A mask that follows the softmax: only rounding reaches the future."""
    weights = (x @ x.mT / math.sqrt(8)).softmax(dim=-1) * LOWER
    return weights / weights.sum(dim=-1, keepdim=True) @ x


def hard(x: Tensor) -> Tensor:
    """The one token of the largest score."""
    best = (x @ x.mT).masked_fill(~LOWER, -math.inf).argmax(dim=-1, keepdim=True)
    return x.gather(1, best.expand_as(x))


SATURATED: dict[str, Callable[[Tensor], Tensor]] = {
    "scores * 100": future_less(lambda x: x @ x.mT * 100),
    "x * 1000": lambda x: future_less(lambda x: x @ x.mT)(x * 1000),
    "a norm, then scores * 100": future_less(lambda x: F.layer_norm(x, (8,)) @ x.mT * 100),
    "two layers": lambda x: SATURATED["scores * 100"](SATURATED["scores * 100"](x)),
    "dead ReLU": lambda x: (LOWER.to(x) @ x - 50).relu(),
    "argmax": hard,
    "round": lambda x: (LOWER.to(x) @ x / 100).round(),
    "underflow": lambda x: (LOWER.to(x) @ x * 60 - 1000).exp(),
    "one part detached": lambda x: x + (LOWER.to(x) @ x).detach(),
    "mask after the softmax": renormalised,
    "written to": lambda x: LOWER.to(x) @ x.mul_(2),
}


@pytest.mark.parametrize("name", SATURATED)
def test_a_zero_gradient_is_no_independence(name: str) -> None:
    for x in TOKENS, TOKENS.flip(1).float()[:1]:
        assert torch.equal(dependency_map(SATURATED[name], x), LOWER)


@pytest.mark.parametrize("x", [torch.zeros(1, 6, 8), torch.ones(1, 6, 8), TOKENS * 1e4])
def test_it_does_not_matter_where_it_is_tried(x: Tensor) -> None:
    assert torch.equal(dependency_map(lambda x: LOWER.to(x) @ (x * x), x), LOWER)
    assert torch.equal(dependency_map(future_less(lambda x: x @ x.mT), x), LOWER)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    found = dependency_map(lambda x: attention(x, CAUSAL), TOKENS.to(dtype))
    assert torch.equal(found, LOWER)


def test_a_function_may_refuse_the_numbers_of_the_second_look() -> None:
    def picky(x: Tensor) -> Tensor:
        assert x.abs().max() < 100
        return LOWER.to(x) @ x

    assert torch.equal(dependency_map(picky, TOKENS), LOWER)


@pytest.mark.parametrize("seed", range(5))
def test_any_pattern_of_relus_is_found(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pattern = torch.rand(4, 6, generator=generator) < 0.5
    weight = torch.randn(8, 3, generator=generator).double()
    found = dependency_map(lambda x: (pattern.double() @ x @ weight - 9).relu(), TOKENS)
    assert torch.equal(found, pattern)


# Other axes


@pytest.mark.parametrize(
    ("fn", "mixed"),
    [
        (lambda x: x.flip(0), [[0, 1], [1, 0]]),
        (lambda x: x[:, -1:].flip(0), [[0, 1], [1, 0]]),
        (lambda x: x.mean(0, keepdim=True), [[1, 1]]),
        (lambda x: x + x[:1], [[1, 0], [1, 1]]),
        (lambda x: x.reshape(1, -1, 8), [[1, 1]]),
    ],
)
def test_a_leak_between_sequences_is_an_error_and_has_a_map(
    fn: Callable[[Tensor], Tensor], mixed: list[list[int]]
) -> None:
    message = error_of(fn)
    named = re.match(r"fn mixes .*: output sequence (\d) depends on input sequence (\d)\.", message)
    assert named
    out, source = map(int, named.groups())
    assert out != source
    assert mixed[out][source]
    assert "dim=0" in message
    assert dependency_map(fn, TOKENS, dim=0).int().tolist() == mixed
    assert "x[:1]" in message
    dependency_map(fn, TOKENS[:1])


def test_sequences_that_do_not_mix_have_a_diagonal_map() -> None:
    found = dependency_map(lambda x: attention(x, CAUSAL), TOKENS, dim=0)
    assert torch.equal(found, torch.eye(2) > 0)
    assert torch.equal(dependency_map(lambda x: x[:1], TOKENS), torch.eye(6) > 0)


def test_the_map_of_features_shows_the_heads() -> None:
    heads = dependency_map(lambda x: attention(x, CAUSAL), TOKENS, dim=2)
    assert torch.equal(heads, torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)) > 0)


# Models


class Model(nn.Module):
    """Takes ids to (batch, seq, 9) logits."""

    def __init__(self, kind: Callable[[Tensor], Any], dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.kind = kind

    def forward(self, ids: Tensor) -> Any:
        x = self.layer(self.embedding(ids), src_mask=~LOWER)
        return self.kind(x @ self.embedding.weight.T)


IDS = torch.tensor([[3, 1, 4, 1, 5, 2], [2, 7, 1, 8, 2, 0]])


def by_ids(model: Model) -> Callable[[Tensor], Any]:
    def fn(embedded: Tensor) -> Any:
        with model.embedding.register_forward_hook(lambda *_: embedded):
            return model(IDS)

    return fn


@pytest.mark.parametrize(
    "kind",
    [lambda y: y, lambda y: (y, 1), lambda y: [y, y.sum()], lambda y: {"loss": None, "logits": y}],
)
def test_a_model_that_takes_ids_and_returns_its_first_tensor(kind: Callable[[Tensor], Any]) -> None:
    model = Model(kind)
    assert torch.equal(dependency_map(by_ids(model), model.embedding(IDS)), LOWER)


def test_dropout_is_an_error_whose_way_out_works() -> None:
    """However small: of many calls one shows it. Nothing of the model or of torch changes."""
    model = Model(lambda y: y, dropout=0.1)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    for seed in range(10):
        torch.manual_seed(seed)
        small = error_of(lambda x: F.dropout(x[:1, :2, :1], 0.1))
        assert small.startswith("fn gives another result when it is called again.")
    torch.manual_seed(0)
    assert ".eval()" in error_of(by_ids(model), model.embedding(IDS))
    assert model.training
    model.eval()
    assert torch.equal(dependency_map(by_ids(model), model.embedding(IDS)), LOWER)
    assert torch.equal(torch.get_rng_state(), state)
    assert [weight for weight in model.parameters() if weight.grad is not None] == []


def test_a_cache_that_grows_is_an_error() -> None:
    cache: list[Tensor] = []

    def grows(x: Tensor) -> Tensor:
        cache.append(x)
        return torch.cat(cache, dim=1)

    assert "A cache" in error_of(grows)


# Where it cannot know


@pytest.mark.parametrize(
    "fn",
    [
        torch.no_grad()(lambda x: x * 2),
        torch.inference_mode()(lambda x: x * 2),
        lambda x: x.detach() * 2,
        lambda x: nn.Linear(8, 8).weight.double().sum() * 0 + x.detach(),
        lambda x: F.one_hot(x.argmax(-1), 8).double(),
        lambda x: torch.from_numpy(x.detach().numpy() * 2),
    ],
)
@pytest.mark.parametrize("dim", [1, 2])
def test_a_result_without_gradient_that_moves_is_an_error(
    fn: Callable[[Tensor], Tensor], dim: int
) -> None:
    message = error_of(fn, dim=dim)
    assert message.startswith("fn's result changes with x but has no gradient: look for no_grad,")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x / 0, "fn's result is not finite at x"),
        (lambda x: F.softmax(x.fill_(-math.inf), -1), "fn's result is not finite at x"),
        (lambda x: (x * 0).abs().sqrt(), "fn's gradient is not finite, though its result is"),
        (
            lambda x: torch.where(x == x, x, (x * 0).sqrt() / 0),
            "fn's gradient is not finite, though its result is",
        ),
    ],
)
def test_what_is_not_finite_is_an_error(fn: Callable[[Tensor], Tensor], message: str) -> None:
    assert error_of(fn).startswith(message)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.rand(4, 6), "x must be float (batch, seq, width), but is torch.float32 (4, 6)."),
        (IDS, "x must be float (batch, seq, width), but is torch.int64 (2, 6). For ids, give the"),
        ([1], "x must be float (batch, seq, width), but is list."),
        (torch.rand(2, 0, 6), "x must hold finite numbers to try, but (2, 0, 6) has none."),
        (TOKENS / 0, "x must hold finite numbers to try, but (2, 6, 8) has a number in it that is"),
    ],
)
def test_a_map_of_the_wrong_input_says_so(x: Any, message: str) -> None:
    assert error_of(lambda x: x, x).startswith(message)


def test_a_map_of_no_axis_says_so() -> None:
    assert error_of(lambda x: x, dim=3).startswith("dim must be 0 (sequences), 1 (tokens) or 2 ")


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (lambda x: x[0], "torch.float64 (6, 8)"),
        (lambda x: (x.sum(), x), "torch.float64 ()"),
        (lambda x: x.view(2, 6, 2, 4), "torch.float64 (2, 6, 2, 4)"),
        (lambda x: x.long(), "torch.int64 (2, 6, 8)"),
        (lambda x: x > 0, "torch.bool (2, 6, 8)"),
        (lambda x: SimpleNamespace(logits=x), "SimpleNamespace"),
        (lambda x: None, "NoneType"),
        (lambda x: x.numpy(), "ndarray"),
    ],
)
def test_a_map_of_the_wrong_output_says_so(fn: Callable[[Tensor], Any], found: str) -> None:
    message = error_of(fn)
    wanted = "fn must return a float tensor (batch, seq_out, width_out)"
    assert message.startswith(f"{wanted}, but returns {found}. Wrap it")


def test_it_takes_a_backward_pass_for_each_token_and_not_for_each_feature() -> None:
    passes: list[Tensor] = []

    def fn(x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(passes.append)
        return LOWER.float() @ x

    dependency_map(fn, torch.rand(1, 6, 64))
    assert 6 <= len(passes) <= 5 * 6, "five looks at each of 6 tokens"
