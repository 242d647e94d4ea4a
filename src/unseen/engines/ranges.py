"""What numbers an honest answer can hold. The bounds are wide: no run that learns comes near them, and nothing overflows inside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from unseen.codec import hints_of, without_none
from unseen.errors import OutOfRange
from unseen.metrics import LARGEST
from unseen.payload import OF_A_NETWORK, Declaration, Payload, declarations
from unseen.scoring import Scores
from unseen.state import State
from unseen.world import World

__all__ = ["Ranges"]

Bounds = tuple[float, float]
_LARGEST_WEIGHT = 1e6  # of a parameter, or of its change: trained weights lie below 100
_LARGEST_NUMBER = 1e12  # of a buffer (a variance, a counter), a gradient or a statistic
_ROUNDING = 1.001  # of a spectrum, summed in single precision


class Ranges:
    """The least and the most of every number in an answer, by what its field declares."""

    def __init__(self, world: World) -> None:
        data = world.dataset
        self._parameters = {role: world.entries(role).parameters for role in world.builders}
        self._task, self._size = data.task, data.size
        self.metrics = data.task.ranges(data.size, 0).keys()
        pixels = zip(data.pixels.mean, data.pixels.std, strict=True)
        brightest = max(max(abs(mean), abs(1 - mean)) / std for mean, std in pixels)
        self._spectrum = _ROUNDING * brightest * data.size[0] * data.size[1]  # an amplitude is at most the sum of all pixels' sizes

    def refuse_outside(self, answer: Payload, samples: int) -> None:
        """Raise OutOfRange for the first number that lies outside."""
        tensors: list[tuple[str, Tensor, Bounds]] = []
        for path, value, (low, high) in self._numbers(answer, samples):
            if isinstance(value, Tensor):
                if value.numel():
                    tensors.append((path, value.byte() if value.dtype is torch.bool else value, (low, high)))
            elif not low <= value <= high:
                raise OutOfRange(f"{path} is {value:g}; expected {low:g} to {high:g}")
        for number in _perhaps_outside([(value, bounds) for _, value, bounds in tensors]):
            path, value, (low, high) = tensors[number]
            least, most = (float(extreme) for extreme in torch.aminmax(value))
            if not low <= least <= most <= high:
                raise OutOfRange(f"{path} reaches from {least:g} to {most:g}; expected {low:g} to {high:g}")

    def clamped(self, answer: Payload, samples: int) -> Payload:
        """The answer with every number moved into its range."""

        def inside(value: Any, bounds: Bounds) -> Any:
            if isinstance(value, Tensor):
                return value.clamp(*bounds) if value.is_floating_point() else value
            return type(value)(min(max(value, bounds[0]), bounds[1]))

        changed = {}
        for name, told in declarations(type(answer)).items():
            value = getattr(answer, name)
            if value is not None and told.kind not in ("count", "text"):
                changed[name] = _mapped(value, inside, partial(self._bounds, told, type(answer), samples))
        return cast(Payload, dataclasses.replace(cast(Any, answer), **changed))

    def _numbers(self, answer: Payload, samples: int) -> Iterator[tuple[str, Any, Bounds]]:
        for name, told in declarations(type(answer)).items():
            value = getattr(answer, name)
            if value is None or told.kind in ("count", "text"):
                continue
            by_client = without_none(hints_of(type(answer))[name])[0] == dict[str, State]
            for key, item in _items(value):
                for inner, one in _items(item) if by_client else ((key, item),):
                    path = ".".join(part for part in (name, key, inner if by_client else "") if part)
                    yield path, one, self._bounds(told, type(answer), samples, inner)

    def _bounds(self, told: Declaration, kind: type[Payload], samples: int, key: str) -> Bounds:
        if told.kind in OF_A_NETWORK:
            weight = told.kind in ("model", "update") and key in self._parameters[told.role]
            largest = _LARGEST_WEIGHT if weight else _LARGEST_NUMBER
            return -largest, largest
        if told.kind == "spectrum":
            return 0.0, self._spectrum
        if kind is Scores and told.kind == "score":
            return self._task.ranges(self._size, samples)[key]
        largest = LARGEST if told.kind == "score" else _LARGEST_NUMBER if told.kind == "statistic" else 2.0**53
        return -largest if told.low is None else told.low, largest if told.high is None else told.high


def _perhaps_outside(tensors: list[tuple[Tensor, Bounds]]) -> list[int]:
    """The places of the tensors that may hold a number outside its bounds: by their largest sizes, with few launches on a GPU."""
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    doubtful: list[int] = []
    for number, (value, (low, high)) in enumerate(tensors):
        if low == -high and (value.is_floating_point() or value.ndim == 0):
            alike.setdefault((value.device, value.dtype), []).append(number)
        else:
            doubtful.append(number)
    for (device, _), numbers in alike.items():
        values = [tensors[number][0].detach() for number in numbers]
        largest = _largest(values, device) if values[0].is_floating_point() else values
        told = zip(numbers, torch.stack(largest).tolist(), strict=True)  # one wait for the device
        doubtful += [number for number, size in told if not -tensors[number][1][1] <= size <= tensors[number][1][1]]
    return sorted(doubtful)


def _largest(values: list[Tensor], device: torch.device) -> list[Tensor]:
    """The largest size in each. The norm takes few launches on a GPU; on a CPU it takes eight times as long as the extremes."""
    if device.type != "cpu":
        return list(torch._foreach_norm(values, float("inf")))
    return [torch.maximum(-least, most) for least, most in map(torch.aminmax, values)]


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from ((str(number), one) for number, one in enumerate(value))
    else:
        yield "", value


def _mapped(value: Any, change: Callable[[Any, Bounds], Any], bounds: Callable[[str], Bounds], key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _mapped(one, change, bounds, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_mapped(one, change, bounds, key) for one in value]
    return change(value, bounds(key))
