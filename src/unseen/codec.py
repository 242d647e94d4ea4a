"""Values to bytes and back: nested frozen dataclasses, dicts and lists of tensors and scalars, as one safetensors file.

The declared type drives both directions, so bytes can only become what the receiver declared. Tensors are stored under
running numbers; a JSON header says where each belongs. Nothing is ever unpickled. The file is laid out here, byte for byte as the library
does it, so that each tensor is copied once on its way out and once on its way in.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import types
import typing
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unseen.state import State, StoredState

__all__ = [
    "TENSOR_TYPES",
    "CodecError",
    "conform",
    "decode",
    "decode_file",
    "encode",
    "encode_parts",
    "hints_of",
    "notes_in",
    "refuse_unstorable",
    "state_parts",
    "tensors_in",
    "without_none",
]

T = TypeVar("T")
_SCALARS = (bool, int, float, str)
_STRUCTURE = "structure"
# The tensors that are read: plain numbers. Floats of 8 bits and complex ones have no place in a model, and not every operation.
TENSOR_TYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
# Their names in a file, in the order in which it holds them.
_NAMES = {"I64": "int64", "F64": "float64", "F32": "float32", "I32": "int32", "BF16": "bfloat16", "F16": "float16", "I16": "int16",
          "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip
_STORED = {TENSOR_TYPES[ours]: name for name, ours in _NAMES.items()}
_NOTES = "__metadata__"
_LONGEST_HEADER = 100_000_000  # bytes, as in the library
_HINTS: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


class CodecError(ValueError):
    """Bytes that are not what was declared."""


def hints_of(cls: type) -> dict[str, Any]:
    """The declared type of every dataclass field of `cls`."""
    if cls not in _HINTS:
        hints = typing.get_type_hints(cls)
        _HINTS[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return _HINTS[cls]


def refuse_unstorable(hint: Any, where: str) -> None:
    """Raise TypeError unless values of this type can be stored: checked when a class is defined, not in round 40."""
    hint, _ = without_none(hint)
    inner = _element(hint)
    if inner is not None:
        refuse_unstorable(inner, where)
    elif dataclasses.is_dataclass(hint):
        for name, of in hints_of(typing.cast(type, hint)).items():
            refuse_unstorable(of, f"{where}.{name}")
    elif hint is not Tensor and hint not in _SCALARS:
        raise TypeError(
            f"{where} is declared as {_name(hint)}; expected tensors, scalars, str, frozen dataclasses, and dict[str, ...], "
            "list[...] or tuple[..., ...] of these"
        )


def conform(value: Any, hint: Any, where: str) -> None:
    """Raise TypeError unless `value` is what `hint` declares."""
    hint, optional = without_none(hint)
    if value is None and optional:
        return
    inner = _element(hint)
    if inner is not None:
        container = typing.get_origin(hint)
        if not isinstance(value, container):
            raise TypeError(f"{where} is {_got(value)}; expected {_name(hint)}")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if container is dict and not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; expected a str")
            conform(item, inner, f"{where}[{key!r}]")
    elif dataclasses.is_dataclass(hint):
        if type(value) is not hint:
            raise TypeError(f"{where} is {_got(value)}; expected {_name(hint)}")
        for name, of in hints_of(typing.cast(type, hint)).items():
            conform(getattr(value, name), of, f"{where}.{name}")
    elif not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise TypeError(f"{where} is {_got(value)}; expected {_name(hint)}")


def tensors_in(value: Any, hint: Any) -> typing.Iterator[tuple[str, Tensor]]:
    """Every tensor inside `value`, with its path."""
    hint, _ = without_none(hint)
    if value is None or hint in _SCALARS:
        return
    if isinstance(value, Tensor):
        yield "", value
        return
    inner = _element(hint)
    if inner is not None:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        children = ((str(key), item, inner) for key, item in pairs)
    else:
        children = ((name, getattr(value, name), of) for name, of in hints_of(hint).items())
    for key, item, of in children:
        for path, tensor in tensors_in(item, of):
            yield (f"{key}.{path}" if path else key), tensor


def encode(value: Any, hint: Any = None, notes: dict[str, str] | None = None) -> bytes:
    """`value` as bytes; `hint` is its type where that is not a dataclass. `notes` are kept beside it, readable by `notes_in`."""
    return b"".join(encode_parts(value, hint, notes))


def encode_parts(value: Any, hint: Any = None, notes: dict[str, str] | None = None) -> tuple[bytes | memoryview, ...]:
    """The same bytes in parts. Those of tensors are the tensors' own memory: they hold as long as nobody changes them."""
    kind = hint or type(value)
    conform(value, kind, _name(kind))
    tensors: list[Tensor] = []
    structure = json.dumps(_structure(value, kind, tensors), separators=(",", ":"))
    return state_parts({str(number): tensor for number, tensor in enumerate(tensors)}, {_STRUCTURE: structure, **(notes or {})})


