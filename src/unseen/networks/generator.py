"""FedDAG's image generator: what it gives is added to an image, times alpha."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
    conv = nn.Conv2d(entering, leaving, 3, padding=1, padding_mode="reflect", bias=False)
    return nn.Sequential(conv, nn.InstanceNorm2d(leaving))
