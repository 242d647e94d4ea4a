"""The small network for digits: LeNet's plan with wider layers, as in RandConv (Xu et al., 2021), which FedGCA builds on."""

from __future__ import annotations

from torch import Tensor, nn

from unseen.errors import BadInput
from unseen.networks.headed import HeadedNet

__all__ = ["DigitsCNN", "digits_cnn"]

_SMALLEST = 16  # leaves one position after both convolutions and poolings
_HIDDEN = 1024


class DigitsCNN(HeadedNet):
    """5x5 convolutions to 64 and 128 channels, each with ReLU and pooling, then two hidden layers.

    Maps are the second convolution's output before its pooling, features the second hidden layer's.
    """

    stem_name = "conv1"
    head_name = "fc3"
    feature_size = _HIDDEN

    def __init__(self, outputs: int, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        height, width = (_left_of(side) for side in size)
        self.conv1 = nn.Conv2d(channels, 64, 5)
        self.conv2 = nn.Conv2d(64, 128, 5)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(128 * height * width, _HIDDEN)
        self.fc2 = nn.Linear(_HIDDEN, _HIDDEN)
        self.fc3 = nn.Linear(_HIDDEN, outputs)

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = self.pool(self.relu(self.conv1(x)))
        maps = self.relu(self.conv2(x))
        hidden = self.relu(self.fc1(self.pool(maps).flatten(1)))
        return self.relu(self.fc2(hidden)), (maps,)

    def stages(self) -> tuple[nn.Module, ...]:
        return self.conv1, self.conv2  # before their ReLU, which both share


def _left_of(side: int) -> int:
    """Positions left along one side: a 5x5 convolution takes 4, a pooling halves, twice.

    >>> _left_of(32), _left_of(28), _left_of(16)
    (5, 4, 1)
    """
    return ((side - 4) // 2 - 4) // 2


def digits_cnn(outputs: int, channels: int = 3, size: tuple[int, int] = (32, 32)) -> DigitsCNN:
    if min(size) < _SMALLEST:
        raise BadInput(f"digits_cnn on images of {size[0]} x {size[1]} pixels; it needs at least {_SMALLEST} x {_SMALLEST}")
    return DigitsCNN(outputs, channels, size)
