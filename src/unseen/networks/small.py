"""A small convolutional network that learns on two cores in seconds: for first steps, tests and the embedded digits."""

from __future__ import annotations

from torch import Tensor, nn

from unseen.errors import BadInput
from unseen.networks.headed import HeadedNet

__all__ = ["SmallCNN", "small_cnn"]


class SmallCNN(HeadedNet):
    """Three 3x3 convolutions with batch norm, each halving the image, the later two doubling the channels; then one linear layer."""

    stem_name = "conv1"
    head_name = "fc"

    def __init__(self, outputs: int, channels: int, size: tuple[int, int], width: int) -> None:
        super().__init__()
        self.feature_size = 4 * width * (size[0] // 8) * (size[1] // 8)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(self.feature_size, outputs)

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        maps = self.relu(self.bn3(self.conv3(x)))
        return self.pool(maps).flatten(1), (maps,)

    def stages(self) -> tuple[nn.Module, ...]:
        return self.bn1, self.bn2, self.bn3  # before their ReLU, which all share


def small_cnn(outputs: int, channels: int = 3, size: tuple[int, int] = (32, 32), width: int = 16) -> SmallCNN:
    if min(size) < 8:
        raise BadInput(f"small_cnn on images of {size[0]} x {size[1]} pixels; it needs at least 8 x 8")
    return SmallCNN(outputs, channels, size, width)
