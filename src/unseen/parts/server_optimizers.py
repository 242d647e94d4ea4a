"""The server's step: the clients' mean as a direction for an optimiser. Reddi et al., "Adaptive federated optimization", ICLR 2021.

Delta is what the mean of the clients' models differs in from the model that they started from. The server's optimiser takes a step
along it (Algorithm 2). Buffers, such as batch-norm statistics, are not optimised: they stay the aggregate's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unseen.parts.aggregation import Aggregate
from unseen.settings import Configured, hyper

__all__ = ["AdamServer", "MomentumServer", "ServerOptimizer", "YogiServer"]


class ServerOptimizer(Configured, ABC):
    """Abstract. Moves the global model towards the aggregate of a round."""

    name: ClassVar[str]

    def step(self, before: Aggregate, after: Aggregate, parameters: Iterable[str]) -> Aggregate:
        """The aggregate of a round with its model replaced by where the optimiser leads; what it keeps goes along."""
        model, kept = dict(after.model), {key: dict(before.kept.get(key, {})) for key in self.keeps}
        for name in parameters:
            start = before.model[name].to(model[name].device)
            delta = after.model[name] - start
            moments = [kept[key].get(name, self.first(key, delta)).to(delta.device) for key in self.keeps]
            move, moments = self.move(delta, *moments)
            model[name] = start + move
            for key, moment in zip(self.keeps, moments, strict=True):
                kept[key][name] = moment
        return replace(after, model=model, kept={**after.kept, **kept})

    keeps: ClassVar[tuple[str, ...]]  # the names under which its moments are kept

    @abstractmethod
    def first(self, key: str, delta: Tensor) -> Tensor:
        """A moment before round 1."""

    @abstractmethod
    def move(self, delta: Tensor, *moments: Tensor) -> tuple[Tensor, list[Tensor]]:
        """How far to go, and the new moments."""


@dataclass(frozen=True)
class MomentumServer(ServerOptimizer):
    """FedAvgM: m <- beta m + Delta, x <- x + lr m. With lr 1 and beta 0 it is FedAvg."""

    name = "momentum"
    keeps = ("server momentum",)

    lr: float = hyper(1.0, "learning rate of the server", symbol="eta", low=0.0)
    beta: float = hyper(0.9, "momentum", symbol="beta_1", low=0.0, high=0.9999)

    def first(self, key: str, delta: Tensor) -> Tensor:
        return torch.zeros_like(delta)

    def move(self, delta: Tensor, *moments: Tensor) -> tuple[Tensor, list[Tensor]]:
        m = self.beta * moments[0] + delta
        return self.lr * m, [m]


@dataclass(frozen=True)
class _Adaptive(ServerOptimizer, ABC):
    """Abstract. x <- x + lr m / (sqrt(v) + tau), without a correction of the bias of m and v, which begin at 0 and tau^2."""

    keeps = ("server momentum", "server variance")

    lr: float = hyper(0.01, "learning rate of the server", symbol="eta", low=0.0)
    beta1: float = hyper(0.9, "momentum", symbol="beta_1", low=0.0, high=0.9999)
    beta2: float = hyper(0.99, "memory of the squares", symbol="beta_2", low=0.0, high=0.99999)
    tau: float = hyper(1e-3, "how adaptive: the smaller, the more", symbol="tau", low=1e-12)

    def first(self, key: str, delta: Tensor) -> Tensor:
        return torch.zeros_like(delta) if key == self.keeps[0] else torch.full_like(delta, self.tau**2)

    def move(self, delta: Tensor, *moments: Tensor) -> tuple[Tensor, list[Tensor]]:
        m, v = self.beta1 * moments[0] + (1 - self.beta1) * delta, self.squares(moments[1], delta.square())
        return self.lr * m / (v.sqrt() + self.tau), [m, v]

    @abstractmethod
    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v."""


@dataclass(frozen=True)
class AdamServer(_Adaptive):
    """FedAdam: v <- beta_2 v + (1 - beta_2) Delta^2."""

    name = "adam"

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class YogiServer(_Adaptive):
    """FedYogi: v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)."""

    name = "yogi"

    def squares(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
