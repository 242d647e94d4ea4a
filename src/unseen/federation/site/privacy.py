"""Clipping and Gaussian noise at the site, on everything that leaves it.

The unit of protection is the site: an answer over its data, against one over any other data altogether. All that an answer changes
is clipped to an L2 norm of at most `clip`, so two such answers lie at most 2 clip apart. That is the sensitivity. The noise has a
standard deviation of `noise` times `clip`, half as many times the sensitivity, and the budget counts it so.

What an answer looks like must not tell of the data either. Counts of samples leave as a number that the site's owner chose, metrics
under the same names every time, and fields whose size grows with the data do not leave.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.codec import hints_of, without_none
from unseen.errors import RefusedReply
from unseen.federation.site.noise import GridNoise
from unseen.federation.site.policy import Privacy, Rejected
from unseen.payload import Payload, bases, declarations, is_by_name, refuse_unusable

__all__ = ["privatised"]

_AT_ONCE = 2**18  # numbers
_ROOM = 1 + 2.0**-20  # for what float64 rounds while a norm is added up: at most 2^-53 for each of up to 2^32 numbers


def privatised(up: Payload, down: Payload, privacy: Privacy, metrics: Collection[str] = ()) -> Payload:
    """An answer whose difference from the question, all fields together, is clipped and noised. Rejected if that cannot be done.

    A model is compared with the weights in the question that it declares it was trained from; everything else is itself the
    difference. Integer buffers of a model stay what they were in the question. `metrics` are the names of the task's metrics: all of
    them leave, and no others; one that is missing here is 0 before the noise.
    """
    if not (privacy.noise >= 1e-6 and 1e-30 <= privacy.clip * privacy.noise <= 1e36):
        raise Rejected(f"privacy: noise of {privacy.noise:g} times a clip of {privacy.clip:g} is out of range")
    _refuse_what_noise_cannot_hide(up)
    _refuse_not_finite(down, "question")
    _refuse_not_finite(up, "answer")
    based = bases(type(down), type(up))
    counts = [name for name, told in declarations(type(up)).items() if told.kind == "count" and getattr(up, name) is not None]
    announced = dict.fromkeys(counts, privacy.announced_samples)
    up = dataclasses.replace(cast(Any, up), **announced, **_same_names(up, down, based, metrics))
    fields = {name: told for name, told in declarations(type(up)).items() if told.kind not in ("count", "text")}
    versions = [name for name, told in fields.items() if told.kind == "model" and name in based]
    starts = {name: _start(up, name, down, based[name]) for name in versions}
    clipped = _clip(lambda: (part for name in fields for part in _changes(name, getattr(up, name), starts.get(name))), privacy.clip)
    noise = GridNoise(math.nextafter(privacy.noise * privacy.clip, math.inf))

    def noisy(value: Tensor, start: Tensor | None) -> Tensor:
        """In parts, so that no more than one is held in double precision."""
        result = torch.empty(value.shape, dtype=value.dtype)
        flat, begin = result.view(-1), 0
        for change in _parts(value, start):
            private = torch.from_numpy(noise.added_to(clipped(change)))
            if start is not None:
                private += start.detach().reshape(-1)[begin : begin + len(private)].cpu().double()
            flat[begin : begin + len(private)] = private.to(value.dtype)
            begin += len(private)
        return result.to(value.device)

    private: Payload = dataclasses.replace(cast(Any, up), **{name: _rebuilt(getattr(up, name), starts.get(name), noisy) for name in fields})
    return private


def _refuse_what_noise_cannot_hide(up: Payload) -> None:
    for name, told in declarations(type(up)).items():
        if getattr(up, name) is not None and told.kind == "text":
            raise Rejected(f"privacy: {name} is text, to which no noise can be added")
        if getattr(up, name) is not None and told.grows:
            raise Rejected(f"privacy: {name} grows with the data, so its size would tell of them")


def _refuse_not_finite(payload: Payload, what: str) -> None:
    try:
        refuse_unusable(payload, type(payload))
    except RefusedReply as refusal:
        raise Rejected(f"privacy: the {what}'s {refusal}") from None


def _same_names(up: Payload, down: Payload, based: dict[str, str], metrics: Collection[str]) -> dict[str, dict[str, float]]:
    """Numbers by name: those that the question asks about, else the task's metrics."""
    fixed = {}
    for name, told in declarations(type(up)).items():
        value = getattr(up, name)
        if value is None or without_none(hints_of(type(up))[name])[0] != dict[str, float]:
            continue
        names = getattr(down, based[name]) if name in based else metrics if metrics and told.kind == "score" else None
        if not isinstance(names, Collection):
            raise Rejected(f"privacy: nobody fixed the names of the numbers in {name}, so they could tell of the data")
        fixed[name] = {key: value.get(key, 0.0) for key in names}
    return fixed


