"""Which output depends on which input: of any PyTorch function, by gradients and by moving x."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def dependency_map(fn: Callable[[Tensor], Any], x: Tensor, dim: int = 1) -> Tensor:
    """Which output token depends on which input token.

    Shapes cannot tell a right split from a wrong one; this can. A gradient beyond rounding is a
    dependency. Without one there may still be a saturated softmax, a dead ReLU or an argmax, so
    `fn` is tried with other numbers too: almost zero, a million times larger, of the other sign.

    Args:
        fn: takes (batch, seq, width) to (batch, seq_out, width_out), and differentiates. Of a
            tuple, a list or a model's output the first tensor counts.
        x: where to try it. Code that takes ids is tried at the output of its embedding.
        dim: the axis to map: 0 sequences of the batch, 1 tokens, 2 features (so, heads).

    Returns:
        Boolean (seq_out, seq), True where any feature of the input token moves any feature of the
        output token, in any sequence of the batch. Other axes likewise: (batch, batch) for dim 0.

    Raises:
        ValueError: `x` is not float (batch, seq, width), `fn` does not return such a tensor, or the
            answer cannot be known: no gradient, NaN, dropout, sequences of the batch that mix.

    >>> causal = torch.ones(4, 4).tril()
    >>> dependency_map(lambda x: causal @ x, torch.rand(1, 4, 6)).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    >>> dependency_map(lambda x: x.flip(0), torch.rand(2, 4, 6), dim=0).int().tolist()
    [[0, 1], [1, 0]]

    A hook hands a model that takes ids the output of its embedding:

    >>> ids, model = torch.tensor([[3, 1, 4]]), torch.nn.Sequential(torch.nn.Embedding(9, 6))
    >>> def fn(embedded):
    ...     with model[0].register_forward_hook(lambda *_: embedded):
    ...         return model(ids)
    >>> dependency_map(fn, model[0](ids)).int().tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    if not isinstance(x, Tensor) or x.ndim != 3 or not x.is_floating_point():
        found = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"x must be float (batch, seq, width), but is {found}. "
            "For ids, give the output of their embedding: help(dependency_map) shows how."
        )
    if x.numel() == 0 or not x.isfinite().all():
        what = "a number in it that is NaN or inf" if x.numel() else "none"
        raise ValueError(f"x must hold finite numbers to try, but {tuple(x.shape)} has {what}.")
    if dim not in (0, 1, 2):
        raise ValueError(f"dim must be 0 (sequences), 1 (tokens) or 2 (features), but is {dim!r}.")
    devices = [x.device] if x.is_cuda else []
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices):
        x = x.detach().clone()
        _check_repeats(fn, x)
        alone = len(x) == 1 or dim == 0
        mixed = [] if alone else _dependencies(fn, x, 0).fill_diagonal_(False).nonzero().tolist()
        if mixed:
            out, source = mixed[0]
            raise ValueError(
                f"fn mixes the sequences of the batch: output sequence {out} depends on input "
                f"sequence {source}. See all with dim=0, or give one sequence alone, x[:1]."
            )
        return _dependencies(fn, x, dim)


def _dependencies(fn: Callable[[Tensor], Any], x: Tensor, dim: int) -> Tensor:
    """The map of one axis: gradients at x, then at other numbers, and moves between the two."""
    result = _result(fn, x)
    found, linked = _by_gradients(fn, x, dim, 16 * torch.finfo(x.dtype).eps)
    noise = _random_like(x) * (x.abs().mean() if x.any() else 1)
    # Near zero a softmax is uniform and a norm is linear; far from it, of both signs, ReLUs open.
    for other in (x * 1e-12, x * 1e6, x * -1e6, x + noise):
        for j in (~found.all(0)).nonzero().flatten().tolist():
            moved = x.clone()
            moved.select(dim, j).copy_(other.select(dim, j))
            with contextlib.suppress(Exception):  # fn may refuse numbers that it is not made for
                found[:, j] |= _lines(_moves(_result(fn, moved), result), dim).any(1)
        if not found.all():
            with contextlib.suppress(Exception):
                found |= _by_gradients(fn, other, dim, _rounding(x))[0]
    if found.any() and not linked:
        raise ValueError(
            "fn's result changes with x but has no gradient: look for no_grad, detach, .data, "
            ".item, argmax or NumPy in it, and take the result before them."
        )
    return found


def _by_gradients(
    fn: Callable[[Tensor], Any], x: Tensor, dim: int, least: float
) -> tuple[Tensor, bool]:
    """Where gradients are more than `least` of the largest, and whether there are any at all."""
    x = x.detach().requires_grad_()
    result = _result(fn, x)
    found = torch.zeros(result.shape[dim], x.shape[dim], dtype=torch.bool, device=x.device)
    if not result.requires_grad:
        return found, False
    directions = _random_like(result)
    for i in range(len(found)):
        # One random direction for all features: none of them hides, and few passes are enough.
        chosen = torch.zeros_like(directions)
        chosen.select(dim, i).copy_(directions.select(dim, i))
        gradient: Any = torch.autograd.grad(
            result, x, chosen, retain_graph=True, allow_unused=True
        )[0]
        if gradient is None:
            return found, False
        if not gradient.isfinite().all():
            raise ValueError(
                "fn's gradient is not finite, though its result is: look for NaN or inf that is "
                "masked later, as by torch.where, or a root or a division at 0."
            )
        size = _lines(gradient.abs(), dim).amax(1)
        found[i] = size > least * size.max()
    return found, True


def _check_repeats(fn: Callable[[Tensor], Any], x: Tensor) -> None:
    """Refuse NaN, and what differs on the same x; small dropout may take a few calls to show."""
    first = _result(fn, x)
    if not first.isfinite().all():
        raise ValueError(
            "fn's result is not finite at x: a row that may attend to nothing gives NaN, and "
            "scores that are masked hold -inf; map what follows the softmax."
        )
    for _ in range(20):
        state = torch.get_rng_state()
        again = _result(fn, x)
        if again.shape != first.shape or _moves(again, first).any():
            raise ValueError(
                "fn gives another result when it is called again. Dropout? Call .eval() on the "
                "model first. A cache, or other state? Start it anew inside fn."
            )
        if torch.equal(state, torch.get_rng_state()):
            break


def _result(fn: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    result = fn(x.clone())  # which fn may write to
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    if not tensors or tensors[0].ndim != 3 or not tensors[0].is_floating_point():
        found = (
            f"{tensors[0].dtype} {tuple(tensors[0].shape)}" if tensors else type(result).__name__
        )
        raise ValueError(
            f"fn must return a float tensor (batch, seq_out, width_out), but returns {found}. Wrap "
            "it in a function that does: logits have gradients, ids made by argmax have none."
        )
    return tensors[0]


def _random_like(x: Tensor) -> Tensor:
    """The same normal numbers each time, which leave the generators of others alone."""
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(x.shape, generator=generator, device="cpu").to(x)


def _moves(a: Tensor, b: Tensor) -> Tensor:
    """Where two results differ by more than rounding; NaN is no number to differ from."""
    least = b.abs().max() * _rounding(b) if b.numel() else 0
    return (a - b).abs() > least


def _rounding(x: Tensor) -> float:
    return float(torch.finfo(x.dtype).eps ** 0.5)


def _lines(x: Tensor, dim: int) -> Tensor:
    """(n, everything else) for an axis of n."""
    return x.movedim(dim, 0).flatten(1)
