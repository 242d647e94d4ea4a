"""Words and the streams that mask them, against AES block by block; bytes that are no words."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import RefusedReply
from unseen.federation.sums.words import Words, add_streams


def words(wide: int, narrow: int, seed: int = 0) -> Words:
    rng = np.random.default_rng(seed)
    return Words("{}", rng.integers(0, 2**64, wide, dtype=np.uint64), rng.integers(0, 2**32, narrow, dtype=np.uint32))


def blocks(key: bytes, size: int) -> bytes:
    """The counter in each block, encrypted by itself."""
    one = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return b"".join(one.update(counter.to_bytes(16, "big")) for counter in range(-(-size // 16)))[:size]


@given(st.integers(0, 5), st.integers(0, 30), st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_mask_is_the_words_of_counter_blocks(wide: int, narrow: int, one: bytes, other: bytes) -> None:
    plain = words(wide, narrow)
    masked = plain.copy()
    add_streams(masked, [one], [other])
    size = 8 * wide + 4 * narrow
    for part, before, bits, at in ((masked.wide, plain.wide, 64, 0), (masked.narrow, plain.narrow, 32, 8 * wide)):
        length = bits // 8
        for number, word in enumerate(part.tolist()):
            where = slice(at + number * length, at + (number + 1) * length)
            plus, minus = (int.from_bytes(blocks(key, size)[where], "little") for key in (one, other))
            assert word == (int(before[number]) + plus - minus) % 2**bits


def test_masks_go_on_over_many_chunks_and_cancel() -> None:
    plain, keys = words(7, 150_001), [hashlib.sha256(bytes([n])).digest() for n in range(3)]
    masked = plain.copy()
    add_streams(masked, keys)
    stream = np.frombuffer(blocks(keys[0], 8 * 7 + 4 * 150_001), "<u4")[14:]
    rest = masked.copy()
    add_streams(rest, minus=keys[1:])
    assert np.array_equal(rest.narrow - plain.narrow, stream)
    add_streams(masked, minus=keys)
    assert np.array_equal(masked.wide, plain.wide) and np.array_equal(masked.narrow, plain.narrow)


def test_words_travel_as_they_are_and_as_short_as_float32() -> None:
    plain = words(3, 1000)
    data = plain.to_bytes()
    back = Words.from_bytes(data)
    assert back.layout == "{}" and np.array_equal(back.wide, plain.wide) and np.array_equal(back.narrow, plain.narrow)
    assert len(data) <= 4 * 1000 + 8 * 3 + 128


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedReply):
        Words.from_bytes(data)


@given(st.integers(0, 400), st.integers(0, 255))
def test_changed_or_cut_bytes_are_words_or_refused(at: int, value: int) -> None:
    data = words(2, 20).to_bytes()
    at %= len(data)
    for other in (data[:at], data[:at] + bytes([value]) + data[at + 1 :], data + b"0"):
        try:
            read = Words.from_bytes(other)
        except RefusedReply:
            continue
        assert len(read.wide) == 2 and len(read.narrow) == 20


@pytest.mark.parametrize(
    "header", [b"[]", b'{"layout":1,"wide":0,"narrow":0}', b'{"layout":"","wide":-1,"narrow":2}', b'{"layout":"","wide":true,"narrow":0}']
)
def test_headers_of_another_kind_are_refused(header: bytes) -> None:
    with pytest.raises(RefusedReply):
        Words.from_bytes(len(header).to_bytes(8, "little") + header)