def _start(up: Payload, name: str, down: Payload, base: str) -> Any:
    """Where a model, or each of several by name, started from: the same, or the one of its name; nothing where there is none."""
    value, start = getattr(up, name), getattr(down, base)
    if value is None or start is None or not is_by_name(type(up), name):
        return start
    return {key: start.get(key) if is_by_name(type(down), base) else start for key in value}


def _clip(changes: Callable[[], Iterator[NDArray[np.float64]]], clip: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """What makes all changes together no longer than `clip`. They are looked at twice; neither a sum nor a quotient can run over."""
    largest = float(np.max([np.abs(change).max() for change in changes()], initial=0.0))  # NaN if one is, unlike Python's max
    if not math.isfinite(largest):
        raise Rejected("privacy: the answer's difference from the question is not finite")
    if largest == 0:
        return lambda change: change
    length = math.sqrt(sum(float(np.square(change / largest).sum()) for change in changes()))  # with the largest as 1
    limit = clip / (length * _ROOM)
    return lambda change: change if largest <= limit else change / largest * limit


def _changes(name: str, value: Any, start: Any) -> Iterator[NDArray[np.float64]]:
    """Every number of a field that is clipped and noised, as the difference from where it started."""
    if isinstance(value, Tensor):
        if start is not None and (value.shape, value.is_floating_point()) != (start.shape, start.is_floating_point()):
            raise Rejected(f"privacy: {name} has not the shapes and types of what it was trained from")
        if value.is_floating_point():
            yield from _parts(value, start)
    elif isinstance(value, dict):
        if start is not None and not value.keys() <= start.keys():
            raise Rejected(f"privacy: {name} has not the entries of what it was trained from")
        for key, inner in value.items():
            yield from _changes(name, inner, None if start is None else start[key])
    elif isinstance(value, list | int | float) and value != []:
        yield from _parts(_tensor(name, value), None)


def _parts(value: Tensor, start: Tensor | None) -> Iterator[NDArray[np.float64]]:
    """The differences of a tensor's numbers from where they started, some at a time."""
    flat, before = value.detach().reshape(-1), None if start is None else start.detach().reshape(-1)
    for begin in range(0, len(flat), _AT_ONCE):
        part = flat[begin : begin + _AT_ONCE].cpu().double()
        yield (part if before is None else part - before[begin : begin + _AT_ONCE].cpu().double()).numpy()


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.tensor(value, dtype=torch.float64).reshape(-1)
    except (OverflowError, RuntimeError):
        raise Rejected(f"privacy: {name} is larger than any number that is taken") from None


def _rebuilt(value: Any, start: Any, noisy: Callable[[Tensor, Tensor | None], Tensor]) -> Any:
    """The field with every difference made noisy. An integer tensor is its start's, or zero where there is none."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return torch.zeros_like(value) if start is None else start.clone()
        return noisy(value, start)
    if isinstance(value, dict):
        return {key: _rebuilt(inner, None if start is None else start[key], noisy) for key, inner in value.items()}
    if isinstance(value, list):
        return noisy(torch.tensor(value, dtype=torch.float64), None).tolist()
    if isinstance(value, float | int):
        private = noisy(torch.tensor([value], dtype=torch.float64), None).item()
        return round(private) if isinstance(value, int) else private
    return value
