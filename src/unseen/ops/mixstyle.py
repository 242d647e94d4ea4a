"""MixStyle: a sample's maps with statistics mixed from another sample's. Zhou et al., "Domain generalization with MixStyle", ICLR 2021."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["draw_keeping", "draw_mixing", "mix_styles"]

_SMALLEST_VARIANCE = 1e-6


def mix_styles(maps: Tensor, keep: Tensor, partner: Tensor) -> Tensor:
    """sigma' (x - mu) / sigma + mu', where mu' and sigma' keep `keep` [n] of a sample's own and take the rest from its `partner` [n].

    mu and sigma are a channel's mean and deviation over positions; no gradient flows through them. A sample that keeps everything
    comes back as it was, to the bit.

    >>> x = torch.tensor([[[[0.0, 2.0]]], [[[10.0, 30.0]]]])  # means 1 and 20
    >>> mix_styles(x, torch.tensor([0.0, 1.0]), torch.tensor([1, 0])).mean((2, 3)).flatten()
    tensor([20., 20.])
    """
    with torch.no_grad():
        exact = maps.to(torch.promote_types(maps.dtype, torch.float32))
        variance, mu = torch.var_mean(exact, (2, 3), correction=0, keepdim=True)  # only ratios of deviations count
        sigma = (variance + _SMALLEST_VARIANCE).sqrt()
        own = keep.view(-1, 1, 1, 1)
        mixed_mu, mixed_sigma = (own * s + (1 - own) * s[partner] for s in (mu, sigma))
        scale = mixed_sigma / sigma
        shift = mixed_mu - mu * scale
    return maps * scale.to(maps.dtype) + shift.to(maps.dtype)


def draw_mixing(n: int, layers: int, p: float, alpha: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each of some layers what n samples keep, from Beta(alpha, alpha), and their partners, a permutation: both [layers, n].

    A layer acts with probability p; otherwise everyone keeps everything.
    """
    acts = torch.rand(layers, 1, generator=rng) < p
    keep = torch.where(acts, _beta(alpha, (layers, n), rng), torch.ones(()))
    return keep, torch.stack([torch.randperm(n, generator=rng) for _ in range(layers)])


def draw_keeping(alpha: float, n: int, rng: torch.Generator) -> Tensor:
    """What each of n samples keeps of its own style, from Beta(alpha, alpha)."""
    return _beta(alpha, (1, n), rng)[0]


def _beta(alpha: float, shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Beta(alpha, alpha) from a generator of our own, through two gamma variables in double precision (alpha is small)."""
    a, b = (torch._standard_gamma(torch.full(shape, alpha, dtype=torch.float64), generator=rng) for _ in range(2))
    return torch.where(a + b > 0, a / (a + b), torch.full_like(a, 0.5)).float()
