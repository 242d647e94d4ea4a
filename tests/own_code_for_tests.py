"""A file as a user would write it: one of each thing that a run takes. Some compute what a built-in one computes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unseen import hyper
from unseen.data import Domain, Holding, Samples
from unseen.method import RoundAverage
from unseen.networks.small import small_cnn
from unseen.ops.averaging import mean
from unseen.parts.aggregation import Aggregate, Aggregation
from unseen.parts.sam import SAM
from unseen.parts.server_optimizers import MomentumServer
from unseen.parts.views import Views

if "COUNT_IMPORTS_IN" in os.environ:
    with open(os.environ["COUNT_IMPORTS_IN"], "a") as count:  # noqa: PTH123
        count.write("imported\n")


class SmallAgain(nn.Module):
    """The package's small network, as a module that knows nothing of the package."""

    def __init__(self, outputs: int, channels: int, size: tuple[int, int], width: int = 4) -> None:
        super().__init__()
        inner = small_cnn(outputs, channels, size, width)
        for name, child in inner.named_children():
            self.add_module(name, child)
        self.inner = [inner]  # in a list, so that its weights are not there twice

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner[0](x)
        return logits


class Tiny(nn.Module):
    def __init__(self, outputs: int, channels: int = 3, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, outputs)  # a name that the wrapper has too

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.conv(x)).relu().mean((2, 3)))
        return logits


class Masks(nn.Module):
    def __init__(self, outputs: int, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(8, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.body(x))
        return logits


@dataclass(frozen=True)
class MeanAgain(Aggregation):
    """The mean by samples, with a factor that changes nothing."""

    factor: float = hyper(1.0, "weights times this", low=0.0)

    def upload(self, client: Any, net: nn.Module, learner: nn.Module) -> dict[str, Any]:
        return {"samples": client.samples}

    def combine(self, clients: Any, updates: Any, before: Aggregate, also: Sequence[str] = ()) -> Aggregate:
        ups = dict(updates)
        weights = {client: self.factor * up.samples for client, up in ups.items()}
        return Aggregate(mean((up.model, weights[client]) for client, up in ups.items()), before.round + 1, weights)


class Bare(Aggregation):
    """A part without fields needs no decorator."""

    def combine(self, clients: Any, updates: Any, before: Aggregate, also: Sequence[str] = ()) -> Aggregate:
        return Aggregate(mean((up.model, 1.0) for _, up in updates), before.round + 1)


class SGDAgain(torch.optim.SGD):
    pass


class Mirrored(Views):
    def views(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return torch.cat([x, x.flip(3)])

    def bond(self, task: Any, logits: Tensor, samples: int) -> Tensor:
        return logits.new_zeros(())


class Climb(SAM):
    pass


class Heavy(MomentumServer):
    pass


class Latest(RoundAverage):
    def keep(self, kept: list[dict[str, Tensor]], model: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return [{name: value.clone() for name, value in model.items()}]

    def model(self, kept: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return kept[-1]


def unchanged(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    return x, y


def darker(x: Tensor, y: Tensor, rng: torch.Generator, by: float = 0.5) -> tuple[Tensor, Tensor]:
    return x * (1 - by * torch.rand(len(x), 1, 1, 1, generator=rng).to(x.device)), y


def halves(sources: Sequence[Domain], seed: int) -> list[Holding]:
    made = []
    for domain in sources:
        order = np.random.default_rng(seed).permutation(len(domain))
        for number, rows in enumerate(np.array_split(order, 2)):
            train, validation = rows[2:], rows[:2]
            made.append(Holding(f"{domain.name}-{number}", domain.name, Samples(((domain, train),)), Samples(((domain, validation),))))
    return made


def right(probabilities: Tensor, labels: Tensor) -> float:
    """The accuracy again."""
    return float((probabilities.argmax(1) == labels).double().mean())


def nothing(probabilities: Tensor, labels: Tensor) -> float:
    return float("nan")


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, brightness: int, side: int = 16) -> None:
        self.brightness, self.side = brightness, side

    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = torch.full((3, self.side, self.side), self.brightness / 255)
        image[:, 5 * (row % 3) : 5 * (row % 3) + 4] += 0.4
        return image, row % 3


def sites(size: int = 16) -> dict[str, Any]:
    return {"a": Pairs(10, size), "b": Pairs(40, size), "c": Pairs(80, size)}


ready = sites()
