"""The mean of models: the one implementation that every aggregation uses."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from unseen.codec import State
from unseen.errors import NoReplies

__all__ = ["mean"]


def mean(states: Iterable[State | tuple[State, float]]) -> State:
    """Sum of w x over sum of w, in the order given (clients in name order), w = 1 where none is given.

    Sums run in float64 and hold one model at a time. Integer buffers, such as batch-norm counters, take the largest value.

    >>> mean([({"w": torch.tensor([1.0])}, 1), ({"w": torch.tensor([4.0])}, 2)])
    {'w': tensor([3.])}
    """
    sums: dict[str, Tensor] = {}
    first: State = {}
    total = 0.0
    for item in states:
        state, weight = item if isinstance(item, tuple) else (item, 1.0)
        total += weight
        if not first:
            first = state
            sums = {k: v.double() * weight if v.is_floating_point() else v.clone() for k, v in state.items()}
            continue
        if state.keys() != first.keys():
            raise ValueError(f"models differ in their entries: {sorted(state.keys() ^ first.keys())}")
        for key, value in state.items():
            if value.is_floating_point():
                sums[key].add_(value.double(), alpha=weight)
            else:
                torch.maximum(sums[key], value, out=sums[key])
    if not first or total <= 0:
        raise NoReplies("no client gave an update that can be used, so there is nothing to average")
    return {k: (v / total).to(first[k].dtype) if first[k].is_floating_point() else v for k, v in sums.items()}