def _structure(item: Any, of: Any, tensors: list[Tensor]) -> Any:
    """A value as JSON has it: in the place of each tensor its number in the list, to which it is added."""
    of, _ = without_none(of)
    if item is None:
        return None
    if isinstance(item, Tensor):
        tensors.append(item.detach().contiguous().cpu())  # in the order of bytes where that is faster
        return len(tensors) - 1
    inner = _element(of)
    if inner is not None:
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        parts = {key: _structure(one, inner, tensors) for key, one in pairs}
        return parts if isinstance(item, dict) else list(parts.values())
    if dataclasses.is_dataclass(of):
        return {name: _structure(getattr(item, name), hint, tensors) for name, hint in hints_of(typing.cast(type, of)).items()}
    return item


def state_parts(state: Mapping[str, Tensor], notes: dict[str, str]) -> tuple[bytes | memoryview, ...]:
    """A safetensors file: the length of a header in 8 bytes, the header in JSON with spaces to a multiple of 8; widest tensors first."""
    ranks = {dtype: rank for rank, dtype in enumerate(_STORED)}
    unknown = [tensor.dtype for tensor in state.values() if tensor.dtype not in ranks]
    if unknown:
        raise TypeError(f"a tensor of the type {unknown[0]}; expected one of {', '.join(TENSOR_TYPES)}")
    header: dict[str, Any] = {_NOTES: notes}
    parts, at = list[memoryview](), 0
    for name in sorted(state, key=lambda one: (ranks[state[one].dtype], one)):
        tensor = state[name].detach().contiguous().cpu()
        about = {"dtype": _STORED[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        header[name], at = about, at + tensor.nbytes
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return (len(text).to_bytes(8, "little") + text, *parts)


@dataclasses.dataclass(frozen=True)
class _Stored:
    """Where a tensor lies in a file, and what it is."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # from the file's first byte
    end: int


def _stored_in(header: dict[str, Any], first: int, size: int) -> dict[str, _Stored]:
    """The tensors of a file of `size` bytes whose header ends at `first`: one behind the other, without a gap, up to its end."""
    found = {}
    for name, about in header.items():
        if name == _NOTES:
            continue
        shape, (begin, end) = about["shape"], about["data_offsets"]
        if about.keys() != {"dtype", "shape", "data_offsets"} or not isinstance(shape, list) or not isinstance(about["dtype"], str):
            raise ValueError(f"a tensor {name!r} that is not told of as in a safetensors file")
        if not all(type(number) is int and 0 <= number < 2**63 for number in (*shape, begin, end)):
            raise ValueError(f"a tensor {name!r} with a size or a place that is no number of bytes")
        found[name] = _Stored(about["dtype"], tuple(shape), first + begin, first + end)
    at = first
    for one in sorted(found.values(), key=lambda one: (one.begin, one.end)):
        if one.begin != at or one.end < at:
            raise ValueError("tensors that overlap, or leave a gap")
        at = one.end
    if at != size:
        raise ValueError("not all of its bytes belong to a tensor, or some are missing")
    return found


class _Held:
    """A file whose bytes are in memory."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self.size = data, len(data)

    def part(self, begin: int, end: int) -> bytes:
        return bytes(self._data[begin:end])

    def tensor(self, dtype: torch.dtype, begin: int, end: int) -> Tensor:
        room = torch.empty((end - begin) // dtype.itemsize, dtype=dtype)
        np.copyto(room.view(torch.uint8).numpy(), np.frombuffer(self._data, np.uint8, end - begin, begin))
        return room


class _Seen(_Held):
    """The same; tensors are views of the bytes, where these may be written to and a tensor begins where its type may."""

    def tensor(self, dtype: torch.dtype, begin: int, end: int) -> Tensor:
        if isinstance(self._data, bytes) or self._data.readonly or end == begin or begin % dtype.itemsize:
            return super().tensor(dtype, begin, end)
        return torch.frombuffer(self._data, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=begin)


class _OnDisk:
    """A file whose bytes are read where they are wanted. It is open as long as somebody may read in it, even if deleted meanwhile."""

    def __init__(self, file: Path) -> None:
        self._handle = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        self.size = os.fstat(self._handle).st_size

    def part(self, begin: int, end: int) -> bytes:
        return os.pread(self._handle, end - begin, begin)

    def tensor(self, dtype: torch.dtype, begin: int, end: int) -> Tensor:
        room = torch.empty((end - begin) // dtype.itemsize, dtype=dtype)
        into, at = room.view(torch.uint8).numpy().data, 0
        while at < end - begin:
            read = os.preadv(self._handle, [into[at:]], begin + at)
            if not read:
                raise CodecError("a file that became shorter while it was read")
            at += read
        return room


def _type_of(one: _Stored, where: str) -> torch.dtype:
    """The type of a tensor, if it is one that is read and its bytes are as many as its shape says."""
    if one.dtype not in _NAMES:
        raise CodecError(f"{where} is of the type {one.dtype}; expected one of {', '.join(TENSOR_TYPES)}")
    dtype, size = TENSOR_TYPES[_NAMES[one.dtype]], one.end - one.begin
    if math.prod(one.shape) * dtype.itemsize != size:
        raise CodecError(f"{where} has {size:,} bytes for the shape {one.shape}")
    return dtype


class _Reader:
    """Builds a value from a file. No function that calls itself: such a one keeps its file in memory until the collector comes round."""

    def __init__(self, source: _Held | _OnDisk, tensors: dict[str, _Stored], stays: Collection[str]) -> None:
        """`stays` names the states that are left in their file, and are read when they are looked at."""
        self._source, self._tensors, self._stays = source, tensors, stays
        self.used: set[str] = set()

    def build(self, item: Any, of: Any, where: str) -> Any:
        of, optional = without_none(of)
        if item is None and optional:
            return None
        if of is Tensor:
            one = self._own(item, where)
            return self._source.tensor(_type_of(one, where), one.begin, one.end).reshape(one.shape)
        inner = _element(of)
        if of == State and where in self._stays and isinstance(item, dict):
            return self._stored(item, where)
        if inner is not None:
            origin = typing.get_origin(of)
            if not isinstance(item, dict if origin is dict else list):
                raise CodecError(f"{where} is {_got(item)}; expected {_name(of)}")
            if isinstance(item, dict):
                return {k: self.build(v, inner, f"{where}.{k}") for k, v in item.items()}
            return typing.cast(type, origin)(self.build(v, inner, f"{where}[{i}]") for i, v in enumerate(item))
        if dataclasses.is_dataclass(of):
            expected = hints_of(typing.cast(type, of))
            if not isinstance(item, dict) or item.keys() != expected.keys():
                found = sorted(item) if isinstance(item, dict) else _got(item)
                raise CodecError(f"{where} holds {found}; expected the fields {sorted(expected)}")
            return typing.cast(type, of)(**{n: self.build(item[n], h, f"{where}.{n}") for n, h in expected.items()})
        if type(item) is not of:
            raise CodecError(f"{where} is {_got(item)}; expected {_name(of)}")
        return item

    def _own(self, item: Any, where: str) -> _Stored:
        name = str(item)
        if type(item) is not int or name not in self._tensors or name in self.used:
            raise CodecError(f"{where} names no tensor of its own")
        self.used.add(name)
        return self._tensors[name]

    def _stored(self, item: dict[str, Any], where: str) -> StoredState:
        places = {key: self._own(number, f"{where}.{key}") for key, number in item.items()}
        types, source = {key: _type_of(one, f"{where}.{key}") for key, one in places.items()}, self._source

        def read(key: str, first: int, last: int) -> Tensor:
            size, begin = types[key].itemsize, places[key].begin
            return source.tensor(types[key], begin + first * size, begin + last * size)

        return StoredState({key: torch.empty(one.shape, dtype=types[key], device="meta") for key, one in places.items()}, read)


def decode(kind: type[T], data: bytes | memoryview, views: bool = False) -> T:
    """The inverse of `encode`. Tensors are fresh and aligned: an unaligned input changes the last bit of a matrix product.

    With `views` they may be views of `data`: to be looked at, and neither changed nor computed with.
    """
    return _decoded(kind, _Seen(data) if views else _Held(data))


def decode_file(kind: type[T], file: Path, stays: Collection[str] = ()) -> T:
    """The same from a file, which is never in memory beside what it holds. The states in a payload's fields `stays` are left in it."""
    return _decoded(kind, _OnDisk(file), {f"{_name(kind)}.{field}" for field in stays})


def _decoded(kind: type[T], source: _Held | _OnDisk, stays: Collection[str] = ()) -> T:
    try:
        header, first = _header_of(source)
        tensors = _stored_in(header, first, source.size)
        structure = json.loads(header[_NOTES][_STRUCTURE])
    except (KeyError, ValueError, RecursionError, TypeError, AttributeError) as error:
        raise CodecError(f"these {source.size} bytes are not a {_name(kind)}: {error}") from error
    reader = _Reader(source, tensors, stays)
    try:
        value = reader.build(structure, kind, _name(kind))
    except (TypeError, RecursionError) as error:
        raise CodecError(f"{_name(kind)}: {error}") from error
    if len(reader.used) != len(tensors):
        raise CodecError(f"{_name(kind)} came with {len(tensors) - len(reader.used)} tensors that it does not name")
    return typing.cast(T, value)


def notes_in(data: bytes | memoryview) -> dict[str, str]:
    """The text kept beside a value: safetensors' metadata."""
    return dict(_header_of(_Held(data))[0].get(_NOTES, {}))


def _header_of(source: _Held | _OnDisk) -> tuple[dict[str, Any], int]:
    """The header of a file, and where it ends."""
    first = 8 + int.from_bytes(source.part(0, 8), "little")
    if first > min(source.size, 8 + _LONGEST_HEADER):
        raise ValueError("a header that is longer than the file, or than any")
    header = json.loads(source.part(8, first))
    if not isinstance(header, dict):
        raise ValueError("a header that is no table")
    return header, first


@functools.lru_cache(256)  # asked for every tensor of a model
def without_none(hint: Any) -> tuple[Any, bool]:
    """A type without its `| None`, and whether it had one."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [h for h in typing.get_args(hint) if h is not type(None)]
        if len(rest) == 1 and len(typing.get_args(hint)) == 2:
            return rest[0], True
    return hint, False


@functools.lru_cache(256)
def _element(hint: Any) -> Any:
    """The type of the items of dict[str, T], list[T] and tuple[T, ...]; None for anything else."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict and len(args) == 2 and args[0] is str:
        return args[1]
    if origin is list and len(args) == 1:
        return args[0]
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return args[0]
    return None


def _name(hint: Any) -> str:
    if hint == State:
        return "State"
    return hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint)


def _got(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})" if isinstance(value, _SCALARS) else f"a {type(value).__name__}"
