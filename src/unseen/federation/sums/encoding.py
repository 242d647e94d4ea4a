"""Answers as words that can be added, and their sum as the answer that all of them have on average.

A number becomes an integer: itself times its site's part of all weights, times a power of two, rounded. Trained parameters are
words of 32 bits, so that an answer is as long as it would be in float32; everything else is words of 64 bits. A model is the change from
the weights in the question that it was trained from, so that the range is small.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.codec import hints_of, without_none
from unseen.errors import NoReplies, RefusedReply
from unseen.federation.sums.context import SumContext
from unseen.federation.sums.words import Words
from unseen.payload import Payload, bases, declarations
from unseen.state import Entries, State

__all__ = ["NARROW_LIMIT", "NARROW_UNIT", "WIDE_LIMIT", "WIDE_UNIT", "decode_mean", "encode_answer", "rounding"]

U = TypeVar("U", bound=Payload)

NARROW_UNIT, NARROW_LIMIT = 2.0**-27, 15.0  # 2^31 units are 16: the rest is room for the rounding of all sites
WIDE_UNIT, WIDE_LIMIT = 2.0**-32, 2.0**30
_CHUNK = 2**16  # numbers at once, in the processor's cache
_TYPES = {str(kind).removeprefix("torch."): kind for kind in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)}  # fmt: skip
_SCALARS = ("int", "float", "list")


def rounding(sites: int, total: float, weight: float, narrow: bool = True) -> float:
    """How far a mean may be from that of the unrounded answers: of `sites` survivors who weigh `weight` of `total` together."""
    return sites * (NARROW_UNIT if narrow else WIDE_UNIT) / 2 * total / weight


@dataclass(frozen=True)
class _Piece:
    """A run of words: one tensor, or one or several numbers, of a field."""

    field: str
    path: tuple[str, ...]  # within the field
    type: str  # of a tensor, or of a Python number
    shape: tuple[int, ...]
    narrow: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def where(self) -> str:
        return ".".join((self.field, *self.path))


def encode_answer(up: Payload, down: Payload, context: SumContext, site: str, entries: Callable[[str], Entries]) -> Words:
    """The words of one site's answer. `entries` gives, by role, what a network's state consists of (`World.entries`).

    RefusedReply where a number is out of range or not finite, or where a field is filled that cannot be summed.
    """
    weight, weighed = _weight(up, context, site)
    found = [(piece, value, _start(piece, type(up), down)) for piece, value in _pieces(up, entries)]
    narrow = [one for one in found if one[0].narrow]
    wide = [one for one in found if not one[0].narrow]
    absent = sorted(name for name in hints_of(type(up)) if getattr(up, name) is None)
    plain = [[p.field, list(p.path), p.type, list(p.shape), p.narrow] for p, _, _ in (*wide, *narrow)]
    layout = json.dumps({"weighed": weighed, "absent": absent, "pieces": plain}, separators=(",", ":"))
    part = weight / context.total(weighed)
    many, few = np.empty(sum(p.size for p, _, _ in narrow), np.uint32), np.empty(1 + sum(p.size for p, _, _ in wide), np.uint64)
    _fill(many.view(np.int32), narrow, part / NARROW_UNIT, NARROW_LIMIT * part / NARROW_UNIT)
    _fill(few[1:].view(np.int64), wide, part / WIDE_UNIT, WIDE_LIMIT * part / WIDE_UNIT)
    few[0] = weight
    return Words(layout, few, many)


def decode_mean(words: Words, up_type: type[U], down: Payload, context: SumContext, survivors: int) -> U:
    """The mean of the survivors' answers, weighted as they were, from the sum of their words."""
    try:
        plain = json.loads(words.layout)
        weighed, absent = bool(plain["weighed"]), set(plain["absent"])
        pieces = [_Piece(field, tuple(path), kind, tuple(shape), narrow) for field, path, kind, shape, narrow in plain["pieces"]]
        _refuse_odd(pieces, words, up_type)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RefusedReply("a secure sum whose layout cannot be read") from None
    total = int(words.wide[0])
    if not 0 < total <= context.total(weighed):
        raise NoReplies(f"the sites in a secure sum weigh {total} together; expected at most {context.total(weighed)}, and more than 0")
    factor = context.total(weighed) / total
    built: dict[str, dict[tuple[str, ...], Any]] = {piece.field: {} for piece in pieces}
    numbers: dict[bool, NDArray[Any]] = {True: words.narrow.view(np.int32), False: words.wide[1:].view(np.int64)}
    at = {True: 0, False: 0}
    for piece in pieces:
        begin, end = at[piece.narrow], at[piece.narrow] + piece.size
        unit = NARROW_UNIT if piece.narrow else WIDE_UNIT
        mean = _rebuilt(piece, numbers[piece.narrow][begin:end], unit * factor, _start(piece, up_type, down))
        built[piece.field][piece.path] = mean
        at[piece.narrow] = end
    count = max(1, round(total / survivors)) if weighed else None
    values = {
        name: None if name in absent else count if told.kind == "count" else _value(hints_of(up_type)[name], built.get(name, {}))
        for name, told in declarations(up_type).items()
    }
    try:
        return up_type(**values)
    except TypeError as error:
        raise RefusedReply(f"a secure sum that is no {up_type.__name__}: {error}") from error


