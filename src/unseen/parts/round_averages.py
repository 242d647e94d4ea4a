"""The global model averaged over rounds: what is scored and deployed, while training goes on from the raw model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.method import RoundAverage
from unseen.ops.averaging import mean
from unseen.settings import hyper
from unseen.state import State

__all__ = ["EMA", "Polynomial", "Tail"]


@dataclass(frozen=True)
class EMA(RoundAverage):
    """An exponential moving average that begins with the model of round 1. It is kept in float64; integer buffers are the latest."""

    name: ClassVar[str] = "ema"

    decay: float = hyper(0.9, "how much of the average stays in each round", low=0.0, high=0.9999)

    def keep(self, kept: list[State], model: State) -> list[State]:
        now = {name: value.detach().cpu().double() if value.is_floating_point() else value.cpu().clone() for name, value in model.items()}
        latest = {name: value.detach().cpu().clone() for name, value in model.items()}  # whose types the average is given in
        if not kept:
            return [now, latest]
        average = {
            name: torch.lerp(value, kept[0][name], self.decay) if value.is_floating_point() else value for name, value in now.items()
        }
        return [average, latest]

    def model(self, kept: list[State]) -> State:
        average, latest = kept
        return {name: value.to(latest[name].dtype) for name, value in average.items()}


@dataclass(frozen=True)
class Tail(RoundAverage):
    """The mean of the models of the last rounds. So many models are kept at the server."""

    name: ClassVar[str] = "tail"

    rounds: int = hyper(5, "how many of the last rounds", low=1, high=100)

    def keep(self, kept: list[State], model: State) -> list[State]:
        return [*kept, {name: value.detach().cpu().clone() for name, value in model.items()}][-self.rounds :]

    def model(self, kept: list[State]) -> State:
        return mean(kept)


@dataclass(frozen=True)
class Polynomial(RoundAverage):
    """The mean over all rounds so far, in which a round's number to some power is its weight (Shamir and Zhang, ICML 2013).

    The first rounds fade, however many follow: nothing depends on how long a run is. One model is kept, in its own types; integer
    buffers are the latest.
    """

    name: ClassVar[str] = "polynomial"

    power: float = hyper(6.0, "0: the plain mean; 6: half of the weight lies in the last tenth of the rounds", low=0.0, high=1000.0)

    def keep(self, kept: list[State], model: State) -> list[State]:
        before, counted = kept or ({}, {"rounds": torch.tensor(0)})
        rounds = int(counted["rounds"]) + 1
        share = (self.power + 1) / (self.power + rounds)  # of this round; in the first it is all
        average = {name: value.detach().cpu().clone() for name, value in model.items()}
        for name, value in average.items():
            if before and value.is_floating_point():
                average[name] = torch.lerp(before[name].double(), value.double(), share).to(value.dtype)
        return [average, {"rounds": torch.tensor(rounds)}]

    def model(self, kept: list[State]) -> State:
        return kept[0]
