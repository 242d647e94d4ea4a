"""The global model averaged over rounds: what is scored and deployed, while training goes on from the raw model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.method import RoundAverage
from unseen.ops.averaging import mean
from unseen.settings import hyper
from unseen.state import State

__all__ = ["EMA", "Tail"]


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
