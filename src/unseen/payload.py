"""What may cross the line between a client and the server, and what a client may keep for itself.

A `Payload` is the only thing that travels. Its fields are declared, so what leaves a site is a type that can be read,
measured, refused and logged. A `Memory` has the same kinds of fields but cannot be sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, dataclass_transform, get_args

import torch
from torch import Tensor

from unseen.codec import _optional, conform, decode, encode, hints_of, tensors_in
from unseen.errors import RefusedReply
from unseen.state import State

__all__ = ["Carried", "Kind", "Memory", "Nothing", "Payload", "State", "carried", "carries", "refuse_unusable"]

Kind = Literal["model", "spectrum", "score", "statistic", "count"]

_DEFAULT_KIND: dict[Any, Kind] = {
    State: "model",
    dict[str, State]: "model",
    Tensor: "statistic",
    int: "count",
    float: "score",
    list[float]: "score",
    dict[str, float]: "score",
    str: "statistic",
}


def carries(kind: Kind, *, grows_with_data: bool = False) -> Any:
    """Mark a payload field: `low: Tensor = carries("spectrum", grows_with_data=True)`."""
    if kind not in get_args(Kind):
        raise TypeError(f"a payload field of kind {kind!r}; expected one of {', '.join(get_args(Kind))}")
    return dataclasses.field(metadata={"kind": kind, "grows": grows_with_data})


def _declare(cls: type) -> None:
    """Make `cls` a frozen dataclass, and refuse a field of a type that may not travel."""
    dataclass(frozen=True)(cls)
    for name, hint in hints_of(cls).items():
        if _optional(hint)[0] not in _DEFAULT_KIND:
            allowed = "State, Tensor, int, float, str, list[float], dict[str, float], dict[str, State], each also | None"
            raise TypeError(f"{cls.__name__}.{name} is declared as {hint}; a payload may hold only {allowed}")


class _Declared:
    """What Payload and Memory share: fields checked when the class is defined, values when an object is made."""

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            conform(getattr(self, name), hint, f"{type(self).__name__}.{name}")

    def to_bytes(self) -> bytes:
        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return decode(cls, data)


@dataclass_transform(frozen_default=True, field_specifiers=(carries,))
class Payload(_Declared):
    """Base of everything that travels. A subclass is a frozen dataclass of the types that may."""

    def __init_subclass__(cls) -> None:
        _declare(cls)


@dataclass_transform(frozen_default=True)
class Memory(_Declared):
    """Base of what a client keeps for itself between rounds. It is no Payload, so it cannot be sent."""

    def __init_subclass__(cls) -> None:
        _declare(cls)


class Nothing(Payload):
    """An answer, or a question, that carries nothing."""


@dataclass(frozen=True)
class Carried:
    """What one field of a payload carried: its kind, its size, and whether it grows with a client's data."""

    field: str
    kind: Kind
    bytes: int
    grows: bool


def carried(payload: Payload) -> Iterator[Carried]:
    """The fields of a payload, measured: tensors by their data, numbers as 8 bytes, text in UTF-8.

    >>> class Up(Payload):
    ...     model: State
    ...     samples: int
    >>> [*carried(Up(model={"w": torch.zeros(3)}, samples=7))]
    [Carried(field='model', kind='model', bytes=12, grows=False), Carried(field='samples', kind='count', bytes=8, grows=False)]
    """
    for field in dataclasses.fields(cast(Any, payload)):
        hint, _ = _optional(hints_of(type(payload))[field.name])
        kind = field.metadata.get("kind", _DEFAULT_KIND[hint])
        yield Carried(field.name, kind, _size(getattr(payload, field.name)), bool(field.metadata.get("grows", False)))


def _size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        return sum(_size(v) for v in value.values())
    if isinstance(value, list):
        return sum(_size(v) for v in value)
    return 8


def refuse_unusable(payload: Payload, declared: type[Payload]) -> None:
    """Raise RefusedReply unless `payload` is of the declared type and every number in it is finite."""
    if type(payload) is not declared:
        raise RefusedReply(f"answered with a {type(payload).__name__}; {declared.__name__} was declared")
    paths, tensors = [], []
    for name, hint in hints_of(declared).items():
        value = getattr(payload, name)
        for number in _floats(value):
            if number != number or number in (float("inf"), float("-inf")):
                raise RefusedReply(f"{name} is not finite")
        for path, tensor in tensors_in(value, hint):
            if tensor.is_floating_point():
                paths.append(f"{name}.{path}" if path else name)
                tensors.append(tensor.detach())
    if not _sums_are_finite(tensors):  # sums may run over where every number is finite, so each tensor is looked at again
        for path, tensor in zip(paths, tensors, strict=True):
            if not bool(torch.isfinite(tensor).all()):
                raise RefusedReply(f"{path} is not finite")


def _sums_are_finite(tensors: list[Tensor]) -> bool:
    """True if every tensor's L1 norm is finite; one synchronisation per reply."""
    together: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        together.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return all(bool(torch.stack(torch._foreach_norm(alike, 1)).isfinite().all()) for alike in together.values())


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from (v for v in value.values() if isinstance(v, float))
