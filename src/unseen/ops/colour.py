"""Brightness, contrast, saturation, hue and grayscale of a whole batch, each sample in its own strength.

Images are [n, c, h, w] in [0, 1], of one channel or three (red, green, blue). The definitions are those of PIL's ImageEnhance
and of HSV.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["blend_map", "blended", "grayscaled", "turned_hue"]

_LUMA = (0.299, 0.587, 0.114)  # what red, green and blue add to it (Rec. 601, as PIL's mode L)
_SMALLEST_CHROMA = 1e-12  # of a gray pixel, whose hue is then 0 instead of 0 / 0


def blend_map(brightness: Tensor, contrast: Tensor, saturation: Tensor, channels: int) -> Tensor:
    """Three adjustments as one linear map per sample, [n, c, c + 1]; the last column weighs the image's channel means.

    Each blends the image with a duller one: brightness b with black, contrast k with its mean luma, saturation s with its own
    luma L. Nothing is clamped in between, and then their order does not matter: x -> b k (s x + (1 - s) L) + b (1 - k) mean(L).
    With one channel L is x, so that saturation changes nothing.
    """
    luma = brightness.new_tensor(_LUMA if channels == 3 else (1.0,))
    b, k, s = (factor.view(-1, 1, 1) for factor in (brightness, contrast, saturation))
    of_pixel = b * k * (s * torch.eye(channels, dtype=luma.dtype) + (1 - s) * luma)
    of_mean = b * (1 - k) * luma.view(-1, 1)
    return torch.cat([of_pixel, of_mean], 2)


def blended(x: Tensor, by: Tensor) -> Tensor:
    """`x` through the maps of `blend_map`, clamped to [0, 1]."""
    offset = (by[:, :, -1] * x.mean((2, 3))).sum(1).view(-1, 1, 1)
    return torch.baddbmm(offset, by[:, :, :-1], x.flatten(2)).clamp_(0, 1).view_as(x)


def turned_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Every pixel's hue in HSV moved on by `turns` [n] (1/3: red to green), its value and saturation kept."""
    red, green, blue = x.unbind(1)
    top, low = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    chroma = top - low
    per_chroma = chroma.clamp_min(_SMALLEST_CHROMA).reciprocal_()
    # The hue in sixths of a turn: that of the strongest primary (red 0, green 2, blue 4), and how far from it to which neighbour.
    near_red = (green - blue).mul_(per_chroma)
    near_green = (blue - red).mul_(per_chroma).add_(2)
    near_blue = (red - green).mul_(per_chroma).add_(4)
    hue = torch.where(top == red, near_red, torch.where(top == green, near_green, near_blue))
    hue.add_(6 * turns.view(-1, 1, 1)).remainder_(6)
    result = torch.empty_like(x)
    for channel, (centre, sign, shift) in enumerate(((3, 1, -1), (2, -1, 2), (4, -1, 2))):
        # A primary's share over the circle of hues: 1 within a sixth of its own hue, falling to 0 at two sixths.
        torch.sub(hue, centre, out=result[:, channel]).abs_().mul_(sign).add_(shift)
    return result.clamp_(0, 1).mul_(chroma.unsqueeze(1)).add_(low.unsqueeze(1))


def grayscaled(x: Tensor, rows: Tensor) -> Tensor:
    """`x` with the luma in all three channels of the samples at `rows`."""
    red, green, blue = x[rows].unbind(1)
    luma = (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).clamp_(0, 1)
    return x.index_copy(0, rows, luma.unsqueeze(1).expand(-1, 3, -1, -1))
