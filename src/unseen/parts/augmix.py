"""AugMix as views of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.method import Surroundings
from unseen.ops.augmix import Operations, augmix, batch_range, draw_chains
from unseen.ops.consistency import by_view, jensen_shannon
from unseen.parts.views import Views, predictions
from unseen.settings import Configured, group, hyper
from unseen.task import Task

__all__ = ["AugMix", "MixingChains"]


@dataclass(frozen=True)
class MixingChains(Configured):
    """How AugMix changes an image: the fields that every use of it has."""

    width: int = hyper(3, "chains in AugMix's mixture", symbol="k", low=1, high=16)
    depth: int = hyper(3, "most operations in a chain; from 1 to so many are drawn", low=1, high=16)
    severity: float = hyper(3.0, "strength of the operations, of 10", low=0.1, high=10.0)
    alpha: float = hyper(1.0, "of the Dirichlet and Beta distributions of AugMix's weights", symbol="alpha", low=1e-3)
    operations: Operations = hyper("all", "all, or colours: those that move nothing, so that masks stay true")

    def mixture(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """One mixed copy of each image. The batch's darkest and brightest values are black and white."""
        drawn = draw_chains(
            len(x), rng, width=self.width, depth=self.depth, severity=self.severity, alpha=self.alpha, operations=self.operations
        )
        return augmix(x, drawn, *batch_range(x))


@dataclass(frozen=True)
class AugMix(Views):
    """Hendrycks et al., "AugMix", ICLR 2020: images mixed with chains of simple operations, and one answer asked for all of them.

    The task's loss is of every view, as with any views here; the paper's is of the clean image alone.
    """

    name: ClassVar[str] = "augmix"

    copies: int = hyper(2, "mixed copies of each image", low=1, high=32)
    weight: float = hyper(12.0, "of the Jensen-Shannon consistency of the predictions", symbol="lambda", low=0.0)
    chains: MixingChains = group(MixingChains())

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if around.task == "segmentation" and self.chains.operations == "all":
            yield 'augmix turns, shears and shifts images, and their masks would not follow; set operations = "colours"'

    def views(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return torch.cat([x, self.chains.mixture(torch.cat([x] * self.copies), rng)])

    def bond(self, task: Task, logits: Tensor, samples: int) -> Tensor:
        return self.weight * jensen_shannon(by_view(predictions(task, logits), samples))
