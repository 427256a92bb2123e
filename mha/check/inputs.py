"""Small tensors to call an answer with."""

import math

import torch
from torch import Tensor


def random(*shape: int, seed: int = 0) -> Tensor:
    """Small whole numbers as floats."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).float()


def qkv(*shape: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Three random tensors of one shape."""
    return tuple(random(*shape, seed=3 * seed + i) for i in range(3))


def numbered(*shape: int, start: float = 0.0) -> Tensor:
    """The numbers from `start` on, in order; half precision holds none of those from 0.1 on."""
    return start + torch.arange(math.prod(shape)).float().view(shape)


def spread(x: Tensor) -> Tensor:
    """The same numbers, every other element of its memory: not contiguous, yet any view works."""
    return torch.stack([x, x - 1], dim=-1)[..., 0]


def random_mask(*shape: int, seed: int = 0) -> Tensor:
    """A random mask, another for each of the batch; no row is all True or all False."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    mask = torch.rand(shape, generator=generator) < 0.6
    mask[..., 0] |= ~mask.any(dim=-1)
    mask[..., 1] &= ~mask.all(dim=-1)
    return mask


def weights(*shape: int, seed: int = 0) -> Tensor:
    """Rows that sum to 1."""
    return (2 * random(*shape, seed=seed)).softmax(dim=-1)
