"""Averages that a few strange models do not move far: coordinate by coordinate, all models weighing the same.

Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018, Definitions 1 and 2. All models are in
memory at once. Sums run in float64; integer buffers, such as batch-norm counters, take the largest value, as in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from unseen.errors import NoReplies
from unseen.state import State

__all__ = ["change_norm", "coordinate_median", "scaled_change", "trimmed_mean"]


def coordinate_median(models: Sequence[State]) -> State:
    """The median of every entry; of an even number the mean of the two in the middle.

    >>> coordinate_median([{"w": torch.tensor([1.0, 9.0])}, {"w": torch.tensor([2.0, -9.0])}, {"w": torch.tensor([1e9, 0.0])}])
    {'w': tensor([2., 0.])}
    """
    return _by_coordinate(models, lambda ordered: ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1])


def trimmed_mean(models: Sequence[State], cut: int) -> State:
    """The mean of every entry without its `cut` smallest and its `cut` largest values.

    >>> trimmed_mean([{"w": torch.tensor([v])} for v in (0.0, 1.0, 2.0, 6.0, 1e9)], 1)
    {'w': tensor([3.])}
    """
    return _by_coordinate(models, lambda ordered: ordered[cut : len(ordered) - cut])


def _by_coordinate(models: Sequence[State], kept: Callable[[Tensor], Tensor]) -> State:
    if not models:
        raise NoReplies("no client gave an update that can be used, so there is nothing to average")

    def together(name: str, first: Tensor) -> Tensor:
        values = torch.stack([model[name].to(first.device) for model in models])
        if not first.is_floating_point():
            return values.amax(0)
        return kept(values.double().sort(0).values).mean(0).to(first.dtype)

    return {name: together(name, first) for name, first in models[0].items()}


def change_norm(model: State, start: State, names: Iterable[str]) -> float:
    """The L2 norm of the change of these entries together.

    >>> change_norm({"w": torch.tensor([3.0]), "v": torch.tensor([5.0])}, {"w": torch.tensor([0.0]), "v": torch.tensor([1.0])}, ["w", "v"])
    5.0
    """
    squares = [(model[name].double() - start[name].to(model[name].device).double()).square().sum() for name in names]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0


def scaled_change(model: State, start: State, factor: float) -> State:
    """The model that has gone only this part of the way from `start`. Integer entries stay the model's.

    >>> scaled_change({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}, 0.5)
    {'w': tensor([2.])}
    """

    def moved(name: str, value: Tensor) -> Tensor:
        first = start[name].to(value.device).double()
        return (first + factor * (value.double() - first)).to(value.dtype)

    return {name: moved(name, value) if value.is_floating_point() else value for name, value in model.items()}
