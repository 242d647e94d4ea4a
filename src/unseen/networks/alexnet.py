"""AlexNet in its one-tower form (Krizhevsky, 2014) under torchvision's state-dict names."""

from __future__ import annotations

from torch import Tensor, nn

from unseen.errors import BadInput
from unseen.networks.headed import HeadedNet

__all__ = ["AlexNet", "alexnet"]

_SMALLEST = 63  # below this the last pooling has nothing left to pool


class AlexNet(HeadedNet):
    """Maps are the fifth convolution's output, features fc7's after its ReLU (4096).

    FedADG's released code has the older two-tower form with local response normalisation; torchvision's weights have not.
    """

    stem_name = "features.0"
    head_name = "classifier.6"
    feature_size = 4096

    def __init__(self, outputs: int, channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, outputs),
        )

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        maps = self.features[:-1](x)
        pooled = self.avgpool(self.features[-1](maps))
        return self.classifier[:-1](pooled.flatten(1)), (maps,)

    def stages(self) -> tuple[nn.Module, ...]:
        return self.features[2], self.features[5], self.features[12]


def alexnet(outputs: int, channels: int = 3, size: tuple[int, int] = (224, 224)) -> AlexNet:
    if min(size) < _SMALLEST:
        raise BadInput(f"alexnet on images of {size[0]} x {size[1]} pixels; it needs at least {_SMALLEST} x {_SMALLEST}")
    return AlexNet(outputs, channels)
