"""FedDAG's image generator: what it gives is added to an image, times alpha."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.networks.instance_norm import instance_normed
from unseen.networks.kernels import has_kernels
from unseen.networks.padding import mirrored_edges

__all__ = ["ImageGenerator"]


class ImageGenerator(nn.Module):
    """A fully convolutional network from images to perturbations in [-1, 1] of the same shape.

    The paper names it "FCN" and no more; the plan is that of DDAIG, which it cites. Width 32 is its FCN32, 16 its FCN16.
    No instance norm follows the fusion: the context is constant over positions, so the norm would subtract it again.
    """

    def __init__(self, channels: int = 3, width: int = 32) -> None:
        super().__init__()
        self.enter = _conv_norm(channels, width, relu=True)
        self.blocks = nn.Sequential(*(_Residual(width) for _ in range(3)))
        self.fuse = nn.Conv2d(2 * width, width, 1)
        self.leave = nn.Conv2d(width, channels, 1)
        self.relu = nn.ReLU(inplace=True)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, 0, 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.blocks(self.enter(images))
        perturbation: Tensor = self.leave(self.relu(self._fused(seen, seen.mean((2, 3), keepdim=True)))).tanh()
        return perturbation

    def _fused(self, seen: Tensor, context: Tensor) -> Tensor:
        """A position and the context, side by side. On a GPU each has its own half of the weights, and the context is never spread out."""
        if not has_kernels(seen.device):
            return self.fuse(torch.cat([seen, context.expand_as(seen)], 1))  # type: ignore[no-any-return]
        of_seen, of_context = self.fuse.weight.chunk(2, 1)
        return F.conv2d(seen, of_seen) + F.conv2d(context, of_context, self.fuse.bias)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv_norm(width, width, relu=True), nn.Identity(), _conv_norm(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def _conv_norm(entering: int, leaving: int, relu: bool = False) -> nn.Sequential:
    conv = _MirroringConv2d(entering, leaving, 3, padding=1, padding_mode="reflect", bias=False)
    return nn.Sequential(conv, _InstanceNorm2d(leaving, relu))


class _MirroringConv2d(nn.Conv2d):
    """The same on a GPU, where maps keep their order in memory."""

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x.device):
            return super().forward(x)
        return F.conv2d(mirrored_edges(x), self.weight, self.bias, self.stride)


class _InstanceNorm2d(nn.InstanceNorm2d):
    """Likewise, with a ReLU behind it where there is one: on a GPU both are one kernel."""

    def __init__(self, channels: int, relu: bool) -> None:
        super().__init__(channels)
        self._relu = relu

    def forward(self, x: Tensor) -> Tensor:
        return instance_normed(x, self._relu, self.eps)
