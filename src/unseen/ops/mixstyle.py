"""Styles of feature maps [n, c, h, w], changed sample by sample.

MixStyle: statistics mixed from another sample's. Zhou et al., "Domain generalization with MixStyle", ICLR 2021.
EFDMix: all values mixed by rank. Zhang et al., "Exact feature distribution matching for arbitrary style transfer and domain
generalization", CVPR 2022.
DSU: statistics drawn around a sample's own. Li et al., "Uncertainty modeling for out-of-distribution generalization", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unseen.ops.moments import mean_and_variance

__all__ = ["draw_keeping", "draw_mixing", "draw_noise", "mix_ranks", "mix_styles", "noisy_styles"]

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
        mu, variance = mean_and_variance(exact, (2, 3))  # only ratios of deviations count
        sigma = (variance + _SMALLEST_VARIANCE).sqrt()
        own = keep.view(-1, 1, 1, 1)
        mixed_mu, mixed_sigma = (own * s + (1 - own) * s[partner] for s in (mu, sigma))
        scale = mixed_sigma / sigma
        shift = mixed_mu - mu * scale
    return maps * scale.to(maps.dtype) + shift.to(maps.dtype)


def mix_ranks(maps: Tensor, keep: Tensor, partner: Tensor) -> Tensor:
    """x + (1 - keep) (x_partner of the same rank - x), channel by channel; the gradient flows through the first x alone.

    Of equal values the earlier position has the lower rank. A sample that keeps everything comes back as it was, to the bit.

    >>> x = torch.tensor([[[[5.0, 1.0, 3.0]]], [[[10.0, 20.0, 30.0]]]])
    >>> mix_ranks(x, torch.tensor([0.0, 1.0]), torch.tensor([1, 0]))[0].flatten()
    tensor([30., 10., 20.])
    """
    with torch.no_grad():
        values = maps.flatten(2)
        in_order, places = values.sort(dim=2, stable=True)
        matched = torch.empty_like(values).scatter_(2, places, in_order[partner])
        change = (1 - keep).to(maps.dtype).view(-1, 1, 1) * (matched - values)
    return maps + change.view(maps.shape)


def noisy_styles(maps: Tensor, noise: Tensor, scale: float = 1.0) -> Tensor:
    """sigma' (x - mu) / sigma + mu' with mu' = mu + noise[0] sqrt(scale V_mu), sigma' = sigma + noise[1] sqrt(scale V_sigma).

    V is the variance over the batch of that channel's statistic, noise is [2, n, c]. Gradients flow through all of them.
    """
    if len(maps) < 2:
        return maps
    exact = maps.to(torch.promote_types(maps.dtype, torch.float32))
    mu, variance = (each.flatten(1) for each in mean_and_variance(exact, (2, 3)))
    sigma = (variance + _SMALLEST_VARIANCE).sqrt()
    new_mu, new_sigma = (
        s + e * (scale * s.var(0, correction=0) + _SMALLEST_VARIANCE).sqrt() for s, e in zip((mu, sigma), noise, strict=True)
    )
    ratio = new_sigma / sigma
    shift = new_mu - mu * ratio
    noisy: Tensor = maps * ratio.to(maps.dtype)[:, :, None, None] + shift.to(maps.dtype)[:, :, None, None]
    return noisy


def draw_noise(n: int, channels: Sequence[int], p: float, rng: torch.Generator) -> tuple[Tensor, ...]:
    """Whether each layer acts, with probability p [layers], and for each layer N(0, 1) for n samples' means and deviations, [2, n, c]."""
    acts = torch.rand(len(channels), generator=rng) < p
    return acts, *(torch.randn(2, n, c, generator=rng) for c in channels)


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
