"""Gaussian representations with independent dimensions: a draw, a length, and how much one tells beyond another (FedSR)."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

__all__ = ["Length", "deviation", "drawn", "gaussian_divergence", "representation_length"]

Length = Literal["squared", "norm"]
_SMALLEST = 1e-6  # a deviation: softplus of a very negative number is 0, whose logarithm is none


def deviation(raw: Tensor) -> Tensor:
    """sigma = softplus(raw), in at least single precision."""
    return F.softplus(raw.float() if raw.element_size() < 4 else raw) + _SMALLEST


def drawn(mu: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
    """z = mu + sigma eps, so that the gradient reaches mu and sigma."""
    return mu + sigma * noise


def representation_length(z: Tensor, form: Length) -> Tensor:
    """L2R over a batch [n, d]: the mean of |z|^2, or of |z|, whose gradient is zero where z is.

    >>> import torch
    >>> z = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> float(representation_length(z, "squared")), float(representation_length(z, "norm"))
    (12.5, 2.5)
    """
    return z.square().sum(1).mean() if form == "squared" else z.norm(dim=1).mean()


def gaussian_divergence(mu: Tensor, sigma: Tensor, r_mu: Tensor, r_sigma: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(r_mu, r_sigma^2)), summed over dimensions and averaged over the batch [n, d].

    An upper bound of I(z; x | y) where r is fitted to each label: the CMI of FedSR.

    >>> import torch
    >>> one, zero = torch.ones(1, 2), torch.zeros(1, 2)
    >>> float(gaussian_divergence(one, one, zero, one)), float(gaussian_divergence(one, one, one, one))
    (1.0, 0.0)
    """
    ratio = (sigma / r_sigma).square()  # its sign does not matter, as of a scaled deviation
    each = ((mu - r_mu) / r_sigma).square() + ratio - 1 - ratio.log()
    return each.sum(1).mean() / 2
