"""Values to bytes and back: nested frozen dataclasses, dicts and lists of tensors and scalars, as one safetensors file.

The declared type drives both directions, so bytes can only become what the receiver declared. Tensors are stored under
running numbers; a JSON header says where each belongs. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
import weakref
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from unseen.state import State

__all__ = [
    "TENSOR_TYPES",
    "CodecError",
    "conform",
    "decode",
    "encode",
    "hints_of",
    "notes_in",
    "refuse_unstorable",
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
_READ = frozenset(TENSOR_TYPES.values())
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
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()

    def lay(item: Any, of: Any) -> Any:
        of, _ = without_none(of)
        if item is None:
            return None
        if isinstance(item, Tensor):
            flat = item.detach().cpu().contiguous()
            if flat.data_ptr() in seen:  # safetensors refuses tensors that share memory
                flat = flat.clone()
            seen.add(flat.data_ptr())
            tensors[str(len(tensors))] = flat
            return len(tensors) - 1
        inner = _element(of)
        if inner is not None:
            return {k: lay(v, inner) for k, v in item.items()} if isinstance(item, dict) else [lay(v, inner) for v in item]
        if dataclasses.is_dataclass(of):
            return {name: lay(getattr(item, name), h) for name, h in hints_of(typing.cast(type, of)).items()}
        return item

    kind = hint or type(value)
    conform(value, kind, _name(kind))
    structure = json.dumps(lay(value, kind), separators=(",", ":"))
    data: bytes = safetensors.torch.save(tensors, {_STRUCTURE: structure, **(notes or {})})
    return data


def decode(kind: type[T], data: bytes) -> T:
    """The inverse of `encode`. Tensors are fresh and aligned: an unaligned input changes the last bit of a matrix product."""
    try:
        tensors = safetensors.torch.load(data)
        structure = json.loads(notes_in(data)[_STRUCTURE])
    except (SafetensorError, KeyError, ValueError, RecursionError, TypeError, AttributeError) as error:
        raise CodecError(f"these {len(data)} bytes are not a {_name(kind)}: {error}") from error
    used: set[str] = set()

    def build(item: Any, of: Any, where: str) -> Any:
        of, optional = without_none(of)
        if item is None and optional:
            return None
        if of is Tensor:
            name = str(item)
            if type(item) is not int or name not in tensors or name in used:
                raise CodecError(f"{where} names no tensor of its own")
            used.add(name)
            if tensors[name].dtype not in _READ:
                raise CodecError(f"{where} is of the type {tensors[name].dtype}; expected one of {', '.join(TENSOR_TYPES)}")
            return tensors[name].clone()
        inner = _element(of)
        if inner is not None:
            origin = typing.get_origin(of)
            if not isinstance(item, dict if origin is dict else list):
                raise CodecError(f"{where} is {_got(item)}; expected {_name(of)}")
            if isinstance(item, dict):
                return {k: build(v, inner, f"{where}.{k}") for k, v in item.items()}
            return typing.cast(type, origin)(build(v, inner, f"{where}[{i}]") for i, v in enumerate(item))
        if dataclasses.is_dataclass(of):
            expected = hints_of(typing.cast(type, of))
            if not isinstance(item, dict) or item.keys() != expected.keys():
                found = sorted(item) if isinstance(item, dict) else _got(item)
                raise CodecError(f"{where} holds {found}; expected the fields {sorted(expected)}")
            return typing.cast(type, of)(**{n: build(item[n], h, f"{where}.{n}") for n, h in expected.items()})
        if type(item) is not of:
            raise CodecError(f"{where} is {_got(item)}; expected {_name(of)}")
        return item

    try:
        value = build(structure, kind, _name(kind))
    except (TypeError, RecursionError) as error:
        raise CodecError(f"{_name(kind)}: {error}") from error
    if len(used) != len(tensors):
        raise CodecError(f"{_name(kind)} came with {len(tensors) - len(used)} tensors that it does not name")
    return typing.cast(T, value)


def notes_in(data: bytes) -> dict[str, str]:
    """The text kept beside a value: safetensors' metadata."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return dict(header.get("__metadata__", {}))


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
