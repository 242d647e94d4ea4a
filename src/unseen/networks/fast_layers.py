"""Layers that compute what PyTorch's do, and take less time for it on a GPU. Weights, names and settings are PyTorch's.

On a CPU, and wherever there is no kernel, they are PyTorch's own. Sums run in another order, so results differ in their last digits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.networks.kernels import has_kernels

__all__ = ["DepthwiseConv2d", "PointwiseConv2d", "StemConv2d", "StemMaxPool2d"]


class StemConv2d(nn.Conv2d):
    """ResNet's first convolution: 7 x 7, every second position."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__(entering, leaving, 7, stride=2, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x.device) or x.shape[2] % 2 or x.shape[3] % 2:
            return super().forward(x)
        from unseen.networks.stem_kernel import stem_convolved  # takes Triton

        return stem_convolved(x, self.weight, _computed_in(x))


class StemMaxPool2d(nn.MaxPool2d):
    """ResNet's pooling behind it: 3 x 3, every second position."""

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x.device):
            pooled: Tensor = super().forward(x)
            return pooled
        from unseen.networks.pooling_kernel import max_pooled  # takes Triton

        return max_pooled(x)


class DepthwiseConv2d(nn.Conv2d):
    """A filter for each channel, 3 x 3."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__(channels, channels, 3, stride, padding=1, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x.device):
            return super().forward(x)
        from unseen.networks.depthwise_kernel import depthwise_convolved  # takes Triton

        dtype = _computed_in(x)
        return depthwise_convolved(x.to(dtype), self.weight.to(dtype), self.stride[0])


class PointwiseConv2d(nn.Conv2d):
    """A 1 x 1 convolution. On a GPU it is a matrix product, for which no library looks for an algorithm shape by shape."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__(entering, leaving, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x.device):
            return super().forward(x)
        return F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1)).permute(0, 3, 1, 2)


def _computed_in(x: Tensor) -> torch.dtype:
    """The type that a convolution of these maps would have: autocast knows PyTorch's own alone."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
