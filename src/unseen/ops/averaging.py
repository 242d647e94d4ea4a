"""The mean of models: the one implementation that every aggregation uses."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from unseen.errors import NoReplies
from unseen.state import State, StoredState, copy_all

__all__ = ["RunningMean", "mean", "means"]

_NOTHING = "no client gave an update that can be used, so there is nothing to average"
_AT_ONCE = 2**18  # numbers of a stored model


class RunningMean:
    """Sum of w x over sum of w, one model in memory at a time; several of them go over one stream of replies together.

    Sums run in float64, in the order in which models come (clients in name order). Integer buffers, such as batch-norm counters,
    take the largest value. Models that are stored elsewhere are read at the end and part by part: the same sums, in little room.
    """

    def __init__(self) -> None:
        self._first: State | None = None  # its names, types and shapes alone: the model itself may go
        self._device = torch.device("cpu")
        self._sums: list[Tensor] = []  # of floating entries; lists of tensors take few launches on a GPU
        self._counts: State = {}
        self._total = 0.0
        self._stored: list[tuple[StoredState, float]] = []

    def add(self, state: State, weight: float = 1.0) -> None:
        if isinstance(state, StoredState) and not self._sums and not self._counts:
            if self._stored and (differing := _differing(state.outline, self._stored[0][0].outline)):
                raise ValueError(f"models differ in their entries: {differing}")
            self._stored.append((state, weight))
            return
        for earlier, its in self._stored:
            self._add(earlier, its)
        self._stored.clear()
        self._add(state, weight)

    def _add(self, state: State, weight: float) -> None:
        self._total += weight
        if self._first is None:
            self._first = {key: torch.empty_like(value, device="meta") for key, value in state.items()}
            self._device = next((value.device for value in state.values()), self._device)
            floating = _floating(state, state)
            self._sums = [torch.empty_like(value, dtype=torch.float64) for value in floating]
            copy_all(self._sums, floating)
            if self._sums:
                torch._foreach_mul_(self._sums, weight)
            self._counts = {key: value.clone() for key, value in state.items() if not value.is_floating_point()}
            return
        if state.keys() != self._first.keys():
            raise ValueError(f"models differ in their entries: {sorted(state.keys() ^ self._first.keys())}")
        if self._sums:
            torch._foreach_add_(self._sums, _floating(state, self._first), alpha=weight)
        for key, count in self._counts.items():
            torch.maximum(count, state[key], out=count)

    @property
    def empty(self) -> bool:
        return self._first is None and not self._stored

    def result(self) -> State:
        """The mean, in the type of the first model; NoReplies where nothing came that weighs anything. Nothing is added afterwards."""
        if self._stored:
            return _mean_of_stored(self._stored)
        if self._first is None or self._total <= 0:
            raise NoReplies(_NOTHING)
        if self._sums:
            torch._foreach_div_(self._sums, self._total)
        means = {key: _room(value, self._device) for key, value in self._first.items() if value.is_floating_point()}
        copy_all([*means.values()], self._sums)
        return {key: self._counts[key] if key in self._counts else means[key] for key in self._first}


def _room(like: Tensor, device: torch.device) -> Tensor:
    """Room for the same numbers elsewhere. `empty_like` from a tensor without numbers would import half of PyTorch's compiler."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def _differing(one: State, other: State) -> list[str]:
    return sorted((one.keys() ^ other.keys()) | {key for key in one.keys() & other.keys() if one[key].shape != other[key].shape})


def _mean_of_stored(models: list[tuple[StoredState, float]]) -> State:
    """The mean of models that are stored elsewhere, some numbers of each at a time."""
    total = sum(weight for _, weight in models)
    if total <= 0:
        raise NoReplies(_NOTHING)
    means = {}
    for key, form in models[0][0].outline.items():
        means[key] = torch.empty(form.shape, dtype=form.dtype)
        flat = means[key].reshape(-1)
        for first in range(0, form.numel(), _AT_ONCE):
            last = min(first + _AT_ONCE, form.numel())
            running = RunningMean()
            for model, weight in models:
                running.add({key: model.part(key, first, last)}, weight)
            flat[first:last] = running.result()[key]
    return means


def _floating(state: State, like: State) -> list[Tensor]:
    return [state[key] for key, value in like.items() if value.is_floating_point()]


def mean(states: Iterable[State | tuple[State, float]]) -> State:
    """The mean of models, or of (model, weight).

    >>> mean([({"w": torch.tensor([1.0])}, 1), ({"w": torch.tensor([4.0])}, 2)])
    {'w': tensor([3.])}
    """
    running = RunningMean()
    for item in states:
        running.add(*item) if isinstance(item, tuple) else running.add(item)
    return running.result()


def means(states: Iterable[tuple[tuple[State, ...], float]]) -> tuple[State, ...]:
    """Several means in one pass over a stream of replies, from each reply's states and its weight.

    >>> one, other = ({"w": torch.tensor([1.0])}, {"c": torch.tensor([0.0])}), ({"w": torch.tensor([4.0])}, {"c": torch.tensor([9.0])})
    >>> means([(one, 1), (other, 2)])
    ({'w': tensor([3.])}, {'c': tensor([6.])})
    """
    running: list[RunningMean] = []
    for together, weight in states:
        running = running or [RunningMean() for _ in together]
        for one, state in zip(running, together, strict=True):
            one.add(state, weight)
    if not running:
        raise NoReplies(_NOTHING)
    return tuple(one.result() for one in running)
