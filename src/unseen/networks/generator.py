"""FedDAG's image generator: what it gives is added to an image, times alpha."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        self.enter = _conv_norm(channels, width)
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
        seen = self.blocks(self.relu(self.enter(images)))
        context = seen.mean((2, 3), keepdim=True).expand_as(seen)
        fused = self.relu(self.fuse(torch.cat([seen, context], 1)))
        perturbation: Tensor = self.leave(fused).tanh()
        return perturbation


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv_norm(width, width), nn.ReLU(inplace=True), _conv_norm(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def _conv_norm(entering: int, leaving: int) -> nn.Sequential:
    conv = _MirroringConv2d(entering, leaving, 3, padding=1, padding_mode="reflect", bias=False)
    return nn.Sequential(conv, _InstanceNorm2d(leaving))


class _MirroringConv2d(nn.Conv2d):
    """The same on a GPU, where maps keep their order in memory."""

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x.device):
            return super().forward(x)
        return F.conv2d(mirrored_edges(x), self.weight, self.bias, self.stride)


class _InstanceNorm2d(nn.InstanceNorm2d):
    """Likewise."""

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x.device):
            return super().forward(x)
        from unseen.networks.instance_norm_kernel import instance_normalised  # takes Triton

        return instance_normalised(x, self.eps)
