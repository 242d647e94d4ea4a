"""Values to bytes and back: what comes out is what went in, and bytes that are anything else are refused."""

from __future__ import annotations

import gc
import json
import math
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.codec import CodecError, conform, decode, decode_file, encode, notes_in, refuse_unstorable, tensors_in
from unseen.state import State, same_bits

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@dataclass(frozen=True)
class Inner:
    weight: Tensor
    note: str


@dataclass(frozen=True)
class Outer:
    model: State
    history: list[Inner]
    scores: dict[str, float]
    nested: dict[str, State]
    pair: tuple[float, ...]
    flag: bool
    count: int
    maybe: Tensor | None = None
    inner: Inner | None = field(default=None)


names = st.text(max_size=8)
tensors = st.builds(
    lambda shape, dtype, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 8).to(dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
states = st.dictionaries(names, tensors, max_size=3)
inners = st.builds(Inner, tensors, names)
floats = st.floats(allow_nan=False)
outers = st.builds(
    Outer,
    model=states,
    history=st.lists(inners, max_size=2),
    scores=st.dictionaries(names, floats, max_size=3),
    nested=st.dictionaries(names, states, max_size=2),
    pair=st.lists(floats, max_size=3).map(tuple),
    flag=st.booleans(),
    count=st.integers(),
    maybe=st.none() | tensors,
    inner=st.none() | inners,
)


def same(a: object, b: object) -> bool:
    """Equality that looks into tensors and never calls == on them."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and same_bits({"": a}, {"": b})
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Inner | Outer):
        return type(a) is type(b) and all(same(v, getattr(b, k)) for k, v in vars(a).items())
    return type(a) is type(b) and a == b


@given(outers)
def test_round_trip(value: Outer) -> None:
    assert same(decode(Outer, encode(value)), value)


@given(outers)
def test_a_file_is_read_as_its_bytes_are(value: Outer) -> None:
    data = encode(value)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "value"
        file.write_bytes(data)
        assert same(decode_file(Outer, file), value)
        for cut in (0, 7, len(data) // 2, len(data) - 1):
            file.write_bytes(data[:cut])
            with pytest.raises(CodecError):
                decode_file(Outer, file)


def test_nan_infinity_and_negative_zero_survive() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    back = decode(Inner, encode(Inner(odd, "")))
    assert same_bits({"w": back.weight}, {"w": odd})


def test_decoded_tensors_are_fresh_and_aligned() -> None:
    data = encode(Inner(torch.arange(5.0), "x" * 3))
    weight = decode(Inner, data).weight
    assert weight.data_ptr() % 64 == 0
    weight += 1
    assert decode(Inner, data).weight[0] == 0


@given(outers)
def test_the_bytes_are_those_of_a_safetensors_file(value: Outer) -> None:
    """What the library writes of the same tensors, byte for byte; so whoever reads such files reads these."""
    data = encode(value)
    tensors = safetensors.torch.load(data)
    assert data == safetensors.torch.save(tensors, notes_in(data))


def rewritten(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file whose header says something else."""
    first = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:first])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[first:]


@pytest.mark.parametrize(
    "about",
    [
        {"data_offsets": [0, 15]},
        {"data_offsets": [0, 17]},
        {"data_offsets": [4, 16]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [-16, 0]},
        {"data_offsets": [0, 16.0]},
        {"data_offsets": [0, True]},
        {"data_offsets": [0]},
        {"shape": [5]},
        {"shape": [-4]},
        {"shape": [2**62, 4]},
        {"shape": [4.0]},
        {"shape": "4"},
        {"shape": None},
        {"dtype": "F64"},
        {"dtype": "C64"},
        {"dtype": "F8_E4M3"},
        {"dtype": 3},
        {"more": 1},
    ],
)
def test_a_tensor_that_lies_elsewhere_than_in_the_file_is_refused(about: dict[str, Any]) -> None:
    data = encode(Inner(torch.arange(4.0), "four"))
    assert same(decode(Inner, rewritten(data, lambda header: None)), Inner(torch.arange(4.0), "four"))
    with pytest.raises(CodecError):
        decode(Inner, rewritten(data, lambda header: header["0"].update(about)))


