"""What may cross the line between a client and the server, and what a client may keep for itself.

A `Payload` is the only thing that travels. Its fields declare what they carry, so what leaves a site is a type that can be read,
measured, refused and logged. A `Memory` has the same types of fields but cannot be sent.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, dataclass_transform, get_args

import torch
from torch import Tensor

from unseen.codec import TENSOR_TYPES, conform, decode, encode, hints_of, tensors_in, without_none
from unseen.errors import RefusedReply
from unseen.state import Part, State, StoredState

__all__ = [
    "OF_A_NETWORK", "Carried", "Declaration", "Kind", "Memory", "Nothing", "Payload", "State", "bases", "carried", "carries",
    "declarations", "is_by_name", "refuse_unusable",
]  # fmt: skip

Kind = Literal["model", "update", "gradient", "control", "statistic", "spectrum", "score", "count", "number", "text"]

_STATES = (State, dict[str, State])
_NUMBERS = (float, list[float], dict[str, float])
# The types that may travel, by what they carry.
_TYPES: dict[Kind, tuple[Any, ...]] = {
    "model": _STATES,  # a network's weights
    "update": _STATES,  # a change of weights
    "gradient": _STATES,  # of a loss with respect to weights
    "control": _STATES,  # a control variate: a gradient that a client or the server remembers (SCAFFOLD)
    "statistic": (Tensor, State, *_NUMBERS),  # computed from images, features or labels
    "spectrum": (Tensor, State),  # amplitudes of images
    "score": _NUMBERS,  # how well a model did
    "count": (int,),  # samples
    "number": (int, float),  # anything else that is one number, such as a number of steps
    "text": (str,),
}
OF_A_NETWORK = ("model", "update", "gradient", "control")
_AVERAGED = (*OF_A_NETWORK, "statistic", "number")
_MAY_TRAVEL = {hint for hints in _TYPES.values() for hint in hints}


@dataclass(frozen=True)
class Declaration:
    """What a field says of itself. Privacy, the server's checks, a site's policy and its ledger go by this alone."""

    kind: Kind
    of: str | None  # the field of the question that this one refers to
    role: str  # of which network of the run
    part: Part  # of that network's state
    grows: bool  # with a client's data
    mean: bool = False  # the server needs only its weighted mean over the clients
    low: float | None = None  # the least and the most that one of its numbers may be
    high: float | None = None
    passed_on: bool = False  # of a question: holds what single other clients answered


def carries(
    kind: Kind,
    *,
    of: str | None = None,
    role: str = "task",
    part: Part = "whole",
    grows_with_data: bool = False,
    mean: bool = False,
    low: float | None = None,
    high: float | None = None,
    passed_on: bool = False,
) -> Any:
    """Declare a payload field: `model: State = carries("model")`, `change: State = carries("update", of="model", part="head")`.

    `of` names a field of the question: the weights that a model was trained from, that an update is a change of, or the candidates
    that scores are about. A model that leaves it out is a version of the only model of its role in the question. `role` and `part`
    say which network's state it is, and which part of it: the head alone, or everything but normalisation.

    `mean` says that the server needs nothing of a field but its mean over the clients, each weighted by the answer's `count` (by 1 where
    there is none, or it is None): then a secure sum can hide the single answers. `low` and `high` bound a score, a number or a statistic.
    `passed_on` is said of a question's field that brings a client what single other clients answered.
    """
    if kind not in _TYPES:
        raise TypeError(f"a payload field of kind {kind!r}; expected one of {', '.join(_TYPES)}")
    if part not in get_args(Part):
        raise TypeError(f"a payload field with part {part!r}; expected one of {', '.join(get_args(Part))}")
    if kind not in OF_A_NETWORK and (role, part) != ("task", "whole"):
        raise TypeError(f"a payload field of kind {kind!r} has no role or part; those are of {', '.join(OF_A_NETWORK)}")
    if mean and (kind not in _AVERAGED or grows_with_data):
        raise TypeError(f"a payload field of kind {kind!r} with mean; a mean is of {', '.join(_AVERAGED)}, not growing")
    if (low, high) != (None, None) and kind not in ("score", "number", "statistic"):
        raise TypeError(f"a payload field of kind {kind!r} with low or high; those are of score, number or statistic")
    return dataclasses.field(metadata={"declaration": Declaration(kind, of, role, part, grows_with_data, mean, low, high, passed_on)})


def declarations(payload: type[Payload]) -> dict[str, Declaration]:
    """What each field of a payload carries."""
    return {field.name: field.metadata["declaration"] for field in dataclasses.fields(cast(Any, payload))}


def bases(down: type[Payload], up: type[Payload]) -> dict[str, str]:
    """For each field of an answer that is a version, a change or a judgement of something in the question: that field's name.

    Raises TypeError where a declaration does not fit: an unknown field, another network, or a choice that is left open.
    """
    found: dict[str, str] = {}
    asked = declarations(down)
    for name, told in declarations(up).items():
        where = f"{up.__name__}.{name}"
        if told.of is not None:
            if told.of not in asked:
                raise TypeError(f"{where} is of {told.of!r}; {down.__name__} has {', '.join(asked) or 'no fields'}")
            base = asked[told.of]
            if told.kind == "score" and not is_by_name(down, told.of):
                raise TypeError(f"{where} is a score of {told.of!r}, which is not several by name")
            if told.kind in OF_A_NETWORK and (base.kind != "model" or base.role != told.role or base.part not in ("whole", told.part)):
                raise TypeError(f"{where} ({told.role}, {told.part}) is of {told.of!r}, a {base.kind} ({base.role}, {base.part})")
            if told.kind == "model" and is_by_name(down, told.of) and not is_by_name(up, name):
                raise TypeError(f"{where} is one model, and {told.of!r} several by name: it cannot be told which it was trained from")
            found[name] = told.of
        elif told.kind == "model":
            fits = {n: q for n, q in asked.items() if q.kind == "model" and q.role == told.role and q.part in ("whole", told.part)}
            alike = [other for other in fits if is_by_name(up, name) or not is_by_name(down, other)]
            if len(alike) > 1:
                raise TypeError(f'{where}: say which of {", ".join(alike)} it was trained from, as in carries("model", of="{alike[0]}")')
            found |= {name: alike[0]} if alike else {}
        elif told.kind == "update":
            raise TypeError(f'{where}: say what it is a change of, as in carries("update", of="model")')
    return found


def is_by_name(payload: type[Payload], field: str) -> bool:
    """Whether a field is declared as several states or numbers by name, such as one model for each client."""
    return without_none(hints_of(payload)[field])[0] in (dict[str, State], dict[str, float])


def _refuse_other_types(cls: type) -> None:
    for name, hint in hints_of(cls).items():
        if without_none(hint)[0] not in _MAY_TRAVEL:
            allowed = "State, Tensor, int, float, str, list[float], dict[str, float], dict[str, State], each also | None"
            raise TypeError(f"{cls.__name__}.{name} is declared as {hint}; a payload may hold only {allowed}")


def _refuse_undeclared(cls: type) -> None:
    for field in dataclasses.fields(cast(Any, cls)):
        hint, _ = without_none(hints_of(cls)[field.name])
        fitting = [kind for kind, hints in _TYPES.items() if hint in hints]
        told: Declaration | None = field.metadata.get("declaration")
        if told is None:
            raise TypeError(f'{cls.__name__}.{field.name} does not say what it carries; write = carries("{fitting[0]}"), say')
        if told.kind not in fitting:
            raise TypeError(f"{cls.__name__}.{field.name} carries a {told.kind}; of its type there may be {', '.join(fitting)}")
        if told.mean and hint == dict[str, State]:
            raise TypeError(f"{cls.__name__}.{field.name} is declared as {hint} with mean; a mean is of one State or Tensor, or of numbers")
    told_of = [field.metadata["declaration"] for field in dataclasses.fields(cast(Any, cls))]
    if any(told.mean for told in told_of) and sum(told.kind == "count" for told in told_of) > 1:
        raise TypeError(f"{cls.__name__} has means and several counts; one count is the weight of a client")


class _Declared:
    """What Payload and Memory share: fields checked when the class is defined, values when an object is made."""

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            conform(getattr(self, name), hint, f"{type(self).__name__}.{name}")

    def __repr__(self) -> str:
        """What it holds, without the numbers in tensors."""
        return f"{type(self).__name__}({', '.join(f'{name}={_short(getattr(self, name))}' for name in hints_of(type(self)))})"

    def to_bytes(self) -> bytes:
        return encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        return decode(cls, data)


def _short(value: Any) -> str:
    """A value as a person wants to see it.

    >>> _short({"w": torch.zeros(2, 3), "b": torch.zeros(3)}), _short(torch.zeros(2)), _short(0.5)
    ('<2 tensors, 9 numbers>', '<float32 [2]>', '0.5')
    """
    if isinstance(value, Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')} {list(value.shape)}>"
    if isinstance(value, dict) and value and all(isinstance(one, Tensor) for one in value.values()):
        return f"<{len(value)} tensors, {sum(one.numel() for one in value.values()):,} numbers>"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_short(one)}" for key, one in value.items()) + "}"
    return repr(value)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(carries,))
class Payload(_Declared):
    """Base of everything that travels. A subclass is a frozen dataclass whose fields say what they carry."""

    def __init_subclass__(cls) -> None:
        own = inspect.get_annotations(cls)
        dataclass(frozen=True, kw_only=True, repr=False)(cls)
        fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
        inherited = {name: fields.pop(name) for name in [*fields] if name not in own}
        fields |= {name: fields.pop(name) for name in own} | inherited  # a payload's own fields come first
        _refuse_other_types(cls)
        _refuse_undeclared(cls)


@dataclass_transform(frozen_default=True)
class Memory(_Declared):
    """Base of what a client keeps for itself between rounds. It is no Payload, so it cannot be sent."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, repr=False)(cls)
        _refuse_other_types(cls)


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
    ...     model: State = carries("model")
    ...     samples: int = carries("count")
    >>> [*carried(Up(model={"w": torch.zeros(3)}, samples=7))]
    [Carried(field='model', kind='model', bytes=12, grows=False), Carried(field='samples', kind='count', bytes=8, grows=False)]
    """
    for name, told in declarations(type(payload)).items():
        yield Carried(name, told.kind, _size(getattr(payload, name)), told.grows)


def _size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, StoredState):
        value = value.outline
    if isinstance(value, dict):
        return sum(_size(v) for v in value.values())
    if isinstance(value, list):
        return sum(_size(v) for v in value)
    return 8


def refuse_unusable(payload: Payload, declared: type[Payload]) -> None:
    """Raise RefusedReply unless `payload` is of the declared type, its tensors plain and every number in it finite."""
    if type(payload) is not declared:
        raise RefusedReply(f"answered with a {type(payload).__name__}; {declared.__name__} was declared")
    paths, tensors = [], []
    for name, hint in hints_of(declared).items():
        value = getattr(payload, name)
        for number in _floats(value):
            if number != number or number in (float("inf"), float("-inf")):
                raise RefusedReply(f"{name} is not finite")
        for path, tensor in tensors_in(value, hint):
            if tensor.dtype not in TENSOR_TYPES.values() or tensor.layout is not torch.strided:
                raise RefusedReply(f"{name}{'.' if path else ''}{path} is of the type {tensor.dtype}, which does not travel")
            if tensor.is_floating_point():
                paths.append(f"{name}.{path}" if path else name)
                tensors.append(tensor.detach())
    if not _sums_are_finite(tensors):  # sums may run over where every number is finite, so each tensor is looked at again
        for path, tensor in zip(paths, tensors, strict=True):
            if not bool(torch.isfinite(tensor).all()):
                raise RefusedReply(f"{path} is not finite")


def _sums_are_finite(tensors: list[Tensor]) -> bool:
    """True if every tensor's norm is finite; one synchronisation per reply. The L2 norm is the fastest one on a CPU."""
    together: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        together.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return all(bool(torch.stack(torch._foreach_norm(alike, 2)).isfinite().all()) for alike in together.values())


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from (v for v in value.values() if isinstance(v, float))
