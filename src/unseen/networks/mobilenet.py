"""MobileNetV2 (Sandler et al., 2018) under torchvision's state-dict names."""

from __future__ import annotations

from torch import Tensor, nn

from unseen.networks.fast_layers import DepthwiseConv2d, PointwiseConv2d
from unseen.networks.headed import HeadedNet

__all__ = ["MobileNetV2", "mobilenet_v2"]

_STAGES = (  # expansion, channels, blocks, stride of the first block: Table 2 of the paper
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(HeadedNet):
    """Maps are the last 1x1 convolution's output, features their mean over positions after dropout."""

    stem_name = "features.0.0"
    head_name = "classifier.1"
    head_fits_maps = True
    feature_size = 1280

    def __init__(self, outputs: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [_active(nn.Conv2d(channels, 32, 3, stride=2, padding=1, bias=False))]
        entering = 32
        for expansion, leaving, blocks, stride in _STAGES:
            for number in range(blocks):
                layers.append(_InvertedResidual(entering, leaving, stride if number == 0 else 1, expansion))
                entering = leaving
        layers.append(_active(PointwiseConv2d(entering, self.feature_size)))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(self.feature_size, outputs))
        self.apply(_initialise)

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        maps = self.features(x)
        return self.classifier[0](maps.mean((2, 3))), (maps,)

    def stages(self) -> tuple[nn.Module, ...]:
        """The last blocks at a quarter, an eighth, a sixteenth and a thirty-second of the resolution, as in a ResNet."""
        return self.features[3], self.features[6], self.features[13], self.features[17]


class _InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow without a non-linearity; a shortcut where the shape stays."""

    def __init__(self, entering: int, leaving: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.shortcut = stride == 1 and entering == leaving
        wide = entering * expansion
        widen = [_active(PointwiseConv2d(entering, wide))] if expansion > 1 else []
        filters = _active(DepthwiseConv2d(wide, stride))
        self.conv = nn.Sequential(*widen, filters, PointwiseConv2d(wide, leaving), nn.BatchNorm2d(leaving))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.shortcut else y


def _active(conv: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU6(inplace=True))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0, 0.01)
        nn.init.zeros_(module.bias)


def mobilenet_v2(outputs: int, channels: int = 3) -> MobileNetV2:
    return MobileNetV2(outputs, channels)
