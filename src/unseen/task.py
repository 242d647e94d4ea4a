"""What a network is trained for: its loss, its prediction, and how well it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Classification", "Meter", "Segmentation", "Task", "dice_loss"]


class Meter(Protocol):
    """Collects a domain's predictions batch by batch and says how good they were."""

    def update(self, logits: Tensor, labels: Tensor) -> None: ...

    def compute(self) -> dict[str, float]: ...


class Task(ABC):
    """Classification or segmentation: all that differs between them."""

    name: str
    metric: str  # the one that selection goes by; higher is better

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many logits (per pixel) a network for this task has."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor: ...

    @abstractmethod
    def predict(self, logits: Tensor) -> Tensor: ...

    @abstractmethod
    def meter(self) -> Meter: ...


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes per image; cross entropy."""

    classes: tuple[str, ...]
    name = "classification"
    metric = "accuracy"

    @property
    def outputs(self) -> int:
        return len(self.classes)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)

    def predict(self, logits: Tensor) -> Tensor:
        return logits.argmax(1)

    def meter(self) -> Meter:
        return _ClassMeter()


@dataclass(frozen=True)
class Segmentation(Task):
    """One mask per structure, overlapping allowed (a cup lies inside its disc); Dice loss."""

    structures: tuple[str, ...]
    name = "segmentation"
    metric = "dice"

    @property
    def outputs(self) -> int:
        return len(self.structures)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return dice_loss(logits.sigmoid(), labels.to(logits.dtype))

    def predict(self, logits: Tensor) -> Tensor:
        return logits > 0

    def meter(self) -> Meter:
        return _MaskMeter(self.structures)


def dice_loss(probability: Tensor, mask: Tensor, smooth: float = 1e-5) -> Tensor:
    """1 - Dice over the whole batch, one structure at a time, then the mean over structures.

    >>> p = torch.tensor([[[[1.0, 0.0]]]])
    >>> round(float(dice_loss(p, torch.tensor([[[[1.0, 1.0]]]]))), 4)  # 2 * 1 / (1 + 2) = 2/3
    0.3333
    """
    over = (0, 2, 3)
    overlap, total = (probability * mask).sum(over), probability.sum(over) + mask.sum(over)
    return (1 - (2 * overlap + smooth) / (total + smooth)).mean()


class _ClassMeter:
    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, logits: Tensor, labels: Tensor) -> None:
        self.logits.append(logits.float())
        self.labels.append(labels)

    def compute(self) -> dict[str, float]:
        logits, labels = torch.cat(self.logits).cpu(), torch.cat(self.labels).cpu()
        return {
            "loss": float(F.cross_entropy(logits, labels)),
            "accuracy": float((logits.argmax(1) == labels).double().mean()),
        }


class _MaskMeter:
    """Dice per case and structure. A structure absent from both mask and prediction counts as found: Dice 1."""

    def __init__(self, structures: tuple[str, ...]) -> None:
        self.structures = structures
        self.dice: list[Tensor] = []
        self.loss = 0.0
        self.cases = 0

    def update(self, logits: Tensor, labels: Tensor) -> None:
        found, mask = (logits > 0).flatten(2), labels.bool().flatten(2)
        overlap, total = (found & mask).sum(2), found.sum(2) + mask.sum(2)
        self.dice.append(torch.where(total > 0, 2 * overlap / total.clamp(min=1), 1.0).cpu())
        self.loss += float(dice_loss(logits.float().sigmoid(), labels.float())) * len(logits)
        self.cases += len(logits)

    def compute(self) -> dict[str, float]:
        each = torch.cat(self.dice).double().mean(0)
        return {
            "loss": self.loss / self.cases,
            "dice": float(each.mean()),
            **{f"dice_{name}": float(value) for name, value in zip(self.structures, each, strict=True)},
        }
