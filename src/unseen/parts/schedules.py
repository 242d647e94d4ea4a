"""How the learning rate changes over the rounds. A schedule says what share of the rate a round trains with.

It is worked out from the number of the round and the number of rounds alone, so that a resumed run and a site between others' come to the
same rates. Each equals a scheduler of `torch.optim.lr_scheduler` that is stepped after every round.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from unseen.client import Client
from unseen.settings import Configured, hyper

__all__ = ["Cosine", "Schedule", "Step", "WarmUp", "share_in"]


class Schedule(Configured, ABC):
    """Abstract. The share of the learning rate in each round; what is trained before round 1 has the whole rate."""

    @property
    def over_all_rounds(self) -> bool:
        """Whether the number of rounds moves the rates, so that a run cannot be resumed with more of them."""
        return False

    @abstractmethod
    def share(self, number: int, rounds: int) -> float:
        """Of round `number`, from 1 to `rounds`."""


@dataclass(frozen=True)
class WarmUp(Schedule):
    """The rate rises evenly in the first rounds, to its value in the round after them, and stays there."""

    name: ClassVar[str] = "warmup"

    rounds: int = hyper(5, "first rounds, in which the rate rises", low=1)

    def share(self, number: int, rounds: int) -> float:
        return _rising(number, self.rounds)


@dataclass(frozen=True)
class Cosine(Schedule):
    """The rate falls as half a cosine, from its value to `final` of it after the last round."""

    name: ClassVar[str] = "cosine"

    final: float = hyper(0.0, "what is left of the rate at the end, as a part of it", low=0.0, high=1.0)
    over: int | None = hyper(None, "the round after which it has fallen; none: the run's last", low=1)
    warmup: int = hyper(0, "first rounds, in which the rate rises", low=0)

    @property
    def over_all_rounds(self) -> bool:
        return self.over is None

    def share(self, number: int, rounds: int) -> float:
        if number <= self.warmup:
            return _rising(number, self.warmup)
        fallen = min(1.0, (number - 1 - self.warmup) / max(1, (self.over or rounds) - self.warmup))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * fallen)) / 2


@dataclass(frozen=True)
class Step(Schedule):
    """The rate is multiplied by `gamma` after every so many rounds. With `every` = 1 it decays exponentially."""

    name: ClassVar[str] = "step"

    every: int = hyper(10, "rounds from one fall to the next", low=1)
    gamma: float = hyper(0.1, "what the rate is multiplied by", low=1e-6, high=1.0)
    warmup: int = hyper(0, "first rounds, in which the rate rises", low=0)

    def share(self, number: int, rounds: int) -> float:
        if number <= self.warmup:
            return _rising(number, self.warmup)
        return float(self.gamma ** (max(0, number - 1 - self.warmup) // self.every))


def share_in(schedule: Schedule | None, client: Client) -> float | None:
    """The share of a rate in the round that asks this client; None without a schedule."""
    return schedule.share(client.round, client.rounds) if schedule else None


def _rising(number: int, rounds: int) -> float:
    """Before round 1 it is the whole rate, too."""
    return number / (rounds + 1) if 1 <= number <= rounds else 1.0