def _weight(up: Payload, context: SumContext, site: str) -> tuple[int, bool]:
    """The answer's count, or 1; and whether there is a count."""
    counts = [getattr(up, name) for name, told in declarations(type(up)).items() if told.kind == "count"]
    if not counts or counts[0] is None:
        return 1, False
    if not 0 <= counts[0] <= context.counts[site]:
        raise RefusedReply(f"an answer that rests on {counts[0]} samples, where the site announced {context.counts[site]}")
    return int(counts[0]), True


def _pieces(up: Payload, entries: Callable[[str], Entries]) -> Iterator[tuple[_Piece, Any]]:
    for name, told in declarations(type(up)).items():
        value = getattr(up, name)
        if value is None or told.kind == "count":
            continue
        if not told.mean:
            raise RefusedReply(f"{name} is filled, but not declared as one of which the mean is enough, so it cannot be summed")
        trained = entries(told.role).parameters if told.kind in ("model", "update") else frozenset[str]()
        for path, one in _leaves(value):
            if isinstance(one, Tensor):
                kind = str(one.dtype).removeprefix("torch.")
                if kind not in _TYPES:
                    raise RefusedReply(f"{'.'.join((name, *path))} is of the type {kind}, which cannot be summed")
                narrow = one.is_floating_point() and bool(path) and path[-1] in trained
                yield _Piece(name, path, kind, tuple(one.shape), narrow), one
            else:
                yield _Piece(name, path, type(one).__name__, (len(one),) if isinstance(one, list) else (), False), one


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key], (*path, key))
    else:
        yield path, value


def _start(piece: _Piece, up_type: type[Payload], down: Payload) -> Tensor | None:
    """The tensor of the question that this one is a later version of; None where there is none."""
    if declarations(up_type)[piece.field].kind != "model" or not piece.path:
        return None
    base = bases(type(down), up_type).get(piece.field)
    states = getattr(down, base) if base is not None else None
    start: Tensor | None = states.get(piece.path[0]) if states is not None else None
    if start is not None and tuple(start.shape) != piece.shape:
        raise RefusedReply(f"{piece.where} is of another shape than what it was trained from")
    return start


def _fill(words: NDArray[Any], found: list[tuple[_Piece, Any, Tensor | None]], factor: float, limit: float) -> None:
    """Rounded integers, chunk by chunk, in double precision."""
    at, work = 0, np.empty(_CHUNK)
    for piece, value, start in found:
        new, old = _flat(value), None if start is None else _flat(start)
        for begin in range(0, piece.size, _CHUNK):
            chunk = slice(begin, min(begin + _CHUNK, piece.size))
            scaled = work[: chunk.stop - begin]
            np.copyto(scaled, new[chunk])
            if old is not None:
                np.subtract(scaled, old[chunk], out=scaled)
            np.multiply(scaled, factor, out=scaled)
            if not (scaled.min() >= -limit and scaled.max() <= limit):  # false for what is no number, too
                _refuse_range(piece, start is not None)
            np.rint(scaled, out=scaled)
            words[at + begin : at + chunk.stop] = scaled
        at += piece.size


def _refuse_range(piece: _Piece, changed: bool) -> None:
    most = NARROW_LIMIT if piece.narrow else WIDE_LIMIT
    raise RefusedReply(
        f"{piece.where} {'changed' if changed else 'is off zero'} by more than {most:g}, or is not finite: it cannot be summed"
    )


def _flat(value: Any) -> NDArray[Any]:
    if not isinstance(value, Tensor):
        return np.atleast_1d(np.asarray(value, np.float64))
    tensor = value.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    array: NDArray[Any] = tensor.contiguous().reshape(-1).numpy()
    return array


def _rebuilt(piece: _Piece, words: NDArray[Any], factor: float, start: Tensor | None) -> Any:
    """The value of a piece, in the type of what it was trained from."""
    if piece.type in _SCALARS:
        numbers = [factor * int(word) for word in words]
        return numbers if piece.type == "list" else round(numbers[0]) if piece.type == "int" else numbers[0]
    kind = _TYPES[piece.type] if start is None else start.dtype
    result = torch.empty(piece.size, dtype=kind)
    old = None if start is None else start.detach().cpu().reshape(-1)
    for begin in range(0, piece.size, _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        change = torch.from_numpy(words[chunk] * factor)
        if not kind.is_floating_point:
            change.round_()
        result[chunk] = change if old is None else change.add_(old[chunk])
    return result.reshape(piece.shape)


def _value(hint: Any, leaves: dict[tuple[str, ...], Any]) -> Any:
    """A field's value from its pieces."""
    if without_none(hint)[0] in (State, dict[str, float]):
        return {path[0]: value for path, value in leaves.items()}
    return leaves.get(())


def _refuse_odd(pieces: list[_Piece], words: Words, up_type: type[Payload]) -> None:
    """ValueError or KeyError for a layout that no honest site writes."""
    told = declarations(up_type)
    for piece in pieces:
        plain = all(isinstance(key, str) for key in piece.path) and all(type(n) is int and n >= 0 for n in piece.shape)
        if not plain or not told[piece.field].mean or piece.type not in (*_TYPES, *_SCALARS) or type(piece.narrow) is not bool:
            raise ValueError(piece)
        bare, _ = without_none(hints_of(up_type)[piece.field])
        depth = 1 if bare in (State, dict[str, float]) else 0
        if len(piece.path) != depth or (piece.type in ("int", "float") and piece.shape):
            raise ValueError(piece)
    sizes = {narrow: sum(piece.size for piece in pieces if piece.narrow is narrow) for narrow in (True, False)}
    if len(words.narrow) != sizes[True] or len(words.wide) != 1 + sizes[False]:
        raise ValueError(sizes)