def test_tensors_that_overlap_or_leave_a_gap_are_refused() -> None:
    value = Outer({"a": torch.arange(4.0), "b": torch.arange(4.0)}, [], {}, {}, (), True, 0)
    for offsets in ([0, 16], [8, 24], [20, 36], [16, 28]):
        with pytest.raises(CodecError):
            decode(Outer, rewritten(encode(value), lambda header, offsets=offsets: header["1"].update(data_offsets=offsets)))
    with pytest.raises(CodecError):
        decode(Outer, encode(value) + b"more")


def test_a_header_longer_than_the_file_is_refused() -> None:
    data = encode(Inner(torch.arange(4.0), ""))
    for length in (len(data), 2**40, 2**64 - 1):
        with pytest.raises(CodecError):
            decode(Inner, length.to_bytes(8, "little") + data[8:])


def test_tensors_that_share_memory_are_stored_apart() -> None:
    shared = torch.arange(4.0)
    back = decode(Outer, encode(Outer({"a": shared, "b": shared}, [], {}, {}, (), True, 0)))
    assert torch.equal(back.model["a"], shared) and torch.equal(back.model["b"], shared)


def test_a_transposed_tensor_keeps_its_values() -> None:
    tensor = torch.arange(6.0).view(2, 3).T
    assert torch.equal(decode(Inner, encode(Inner(tensor, ""))).weight, tensor)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(Outer, data)


@given(outers, st.data())
def test_a_cut_message_is_refused(value: Outer, data: st.DataObject) -> None:
    whole = encode(value)
    with pytest.raises(CodecError):
        decode(Outer, whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    "structure",
    [
        {"weight": 0, "note": 3},
        {"weight": 0},
        {"weight": 0, "note": "", "extra": 1},
        {"weight": 7, "note": ""},
        {"weight": True, "note": ""},
        {"weight": None, "note": ""},
        [],
        None,
        "weight",
    ],
)
def test_a_structure_that_was_not_declared_is_refused(structure: object) -> None:
    data = safetensors.torch.save({"0": torch.zeros(1)}, {"structure": json.dumps(structure)})
    with pytest.raises(CodecError):
        decode(Inner, data)


def test_a_tensor_that_nothing_names_is_refused() -> None:
    data = safetensors.torch.save({"0": torch.zeros(1), "1": torch.zeros(9)}, {"structure": json.dumps({"weight": 0, "note": ""})})
    with pytest.raises(CodecError, match="does not name"):
        decode(Inner, data)


def test_one_tensor_cannot_be_named_twice() -> None:
    structure = {
        "model": {"a": 0, "b": 0},
        "history": [],
        "scores": {},
        "nested": {},
        "pair": [],
        "flag": True,
        "count": 1,
        "maybe": None,
        "inner": None,
    }
    data = safetensors.torch.save({"0": torch.zeros(1)}, {"structure": json.dumps(structure)})
    with pytest.raises(CodecError, match="no tensor of its own"):
        decode(Outer, data)


def test_notes_lie_beside_the_value() -> None:
    assert notes_in(encode(Inner(torch.zeros(1), ""), notes={"round": "3"}))["round"] == "3"


def test_types_that_cannot_be_stored_are_refused_by_name() -> None:
    @dataclass(frozen=True)
    class Bad:
        when: complex

    with pytest.raises(TypeError, match=r"Bad\.when"):
        refuse_unstorable(Bad, "Bad")


def test_values_are_checked_against_their_types() -> None:
    with pytest.raises(TypeError, match=r"scores\['a'\]"):
        conform({"a": 1}, dict[str, float], "scores")
    with pytest.raises(TypeError, match="expected int"):
        conform(True, int, "count")


def test_every_tensor_is_found_with_its_path() -> None:
    value = Outer({"w": torch.zeros(1)}, [Inner(torch.zeros(2), "")], {}, {"a": {"b": torch.zeros(3)}}, (), True, 0)
    assert [path for path, _ in tensors_in(value, Outer)] == ["model.w", "history.0.weight", "nested.a.b"]


def test_neither_way_keeps_a_model_in_memory() -> None:
    """A cycle would keep it until the collector comes round: at a server, one model for every site that answered."""
    weight = torch.arange(4.0)
    gc.disable()
    try:
        kept = weakref.ref(weight)
        data = np.frombuffer(encode(Inner(weight, "")), np.uint8).copy()
        read = weakref.ref(data)
        decode(Inner, memoryview(data))
        del weight, data
        assert kept() is None and read() is None
    finally:
        gc.enable()
