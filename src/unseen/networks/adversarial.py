"""FedADG's distribution generator and discriminator.

Two fully connected layers each, with ReLU units between as the paper says (the released code's leak by 0.01 below zero). It does not
say how they end: as in the released code, G in a ReLU and D in a sigmoid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.settings import Configured, hyper

__all__ = ["Adversaries", "Discriminator", "DistributionGenerator"]


@dataclass(frozen=True)
class Adversaries(Configured):
    """FedADG's fields about the shape of G and D, and both as they say."""

    class_wise: bool = hyper(True, "G and D read the label; false: w/o one-hot", symbol="y")
    noise: int | None = hyper(None, "dimension of z; none: the features', at most 2048", low=1)
    nonnegative: bool = hyper(True, "G ends in a ReLU; turn it off for features of both signs (a ViT's)")
    projection: Literal["fixed", "trainable", "none"] = hyper("fixed", "random projection in front of D; none: w/o RP", symbol="R")
    projected: int | None = hyper(None, "dimension after the projection; none: a quarter of the features'", symbol="d_2", low=1)
    label_joins: Literal["after", "before"] = hyper("after", "the label joins D after or before the projection")
    discriminator_width: int | None = hyper(None, "first layer of D; none: the features' dimension, as printed", low=1)
    leak: float = hyper(0.0, "slope below zero of the units inside G and D; 0: ReLU, as printed", low=0.0, high=1.0)

    def noise_size(self, features: int) -> int:
        return self.noise or min(features, 2048)

    def projected_size(self, features: int) -> int | None:
        return None if self.projection == "none" else self.projected or max(1, features // 4)

    def generator(self, features: int, classes: int) -> DistributionGenerator:
        labels = classes if self.class_wise else 0
        return DistributionGenerator(self.noise_size(features), labels, features, nonnegative=self.nonnegative, leak=self.leak)

    def discriminator(self, features: int, classes: int) -> Discriminator:
        kind: Literal["fixed", "trainable"] = "trainable" if self.projection == "trainable" else "fixed"
        return Discriminator(
            features,
            classes if self.class_wise else 0,
            self.projected_size(features),
            self.discriminator_width,
            projection=kind,
            label=self.label_joins,
            leak=self.leak,
        )


class DistributionGenerator(nn.Module):
    """Noise and a one-hot label to a feature vector: two layers of the feature's size (paper), or `hidden` between.

    Released: noise 2048, hidden and features 4096. `nonnegative` ends in a ReLU, as features after a ReLU need; turn it off
    for features that have both signs (a ViT's). With `classes=0` it takes no label (the paper's ablation "w/o one-hot").
    """

    def __init__(
        self, noise: int, classes: int, features: int, hidden: int | None = None, *, nonnegative: bool = True, leak: float = 0.0
    ) -> None:
        super().__init__()
        self.classes = classes
        self.fc1 = nn.Linear(noise + classes, hidden or features)
        self.fc2 = nn.Linear(hidden or features, features)
        self.between = nn.LeakyReLU(leak)
        self.last = nn.ReLU() if nonnegative else nn.Identity()
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight, gain=0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, noise: Tensor, label: Tensor) -> Tensor:
        joined = torch.cat([noise, label], 1) if self.classes else noise
        features: Tensor = self.last(self.fc2(self.between(self.fc1(joined))))
        return features


class Discriminator(nn.Module):
    """The probability that a feature vector was generated (1) rather than extracted (0), given its label.

    A random projection lowers the feature dimension first: fixed as in the paper (a buffer that no optimiser sees, scaled to
    keep lengths on average), or a layer that learns, as in the released code; `projected=None` leaves it out. The label joins
    after the projection (released for PACS) or before it (released for VLCS); with `classes=0` it does not. The first layer is
    `hidden` wide: the feature's size unless given (paper); the released code has 1024, the projection's.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        projected: int | None,
        hidden: int | None = None,
        *,
        projection: Literal["fixed", "trainable"] = "fixed",
        label: Literal["before", "after"] = "after",
        leak: float = 0.0,
    ) -> None:
        super().__init__()
        self.classes, self.label_first = classes, label == "before"
        self.project: nn.Module = nn.Identity()
        if projected is not None:
            entering = features + (classes if self.label_first else 0)
            self.project = FixedProjection(entering, projected) if projection == "fixed" else nn.Linear(entering, projected, bias=False)
        read = features + classes if projected is None else projected + (0 if self.label_first else classes)
        self.fc1 = nn.Linear(read, hidden or features)
        self.between = nn.LeakyReLU(leak)
        self.fc2 = nn.Linear(hidden or features, 1)

    def forward(self, features: Tensor, label: Tensor) -> Tensor:
        """One probability a row."""
        if self.classes and self.label_first:
            features = torch.cat([features, label], 1)
        read = self.project(features)
        if self.classes and not self.label_first:
            read = torch.cat([read, label], 1)
        score: Tensor = self.fc2(self.between(self.fc1(read))).squeeze(1)
        return score.to(torch.promote_types(score.dtype, torch.float32)).sigmoid()  # 1 - D has no digits left in 16 bits


class FixedProjection(nn.Module):
    """h R with a Gaussian matrix R that never changes: the variance 1 / columns keeps |h| on average."""

    matrix: Tensor

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(entering, leaving) / math.sqrt(leaving))

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.matrix
