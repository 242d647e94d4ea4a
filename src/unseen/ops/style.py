"""The style of images as moments of feature maps: how far two styles are apart, and how an image gets another.

Gatys, Ecker and Bethge, "Image style transfer using convolutional neural networks", CVPR 2016 (second moments); Huang and Belongie,
"Arbitrary style transfer in real-time with adaptive instance normalization", ICCV 2017 (mean and deviation of each channel).
"""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.ops.moments import mean_and_variance

__all__ = ["RunningMoments", "adain", "channel_moments", "gram", "possible_moments", "style_distance", "style_gap"]

_SMALLEST_VARIANCE = 1e-6  # an even channel has a deviation of a thousandth instead of none


def gram(maps: Tensor) -> Tensor:
    """G_ij = sum_k F_ik F_jk / (N M) of every sample: maps [n, channels, h, w] to [n, channels, channels] (Eq. 3).

    N channels and M = h w positions: with the division that Eq. 4 makes later, maps of any size can be compared.

    >>> gram(torch.tensor([[[[1.0, 2.0]], [[0.0, 3.0]]]]))  # [[1 + 4, 0 + 6], [6, 9]] / (2 * 2)
    tensor([[[1.2500, 1.5000],
             [1.5000, 2.2500]]])
    """
    flat = maps.flatten(2)
    return flat @ flat.mT / (flat.shape[1] * flat.shape[2])


def style_distance(a: Tensor, b: Tensor) -> Tensor:
    """E = 1/4 sum_ij (G_ij - A_ij)^2 between Gram matrices [..., c, c] divided by N M (Eq. 4).

    >>> style_distance(torch.eye(2), torch.zeros(2, 2))
    tensor(0.5000)
    """
    return (a - b).square().sum((-2, -1)) / 4


def style_gap(a: Tensor, b: Tensor) -> Tensor:
    """|A' - B'| / sqrt(|A'|^2 + |B'|^2) between two Gram matrices [c, c], where X'_ij = X_ij / sqrt(p_i p_j), p_i = A_ii + B_ii.

    Eq. 4 grows with the fourth power of the features' scale, so that the strongest feature decides and no two sets of features can
    be compared. Here every feature counts the same, and the gap lies between 0 (one style) and 1 (no feature in common: the inner
    product of two Gram matrices is never negative).

    >>> style_gap(torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 9.0])))
    tensor(1.)
    """
    power = a.diagonal() + b.diagonal()
    scale = torch.where(power > 0, power, torch.inf).rsqrt()  # a feature that neither has does not count
    a, b = (scale[:, None] * matrix * scale for matrix in (a, b))
    together = a.square().sum() + b.square().sum()
    return (4 * style_distance(a, b) / together).sqrt() if together > 0 else together


def channel_moments(maps: Tensor) -> Tensor:
    """Mean and deviation of every channel over its positions: maps [n, c, h, w] to [n, 2, c].

    >>> channel_moments(torch.tensor([[[[1.0, 3.0]]]])).flatten()
    tensor([2.0000, 1.0000])
    """
    mu, variance = mean_and_variance(maps.to(torch.promote_types(maps.dtype, torch.float32)), (2, 3))
    return torch.stack([mu, (variance + _SMALLEST_VARIANCE).sqrt()], 1).flatten(2)


def possible_moments(moments: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Moments [n, 2, c] moved to where those of images with values from `low` to `high`, per channel, can lie. Those of images stay.

    >>> possible_moments(torch.tensor([[[0.25], [0.5]], [[1e9], [-2.0]]]), torch.zeros(1), torch.ones(1)).flatten()
    tensor([0.2500, 0.5000, 1.0000, 0.0000])
    """
    low, high = (edge.flatten().to(moments) for edge in (low, high))
    widest = ((high - low).square() / 4 + _SMALLEST_VARIANCE).sqrt()  # half of the values at either end
    return torch.stack([moments[:, 0].clamp(low, high), moments[:, 1].clamp(torch.zeros_like(widest), widest)], 1)


def adain(maps: Tensor, style: Tensor, keep: Tensor | None = None) -> Tensor:
    """sigma' (x - mu) / sigma + mu', with the moments of `style` [n, 2, c] as mu' and sigma' (ICCV 2017, Eq. 8).

    With `keep` [n] they are mixed first: that part of an image's own, the rest of the style's (MixStyle).
    """
    own = channel_moments(maps)
    towards = style.to(own) if keep is None else torch.lerp(style.to(own), own, keep.to(own)[:, None, None])
    mu, scale, new = (row[:, :, None, None].to(maps.dtype) for row in (own[:, 0], towards[:, 1] / own[:, 1], towards[:, 0]))
    return (maps - mu) * scale + new  # in this order: an even channel's scale is large


class RunningMoments:
    """Mean and deviation of every channel over all positions of many images, some of them at a time; sums run in double precision."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []  # of the values and of their squares, by channel
        self._positions = 0

    def add(self, maps: Tensor) -> None:
        values = maps.double()
        sums = [values.sum((0, 2, 3)), values.square().sum((0, 2, 3))]
        self._sums = [before + more for before, more in zip(self._sums, sums, strict=True)] if self._sums else sums
        self._positions += maps.numel() // maps.shape[1]

    def result(self) -> Tensor:
        """[2, c], as `channel_moments` gives them for each image."""
        mu, square = (total / self._positions for total in self._sums)
        variance = (square - mu.square()).clamp_min(0)
        return torch.stack([mu, (variance + _SMALLEST_VARIANCE).sqrt()]).float()
