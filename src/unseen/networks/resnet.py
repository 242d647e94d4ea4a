"""ResNets (He et al., 2016) under torchvision's state-dict names, with the stride in the 3x3 convolution as there."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from unseen.networks.fast_layers import StemConv2d, StemMaxPool2d
from unseen.networks.headed import HeadedNet

__all__ = ["ResNet", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]


class ResNet(HeadedNet):
    """Maps are the last stage's output, features their mean over positions."""

    stem_name = "conv1"
    head_name = "fc"
    head_fits_maps = True

    def __init__(self, block: type[_Basic | _Bottleneck], depths: tuple[int, int, int, int], outputs: int, channels: int) -> None:
        super().__init__()
        self.feature_size = 512 * block.expansion
        self.conv1 = StemConv2d(channels, 64)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = StemMaxPool2d()
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.fc = nn.Linear(self.feature_size, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return maps.mean((2, 3)), (maps,)

    def stages(self) -> tuple[nn.Module, ...]:
        return self.layer1, self.layer2, self.layer3, self.layer4


class _Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(entering, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu_(y + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut; four times as many channels leave as the middle has."""

    expansion: ClassVar[int] = 4

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = width * self.expansion
        self.conv1 = nn.Conv2d(entering, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, leaving, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(leaving)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(entering, leaving, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu_(y + (x if self.downsample is None else self.downsample(x)))


def _shortcut(entering: int, leaving: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and entering == leaving:
        return None
    return nn.Sequential(nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving))


def _stage(block: type[_Basic | _Bottleneck], entering: int, width: int, depth: int, stride: int) -> nn.Sequential:
    rest = [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(block(entering, width, stride), *rest)


def resnet18(outputs: int, channels: int = 3) -> ResNet:
    return ResNet(_Basic, (2, 2, 2, 2), outputs, channels)


def resnet34(outputs: int, channels: int = 3) -> ResNet:
    return ResNet(_Basic, (3, 4, 6, 3), outputs, channels)


def resnet50(outputs: int, channels: int = 3) -> ResNet:
    return ResNet(_Bottleneck, (3, 4, 6, 3), outputs, channels)


def resnet101(outputs: int, channels: int = 3) -> ResNet:
    return ResNet(_Bottleneck, (3, 4, 23, 3), outputs, channels)


def resnet152(outputs: int, channels: int = 3) -> ResNet:
    return ResNet(_Bottleneck, (3, 8, 36, 3), outputs, channels)
