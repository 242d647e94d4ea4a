"""What a network is trained for: its loss, its prediction, and how well it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch.nn.functional as F
from torch import Tensor

from unseen.errors import BadInput, choose
from unseen.metrics import LARGEST, OF_CLASSES, OF_MASKS, ClassMeter, MaskMeter, Meter, range_of
from unseen.own_code import Own

__all__ = ["Classification", "Meter", "Segmentation", "Task", "dice_loss"]


class Task(ABC):
    """Classification or segmentation: all that differs between them."""

    name: str
    metric: str  # the one that selection goes by; higher is better
    own_metric: Own | None  # a user's own, computed beside the others

    @property
    @abstractmethod
    def metrics(self) -> dict[str, bool]:
        """What meters tell, and whether higher is better."""

    def going_by(self, metric: str | Own) -> Self:
        """The task with another metric to select by: one of its own, or a user's."""
        if not isinstance(metric, Own):
            choose("metric where higher is better", metric, [name for name, higher in self.metrics.items() if higher])
            return replace(self, metric=metric)  # type: ignore[type-var]
        if not metric.name.isidentifier() or metric.name in self.metrics:
            raise BadInput(f"metric {metric} is called {metric.name!r}; give its function a name of its own")
        return replace(self, metric=metric.name, own_metric=metric)  # type: ignore[type-var]

    def ranges(self, size: tuple[int, int], samples: int) -> dict[str, tuple[float, float]]:
        """The least and the most of every metric that a meter tells of so many samples of this size, a user's own among them.

        >>> Segmentation(("disc", "cup")).ranges((3, 4), 5)["unmatched_cup"]
        (0.0, 10.0)
        """
        masks = samples * self.outputs
        bounds = {name: range_of(name if name in OF_MASKS else name.partition("_")[0], size, masks) for name in self.metrics}
        return bounds | ({self.own_metric.name: (-LARGEST, LARGEST)} if self.own_metric else {})

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """What each of a network's logits (per pixel) stands for: a class, or a structure."""

    @property
    def outputs(self) -> int:
        """How many logits (per pixel) a network for this task has."""
        return len(self.labels)

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor: ...

    @abstractmethod
    def predict(self, logits: Tensor) -> Tensor: ...

    @abstractmethod
    def meter(self, quick: bool = False) -> Meter:
        """A fresh meter. `quick` leaves out what is costly: only the loss and what `metric` names are sure to be there."""


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes per image; cross entropy."""

    classes: tuple[str, ...]
    metric: str = "accuracy"
    own_metric: Own | None = None
    name = "classification"

    @property
    def metrics(self) -> dict[str, bool]:
        return dict(OF_CLASSES)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.classes

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.argmax(1)

    def meter(self, quick: bool = False) -> ClassMeter:
        return ClassMeter(self.loss, quick and self.metric in ("accuracy", getattr(self.own_metric, "name", "")), self.own_metric)


@dataclass(frozen=True)
class Segmentation(Task):
    """One mask per structure, overlapping allowed (a cup lies inside its disc); Dice loss."""

    structures: tuple[str, ...]
    metric: str = "dice"
    own_metric: Own | None = None
    name = "segmentation"

    @property
    def metrics(self) -> dict[str, bool]:
        return OF_MASKS | {f"{name}_{s}": higher for name, higher in OF_MASKS.items() if name != "loss" for s in self.structures}

    @property
    def labels(self) -> tuple[str, ...]:
        return self.structures

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return dice_loss(logits.sigmoid(), labels.to(logits.dtype))

    def predict(self, logits: Tensor) -> Tensor:
        return logits > 0

    def meter(self, quick: bool = False) -> MaskMeter:
        return MaskMeter(self.structures, self.loss, quick, self.own_metric)


def dice_loss(probability: Tensor, mask: Tensor, smooth: float = 1e-5) -> Tensor:
    """1 - Dice over the whole batch, one structure at a time, then the mean over structures.

    >>> import torch
    >>> p = torch.tensor([[[[1.0, 0.0]]]])
    >>> round(float(dice_loss(p, torch.tensor([[[[1.0, 1.0]]]]))), 4)  # 2 * 1 / (1 + 2) = 2/3
    0.3333
    """
    over = (0, 2, 3)
    overlap, total = (probability * mask).sum(over), probability.sum(over) + mask.sum(over)
    return (1 - (2 * overlap + smooth) / (total + smooth)).mean()
