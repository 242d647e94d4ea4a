"""The 2-D U-Net of ELCFS's released code (the paper does not detail it).

Instance norm without affine parameters or running statistics: nothing of it is averaged, and training and evaluation agree.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.errors import BadInput
from unseen.networks.headed import HeadedNet
from unseen.networks.instance_norm import instance_normed
from unseen.networks.kernels import has_kernels

__all__ = ["UNet", "unet"]


class UNet(HeadedNet):
    """`width` channels at full resolution, doubled at each of `depth` levels; one logit map per structure.

    Maps are the last two decoder maps, coarse to fine; features the last one, at full resolution with 2 * width channels.
    """

    stem_name = "encoder.0.conv1"
    head_name = "segment"

    def __init__(self, outputs: int, channels: int, width: int, depth: int) -> None:
        super().__init__()
        self.feature_size = 2 * width
        widths = [width << level for level in range(depth)]
        self.encoder = nn.ModuleList(_Down(entering, leaving) for entering, leaving in pairwise([channels, *widths]))
        self.decoder = nn.ModuleList(_Up(planes, deepest=planes == widths[-1]) for planes in reversed(widths[1:]))
        self.segment = nn.Conv2d(self.feature_size, outputs, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        levels: list[Tensor] = []
        for down in self.encoder:
            levels.append(down(F.max_pool2d(levels[-1], 2) if levels else x))
        decoded = [levels.pop()]
        for up in self.decoder:
            decoded.append(up(decoded[-1], levels.pop()))
        return decoded[-1], tuple(decoded[-2:])

    def stages(self) -> tuple[nn.Module, ...]:
        return tuple(self.encoder)

    @property
    def pooled_size(self) -> int:
        return self.feature_size << (len(self.encoder) - 2)


class _Down(nn.Module):
    """Three 3x3 convolutions, each with instance norm; no ReLU after the first."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        self.conv1 = _NormedConv2d(entering, leaving, 3)
        self.conv2 = _NormedConv2d(leaving, leaving, 3)
        self.conv3 = _NormedConv2d(leaving, leaving, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = instance_normed(self.conv1(x))
        x = instance_normed(self.conv2(x), relu=True)
        return instance_normed(self.conv3(x), relu=True)


class _Up(nn.Module):
    """Enlarge the coarse map, halve its channels, put the encoder's map of that size before it, and convolve the two.

    A decoder map has twice its level's channels, so each level but the deepest first narrows what it gets.
    """

    def __init__(self, planes: int, deepest: bool) -> None:
        super().__init__()
        self.narrow = None if deepest else _NormedConv2d(2 * planes, planes, 3)
        self.halve = _NormedConv2d(planes, planes // 2, 1)
        self.join = _NormedConv2d(planes, planes, 3)

    def forward(self, coarse: Tensor, skip: Tensor) -> Tensor:
        if self.narrow is not None:
            coarse = instance_normed(self.narrow(coarse), relu=True)
        large = F.interpolate(coarse, size=skip.shape[-2:], mode="nearest")  # twice the size; fits odd sides too
        large = instance_normed(self.halve(large), relu=True)
        return instance_normed(self.join(torch.cat([skip, large], 1)), relu=True)


class _NormedConv2d(nn.Conv2d):
    """A convolution before instance norm, which takes away whatever a bias adds. On a GPU it is not added, and its gradient is 0."""

    def __init__(self, entering: int, leaving: int, side: int) -> None:
        super().__init__(entering, leaving, side, padding=side // 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None or not has_kernels(x.device):
            return super().forward(x)
        return F.conv2d(x, self.weight + 0 * self.bias[:, None, None, None], padding=self.padding)


def unet(outputs: int, channels: int = 3, size: tuple[int, int] = (384, 384), width: int = 16, depth: int = 5) -> UNet:
    smallest = 2**depth  # two positions at the deepest level: instance norm needs more than one
    if min(size) < smallest:
        raise BadInput(
            f"a U-Net of {depth} levels on images of {size[0]} x {size[1]} pixels; it needs at least {smallest} x {smallest}, "
            "so give larger images or a smaller depth"
        )
    return UNet(outputs, channels, width, depth)
