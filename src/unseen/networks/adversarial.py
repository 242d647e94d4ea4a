"""FedADG's distribution generator and discriminator, and the classifier of domains that DANN plays against.

FedADG's have two fully connected layers each, with ReLU units between as the paper says (the released code's leak by 0.01 below zero).
It does not say how they end: as in the released code, G in a ReLU and D in a sigmoid.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["Discriminator", "DistributionGenerator", "domain_classifier"]


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


def domain_classifier(features: int, domains: int, width: int, depth: int) -> nn.Sequential:
    """Features to the logits of the domains: `depth` linear layers with ReLU units between, as DomainBed's."""
    sizes = [features, *[width] * (depth - 1)]
    hidden = [layer for entering, leaving in pairwise(sizes) for layer in (nn.Linear(entering, leaving), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], domains))
