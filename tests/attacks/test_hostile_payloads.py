"""A hostile site against the server: bytes that are no answer. Each is refused: no other exception, no number that is not finite."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.codec import TENSOR_TYPES, CodecError, encode
from unseen.engines import checking
from unseen.engines.checking import read_answer
from unseen.errors import RefusedReply
from unseen.methods.elcfs import Spectra
from unseen.parts.combining import Up
from unseen.payload import declarations, refuse_unusable

FINE = {"model": {"w": 0}, "samples": 1, "perturbed": None}
ONE = b"\0\0\0\0"


def file(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def said(structure: object) -> dict[str, Any]:
    return {"__metadata__": {"structure": structure if isinstance(structure, str) else json.dumps(structure)}}


def tensor(dtype: str = "F32", shape: tuple[int, ...] = (1,), offsets: tuple[int, int] = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def up(changes: Any = None, body: bytes = ONE, **tensors: dict[str, Any]) -> bytes:
    structure = changes if isinstance(changes, str) else {**FINE, **(changes or {})}
    return file({**said(structure), **({k[1:]: v for k, v in tensors.items()} or {"0": tensor()})}, body)


def number(text: str) -> bytes:
    return up('{"model":{"w":0},"samples":' + text + ',"perturbed":null}')


GOOD = up(body=struct.pack("<64f", *range(64)), _0=tensor(shape=(64,), offsets=(0, 256)))
PAYLOADS: dict[str, bytes] = {
    "nothing": b"",
    "eight zeros": b"\0" * 8,
    "a header of 2^64 bytes": b"\xff" * 8,
    "a header of 2^40 bytes": struct.pack("<Q", 2**40) + b"{}",
    "no JSON": file(b"{" * 50),
    "a header of 20 MB of spaces": file(b"{}" + b" " * 20_000_000),
    "a pickle": b"\x80\x04\x95" + b"\0" * 30,
    "10^6 lists in each other": file(said("[" * 10**6 + "]" * 10**6)),
    "10^5 objects in each other": file(said('{"a":' * 10**5 + "1" + "}" * 10**5)),
    "no structure": file({"0": tensor()}, ONE),
    "a number as structure": up("5"),
    "samples NaN": number("NaN"),
    "samples 1e400": number("1e400"),
    "samples of 5,000 digits": number("1" * 5000),
    "a shape that overflows": up(_0=tensor(shape=(2**62, 4))),
    "a shape of 2^63 x 2": up(_0=tensor(shape=(2**63, 2))),
    "a negative shape": up(_0=tensor(shape=(-1,))),
    "offsets the wrong way round": up(_0=tensor(offsets=(4, 0))),
    "offsets beyond the end": up(_0=tensor(offsets=(0, 4000))),
    "two tensors in one place": up({"model": {"w": 0, "v": 1}}, _0=tensor(), _1=tensor()),
    "a hole": up(body=ONE * 2, _0=tensor(offsets=(4, 8))),
    "an unknown type": up(_0=tensor("Q99")),
    "4-bit floats": up(_0=tensor("F4", (8,))),
    "6-bit floats": up(body=b"\0" * 3, _0=tensor("F6_E2M3", (4,), (0, 3))),
    "8-bit exponents": up(_0=tensor("F8_E8M0", (4,))),
    "a tensor named twice": up({"model": {"w": 0, "v": 0}}),
    "a tensor left over": up(body=ONE * 2, _0=tensor(), _1=tensor(offsets=(4, 8))),
    "tensor number -1": up({"model": {"w": -1}}),
    "tensor number true": up({"model": {"w": True}}, _1=tensor()),
    "a field too many": up({"x": 1}),
    "a field too few": file({**said({"model": {"w": 0}}), "0": tensor()}, ONE),
    "NaN": up(body=struct.pack("<f", float("nan"))),
    "infinity": up(body=struct.pack("<f", float("inf"))),
    "8-bit floats": up(_0=tensor("F8_E4M3", (4,))),
    "8-bit floats, NaN": up(body=b"\x7f" * 4, _0=tensor("F8_E4M3", (4,))),
    "8-bit floats, wide, infinity": up(body=b"\x7c" * 4, _0=tensor("F8_E5M2", (4,))),
    "complex": up(body=b"\0" * 8, _0=tensor("C64", (1,), (0, 8))),
    "complex NaN": up(body=b"\xff" * 8, _0=tensor("C64", (1,), (0, 8))),
    "unsigned 16 bits": up(_0=tensor("U16", (2,))),
    "unsigned 64 bits": up(body=b"\xff" * 8, _0=tensor("U64", (1,), (0, 8))),
}


def test_an_honest_answer_is_taken() -> None:
    assert set(FINE) == set(declarations(Up))
    answer = read_answer(Up, GOOD)
    assert isinstance(answer, Up) and answer.model["w"].tolist() == [float(n) for n in range(64)]


@pytest.mark.parametrize("what", PAYLOADS)
def test_strange_bytes_are_refused(what: str) -> None:
    with pytest.raises(RefusedReply):
        read_answer(Up, PAYLOADS[what])


@settings(max_examples=1000)
@given(changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4), cut=st.integers(0) | st.none())
def test_changed_bytes_are_refused_or_plain_numbers(changes: list[tuple[int, int]], cut: int | None) -> None:
    payload = bytearray(GOOD)
    for position, value in changes:
        payload[position % len(payload)] = value
    try:
        answer = read_answer(Up, bytes(payload if cut is None else payload[: cut % len(payload)]))
    except RefusedReply:
        return
    assert isinstance(answer, Up)
    assert all(t.dtype in TENSOR_TYPES.values() and bool(torch.isfinite(t).all()) for t in answer.model.values())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_spectra_of_other_types_are_refused_with_the_reason(dtype: torch.dtype, value: float) -> None:
    spectra = Spectra(low=torch.full((2, 3, 1, 1), value).to(dtype))
    with pytest.raises(RefusedReply, match=r"Spectra\.low is of the type"):
        read_answer(Spectra, safetensors.torch.save({"0": spectra.low}, {"structure": '{"low":0}'}))
    with pytest.raises(TypeError, match="a tensor of the type"):
        spectra.to_bytes()
    with pytest.raises(RefusedReply, match="low is of the type"):  # within one process nothing is decoded
        refuse_unusable(spectra, Spectra)


def test_sparse_tensors_do_not_travel() -> None:
    spectra = Spectra(low=torch.eye(3).to_sparse())
    with pytest.raises(RefusedReply, match="does not travel"):
        refuse_unusable(spectra, Spectra)


def test_every_plain_type_is_read_as_it_was() -> None:
    for dtype in TENSOR_TYPES.values():
        low = torch.ones(2, dtype=dtype)
        assert torch.equal(read_answer(Spectra, encode(Spectra(low=low))).low, low)  # type: ignore[attr-defined]


def test_whatever_goes_wrong_while_reading_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("a library's"), MemoryError(), RecursionError(), AssertionError(), NotImplementedError(), CodecError("x")):
        monkeypatch.setattr(checking, "decode", lambda *_, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(RefusedReply, match=f"not a Up: {type(error).__name__}"):
            read_answer(Up, GOOD)
