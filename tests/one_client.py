"""One client with a linear network, whose training can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unseen.client import Client, Pool
from unseen.data.augment import RECIPES
from unseen.data.domain import UNIT, Domain, Holding, Samples
from unseen.device.resident import SampleReader
from unseen.method import Refused, Replies
from unseen.networks.base import Outputs, TaskNet
from unseen.randomness import generator
from unseen.task import Classification


class LinearNet(TaskNet):
    """Pixels to logits by one linear layer; the images are its maps."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.feature_size = pixels
        self.fc = nn.Linear(pixels, classes)

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        features = x.flatten(1)
        logits: Tensor = self.fc(features)
        return Outputs(logits, features, (x,)) if full else logits

    def head(self) -> nn.Module:
        return self.fc


class DeepLinearNet(TaskNet):
    """Pixels to features by one matrix, features to logits by one linear layer."""

    def __init__(self, pixels: int, features: int, classes: int) -> None:
        super().__init__()
        self.feature_size = features
        self.look = nn.Linear(pixels, features, bias=False)
        self.fc = nn.Linear(features, classes)

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        features = self.look(x.flatten(1))
        logits: Tensor = self.fc(features)
        return Outputs(logits, features, (x,)) if full else logits

    def head(self) -> nn.Module:
        return self.fc


def images(samples: int = 12, classes: int = 3, side: int = 2, seed: int = 0, name: str = "a") -> Domain:
    rng = np.random.default_rng(seed)
    return Domain(name, rng.integers(0, 255, (samples, 1, side, side)).astype(np.uint8), (np.arange(samples) % classes).astype(np.int64))


def client_of(
    domain: Domain,
    build: Callable[[], nn.Module],
    /,
    recall: Callable[[type[Any]], Any] = lambda kind: None,
    **others: Callable[[], nn.Module],
) -> Client:
    """`build` makes the task network, `others` the networks of further roles."""
    everything, none = np.arange(len(domain)), np.empty(0, dtype=np.int64)
    holding = Holding(domain.name, domain.name, Samples(((domain, everything),)), Samples(((domain, none),)))
    task = Classification(tuple(str(c) for c in range(int(domain.labels.max()) + 1)))
    pool = Pool({"task": build, **others}, torch.device("cpu"))
    return Client(
        holding=holding,
        task=task,
        pool=pool,
        reader=SampleReader((domain,), torch.device("cpu")),
        rng=torch.Generator().manual_seed(0),
        pixels=UNIT,
        augment=RECIPES["none"],
        recall=recall,
    )


def batch_of(domain: Domain) -> tuple[Tensor, Tensor]:
    return torch.tensor(domain.images).float() / 255, torch.tensor(domain.labels)


class Fixed:
    """A cohort that answers with what it was given; a string is the reason why there is no answer."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.names = sorted(answers)
        self.answers = answers

    def entries(self, part: str = "whole", role: str = "task") -> list[str]:
        return ["w"]

    def rng(self, *where: str | int) -> torch.Generator:
        return generator(0, "server", 1, *where)

    def ask(self, task: Any, down: Any) -> Replies[Any]:
        def stream() -> Iterator[tuple[str, Any]]:
            for name in self.names:
                answer = self.answers[name]
                yield name, Refused(answer) if isinstance(answer, str) else answer

        return Replies(stream())
