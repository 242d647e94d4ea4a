"""Blur, sharpness, noise, contrast and shifts of intensity of a batch [n, c, h, w], each sample in its own strength.

The transforms of BigAug. Zhang et al., "Generalizing deep learning for medical image segmentation to unseen domains via deep stacked
transformation", IEEE TMI 2020. What is given in standard deviations is in those of a sample's own pixels, all channels together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.ops.moments import mean_and_variance

__all__ = ["blurred", "gamma_corrected", "rescaled", "sharpened", "spread_of", "with_noise"]

_REACH = 4.0  # of a Gaussian's kernel, in its deviations


def blurred(x: Tensor, sigma: Tensor) -> Tensor:
    """Each sample blurred by a Gaussian of its own `sigma` [n] in pixels; edges are repeated outwards."""
    n, c, height, width = x.shape
    radius = max(1, round(_REACH * float(sigma.max()) + 0.5))
    at = torch.arange(-radius, radius + 1, dtype=torch.float64)
    kernel = torch.exp(-0.5 * (at / sigma.double().view(-1, 1)).square())
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(c, 0).to(x.dtype).to(x.device, non_blocking=True)
    planes = F.pad(x.reshape(1, n * c, height, width), [radius] * 4, mode="replicate")
    planes = F.conv2d(planes, kernel[:, None, :, None], groups=n * c)
    return F.conv2d(planes, kernel[:, None, None, :], groups=n * c).view(n, c, height, width)


def sharpened(x: Tensor, first: Tensor, second: Tensor, strength: Tensor) -> Tensor:
    """b + strength (b - blurred b), with b the sample blurred by `first`, and blurred again by `second`."""
    once = blurred(x, first)
    return once + _spread(strength, x) * (once - blurred(once, second))


def with_noise(x: Tensor, noise: Tensor, deviations: Tensor) -> Tensor:
    """Noise [n, c, h, w] of so many standard deviations added."""
    return x + _spread(deviations, x) * spread_of(x) * noise


def gamma_corrected(x: Tensor, gamma: Tensor) -> Tensor:
    """low + range ((x - low) / range) ** gamma between a sample's own darkest and brightest pixel.

    >>> gamma_corrected(torch.tensor([[[[0.0, 0.25, 1.0]]]]), torch.tensor([0.5]))
    tensor([[[[0.0000, 0.5000, 1.0000]]]])
    """
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    reach = (high - low).clamp_min(1e-12)
    return low + reach * ((x - low) / reach) ** _spread(gamma, x)


def rescaled(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """A sample's pixels drawn away from their mean by `factor`, and shifted by so many standard deviations."""
    middle = x.mean((1, 2, 3), keepdim=True)
    return middle + _spread(factor, x) * (x - middle) + _spread(shift, x) * spread_of(x)


def spread_of(x: Tensor) -> Tensor:
    """The standard deviation of each sample's pixels, [n, 1, 1, 1]."""
    return mean_and_variance(x, (1, 2, 3))[1].sqrt()


def _spread(values: Tensor, x: Tensor) -> Tensor:
    return values.to(x.dtype).to(x.device, non_blocking=True).view(-1, 1, 1, 1)
