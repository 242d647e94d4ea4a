"""A jigsaw puzzle beside the task. Carlucci et al., "Domain generalization by solving jigsaw puzzles" (JiGen), CVPR 2019.

Some images are cut into tiles and put together in another order. A second head J of the task network, a linear layer on its features,
says in which; the task is learned from all images, the shuffled ones too. J is part of the network (its option `puzzle`): its weights
travel, are averaged and are stored with the model, and do nothing at prediction.

Departures: an image keeps its size, and pixels left over at its right and lower edge stay in place (the released code takes 222
pixels); the permutations are our own, made by the same rule.
The paper does not do segmentation. There J reads the mean of the deepest maps of the encoder, and a mask is shuffled with its image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.client import Client
from unseen.method import Surroundings
from unseen.networks import with_option
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.headed import HeadedNet, acting_after
from unseen.ops.jigsaw import greyed_tiles, rearranged, tile_orders
from unseen.settings import Configured, hyper

__all__ = ["JiGen"]


@dataclass(frozen=True)
class JiGen(Configured):
    """The network also tells the order of an image's tiles, through a head that is averaged with the model."""

    name: ClassVar[str] = "jigen"

    alpha: float = hyper(0.7, "weight of the puzzle's loss", symbol="alpha", low=0.0)
    beta: float = hyper(0.9, "share of the images that keep their order", symbol="beta", low=0.0, high=1.0)
    permutations: int = hyper(30, "other orders that there are", symbol="P", low=1, high=1000)
    grid: int = hyper(3, "tiles along a side", symbol="n", low=2, high=8)
    grey: float = hyper(0.1, "probability that a tile of a colour image turns grey", low=0.0, high=1.0)

    def contradictions(self) -> Iterable[str]:
        others = math.factorial(self.grid**2) - 1
        if self.permutations > others:
            yield f"jigen has permutations = {self.permutations}, but {self.grid**2} tiles have {others} other orders; lower permutations"

    def network(self, name: str) -> str:
        """The task network with the head J: a class for the order that is kept, and one for each other."""
        return with_option(name, "puzzle", self.permutations + 1)

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if not hasattr(around.net, "puzzle"):
            yield f"jigen adds a head to a network of the package, and {type(around.net).__name__} has none; use one by name"
        if min(around.shapes.size) < self.grid:
            yield f"jigen cuts an image into {self.grid} x {self.grid} tiles, and the images are {around.shapes.size}; use larger ones"

    def puzzled(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The seam before a step: the images, some of them shuffled and with grey tiles, masks with them, and the number of each order."""
        number = torch.zeros(len(x), dtype=torch.long)
        if self.beta < 1:
            keeps = torch.rand(len(x), generator=client.rng) < self.beta
            number = torch.where(keeps, number, torch.randint(1, self.permutations + 1, (len(x),), generator=client.rng))
            order = tile_orders(self.grid**2, self.permutations)[number].to(x.device, non_blocking=True)
            x, y = rearranged(x, order, self.grid), rearranged(y, order, self.grid) if y.ndim == 4 else y
        if self.grey and x.shape[1] == 3:
            chosen = torch.rand(len(x), self.grid**2, generator=client.rng) < self.grey
            x = greyed_tiles(x, chosen.to(x.device, non_blocking=True), self.grid, *client.pixel_range)
        return x, y, number.to(x.device, non_blocking=True)

    @contextmanager
    def reading(self, net: TaskNet, segments: bool) -> Iterator[list[Tensor]]:
        """While this lasts, what J reads of each pass of a segmentation network is noted: the mean of its deepest maps."""
        pooled: list[Tensor] = []

        def note(maps: Tensor) -> None:
            pooled.append(maps.mean((2, 3)))

        if not segments:
            yield pooled
            return
        assert isinstance(net, HeadedNet)  # the obstacles saw to it
        with acting_after(net.stages()[-1], note):
            yield pooled

    def loss(self, net: Any, seen: Outputs, pooled: list[Tensor], number: Tensor) -> Tensor:
        """The seam inside a step: alpha CE(J(features), order)."""
        read = pooled[-1] if pooled else seen.features
        return self.alpha * F.cross_entropy(net.puzzle(read), number)
