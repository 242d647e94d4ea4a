"""Erosion and dilation of masks with the cross-shaped element (a pixel and its four neighbours); nothing lies outside an image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["dilate", "edge_regions", "erode"]


def erode(masks: Tensor, steps: int = 1) -> Tensor:
    """Keep a pixel of [..., H, W] only where it and its four neighbours are set, `steps` times over.

    >>> erode(torch.tensor([[0, 1, 0], [1, 1, 1], [0, 1, 0]]))
    tensor([[0, 0, 0],
            [0, 1, 0],
            [0, 0, 0]])
    """
    for _ in range(steps):
        masks = _cross(masks).amin(0)
    return masks


def dilate(masks: Tensor, steps: int = 1) -> Tensor:
    """Set a pixel of [..., H, W] where it or one of its four neighbours is set, `steps` times over.

    >>> dilate(torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0]]))
    tensor([[0, 1, 0],
            [1, 1, 1],
            [0, 1, 0]])
    """
    for _ in range(steps):
        masks = _cross(masks).amax(0)
    return masks


def edge_regions(masks: Tensor, inside: int, outside: int) -> tuple[Tensor, Tensor]:
    """y_bd and y_bg of Eq. 5 (Liu et al., 2021): the mask less its erosion, and its dilation less the mask.

    >>> boundary, background = edge_regions(torch.tensor([[1, 1, 1, 0, 0]]), inside=1, outside=1)
    >>> boundary, background  # one row is all boundary: above and below it lies nothing
    (tensor([[1, 1, 1, 0, 0]]), tensor([[0, 0, 0, 1, 0]]))
    """
    return masks - erode(masks, inside), dilate(masks, outside) - masks


def _cross(masks: Tensor) -> Tensor:
    """Every pixel's own value and its four neighbours', as [5, ..., H, W]."""
    height, width = masks.shape[-2:]
    padded = F.pad(masks, (1, 1, 1, 1))
    return torch.stack([padded[..., 1 + r : 1 + r + height, 1 + c : 1 + c + width] for r, c in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))])
