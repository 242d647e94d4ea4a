"""The words of a sum: numbers in fixed point as integers modulo 2^32 and 2^64, and the streams of random words that mask them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from unseen.errors import RefusedReply

__all__ = ["Form", "Words", "add_streams"]

Form = tuple[str, int, int]  # the layout, and how many words of either kind

_CHUNK = 2**18  # bytes at once, so that a mask never leaves the processor's cache
_ALIGNED = 64
_MOST_HEADER = 64 * 2**20


@dataclass(frozen=True)
class Words:
    """What one site puts into a sum, or the sum itself. `layout` says in JSON what the words stand for, the same at every site."""

    layout: str
    wide: NDArray[np.uint64]
    narrow: NDArray[np.uint32]

    @property
    def form(self) -> Form:
        return self.layout, len(self.wide), len(self.narrow)

    def add(self, other: Words) -> None:
        """Modulo 2^64 and 2^32, in place."""
        np.add(self.wide, other.wide, out=self.wide)
        np.add(self.narrow, other.narrow, out=self.narrow)

    def to_bytes(self) -> bytes:
        return b"".join(self.in_parts())

    def in_parts(self) -> tuple[bytes | memoryview, ...]:
        """The length of the header in 8 bytes, the header in JSON with spaces to a multiple of 64, then both kinds of words."""
        header = json.dumps({"layout": self.layout, "wide": len(self.wide), "narrow": len(self.narrow)}).encode()
        header += b" " * (-(8 + len(header)) % _ALIGNED)
        wide, narrow = self.wide.astype("<u8", copy=False), self.narrow.astype("<u4", copy=False)
        return len(header).to_bytes(8, "little") + header, wide.view(np.uint8).data, narrow.view(np.uint8).data

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Words:
        """Views of `data`, which are not to be changed; RefusedReply where it is no words."""
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > min(_MOST_HEADER, len(data) - 8):
            raise RefusedReply("masked words that cannot be read")
        try:
            header = json.loads(bytes(data[8 : 8 + length]))
            layout, wide, narrow = header["layout"], header["wide"], header["narrow"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RefusedReply("masked words that cannot be read") from None
        at = 8 + length
        if not (isinstance(layout, str) and type(wide) is int and type(narrow) is int and wide >= 0 and narrow >= 0):
            raise RefusedReply("masked words whose header is of another kind")
        if len(data) != at + 8 * wide + 4 * narrow:
            raise RefusedReply("masked words of another number than their header says")
        return cls(layout, np.frombuffer(data, "<u8", wide, at), np.frombuffer(data, "<u4", narrow, at + 8 * wide))

    def own(self) -> Words:
        """These words, to be changed: where they are views of bytes that nobody else reads and that may be written to, these very bytes."""
        return self if self.wide.flags.writeable and self.narrow.flags.writeable else self.copy()

    def copy(self) -> Words:
        return Words(self.layout, self.wide.astype(np.uint64), self.narrow.astype(np.uint32))


def add_streams(words: Words, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
    """Add, or take off, in place, the random words that each key of 32 bytes gives: AES-256 in counter mode, from block 0."""
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    nothing, random = bytes(_CHUNK), bytearray(_CHUNK + 15)
    for chunk in _chunks(words):
        size = chunk.nbytes
        mask = np.frombuffer(random, chunk.dtype, len(chunk))
        for stream, change in streams:
            stream.update_into(memoryview(nothing)[:size], random)
            change(chunk, mask, out=chunk)


def _chunks(words: Words) -> Iterator[NDArray[Any]]:
    for part in (words.wide, words.narrow):
        step = _CHUNK // part.itemsize
        for at in range(0, len(part), step):
            yield part[at : at + step]


def _stream(key: bytes) -> Any:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
