"""The mean of models: the one implementation that every aggregation uses."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from unseen.errors import NoReplies
from unseen.state import State, copy_all

__all__ = ["mean"]


def mean(states: Iterable[State | tuple[State, float]]) -> State:
    """Sum of w x over sum of w, in the order given (clients in name order), w = 1 where none is given.

    Sums run in float64 and hold one model at a time. Integer buffers, such as batch-norm counters, take the largest value.

    >>> mean([({"w": torch.tensor([1.0])}, 1), ({"w": torch.tensor([4.0])}, 2)])
    {'w': tensor([3.])}
    """
    sums: list[Tensor] = []  # of floating entries; lists of tensors take few launches on a GPU
    counts: State = {}
    first: State = {}
    total = 0.0
    for item in states:
        state, weight = item if isinstance(item, tuple) else (item, 1.0)
        total += weight
        if not first:
            first = state
            sums = [torch.empty_like(value, dtype=torch.float64) for value in _floating(state, first)]
            copy_all(sums, _floating(state, first))
            if sums:
                torch._foreach_mul_(sums, weight)
            counts = {key: value.clone() for key, value in state.items() if not value.is_floating_point()}
            continue
        if state.keys() != first.keys():
            raise ValueError(f"models differ in their entries: {sorted(state.keys() ^ first.keys())}")
        if sums:
            torch._foreach_add_(sums, _floating(state, first), alpha=weight)
        for key, count in counts.items():
            torch.maximum(count, state[key], out=count)
    if not first or total <= 0:
        raise NoReplies("no client gave an update that can be used, so there is nothing to average")
    if sums:
        torch._foreach_div_(sums, total)
    means = {key: torch.empty_like(value) for key, value in first.items() if value.is_floating_point()}
    copy_all([*means.values()], sums)
    return {key: counts[key] if key in counts else means[key] for key in first}


def _floating(state: State, like: State) -> list[Tensor]:
    return [state[key] for key, value in like.items() if value.is_floating_point()]
