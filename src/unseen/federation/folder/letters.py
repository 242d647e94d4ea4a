"""A letter: one file with a message that its receiver alone can read.

Outside stands in clear what is needed to deliver it, signed by its sender, so that nothing of a stranger's file is read further. Inside
is a signed message, encrypted for the receiver (X25519, HKDF, AES-256-GCM) in pieces, each with a tag of its own. A letter says how long
it is: one that has not arrived whole is known before it is opened.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Literal

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from unseen.engines.frames import room_for
from unseen.federation.keys import public_hex, read_public_box
from unseen.federation.messages import MOST_HEADER, Bytes, SignedMessage

__all__ = ["MOST_LETTER", "Envelope", "LetterKind", "UnreadableLetter", "open_letter", "read_envelope", "write_letter"]

LetterKind = Literal["question", "answer", "failure"]  # a failure brings the reason why there is no answer

_FIRST = b"unseen letter 1\n"
_SIGNED, _DERIVED = b"unseen letter 1 envelope ", b"unseen letter 1 body "  # what a signature and a key are for
_MOST_OUTSIDE, _SIGNATURE, _TAG = 2000, 64, 16  # bytes
_PIECE = 2**20  # bytes encrypted at once
_MOST_PAYLOAD = 2**31 - 1
_MOST_INSIDE = MOST_HEADER + 2 + 1000
MOST_LETTER = _MOST_PAYLOAD + _MOST_INSIDE + _TAG * (_MOST_PAYLOAD // _PIECE + 2) + _MOST_OUTSIDE + 100
_TEXT, _KEY = re.compile(r"[A-Za-z0-9._-]{1,100}"), re.compile(r"[0-9a-f]{64}")


class UnreadableLetter(Exception):
    """Not a letter from this sender to this receiver, or not all of it."""


@dataclass(frozen=True)
class Envelope:
    """What stands outside. `site` is the receiver of a question, and the sender of everything else."""

    kind: LetterKind
    federation: str
    site: str
    name: str
    inside: int  # bytes of the message's header and signature
    payload: int  # bytes
    key: str  # of this letter alone: the public half, hexadecimal

    def size(self, outside: int) -> int:
        """Bytes of the whole file."""
        pieces = -(-self.payload // _PIECE)
        return len(_FIRST) + 2 + outside + _SIGNATURE + self.inside + _TAG + self.payload + _TAG * pieces


def write_letter(
    stream: BinaryIO,
    kind: LetterKind,
    address: tuple[str, str, str],  # federation, site, and the letter's name
    message: SignedMessage | str,
    sender: Ed25519PrivateKey,
    receiver: X25519PublicKey,
) -> None:
    own = X25519PrivateKey.generate()
    inside, parts = (message.encode(), ()) if isinstance(message, str) else (_inside(message), (message.prefix, message.payload))
    envelope = Envelope(kind, *address, len(inside), sum(map(len, parts)), public_hex(own))
    outside = json.dumps(asdict(envelope), separators=(",", ":")).encode()
    cipher = _cipher(own.exchange(receiver), outside)
    stream.write(_FIRST + struct.pack(">H", len(outside)) + outside + sender.sign(_SIGNED + outside))
    stream.write(cipher.encrypt(_nonce(0), inside, None))
    for number, piece in enumerate(_cut(parts), 1):
        stream.write(cipher.encrypt(_nonce(number), piece, None))


def _cut(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    """The pieces of a payload that comes in parts."""
    left = b""
    for one in parts:
        part = memoryview(one)
        if left:
            left, part = b"".join((left, part[: _PIECE - len(left)])), part[_PIECE - len(left) :]
            if len(left) < _PIECE:
                continue
            yield left
        whole = len(part) // _PIECE * _PIECE
        yield from (part[at : at + _PIECE] for at in range(0, whole, _PIECE))
        left = bytes(part[whole:])
    if left:
        yield left


def read_envelope(stream: BinaryIO, size: int, sender: Ed25519PublicKey) -> tuple[Envelope, bytes]:
    """What stands outside a letter of `size` bytes, checked, and its very bytes; the stream then stands before what is inside."""
    first = stream.read(len(_FIRST) + 2)
    if len(first) < len(_FIRST) + 2 or not first.startswith(_FIRST):
        raise UnreadableLetter("it is no letter, or has not arrived whole")
    (length,) = struct.unpack(">H", first[-2:])
    outside, signature = stream.read(min(length, _MOST_OUTSIDE)), stream.read(_SIGNATURE)
    try:
        sender.verify(signature, _SIGNED + outside)
        envelope = Envelope(**json.loads(outside))
    except (InvalidSignature, ValueError, TypeError, RecursionError):
        raise UnreadableLetter("it was not signed by its sender, or has not arrived whole") from None
    if not _is_fit(envelope):
        raise UnreadableLetter("what stands outside cannot be read")
    if envelope.size(len(outside)) != size:
        raise UnreadableLetter(f"it has {size:,} of {envelope.size(len(outside)):,} bytes")
    return envelope, outside


def open_letter(stream: BinaryIO, envelope: Envelope, outside: bytes, receiver: X25519PrivateKey) -> SignedMessage | str:
    """What is inside, once the envelope was read."""
    try:
        cipher = _cipher(receiver.exchange(read_public_box(envelope.key)), outside)
        inside = cipher.decrypt(_nonce(0), stream.read(envelope.inside + _TAG), None)
        whole = room_for(envelope.payload)
        for number, start in enumerate(range(0, envelope.payload, _PIECE), 1):
            size = min(_PIECE, envelope.payload - start)
            whole[start : start + size] = cipher.decrypt(_nonce(number), stream.read(size + _TAG), None)
        if envelope.kind == "failure":
            return inside.decode()
        (length,) = struct.unpack_from(">H", inside)
        return SignedMessage(inside[2 + length :].decode(), whole, inside[2 : 2 + length])
    except (InvalidTag, ValueError, struct.error):
        raise UnreadableLetter("it cannot be decrypted here, or has not arrived whole") from None


def _is_fit(envelope: Envelope) -> bool:
    kinds: dict[str, Any] = {"kind": str, "federation": str, "site": str, "name": str, "inside": int, "payload": int, "key": str}
    if any(type(getattr(envelope, name)) is not kind for name, kind in kinds.items()):
        return False
    texts = all(_TEXT.fullmatch(text) for text in (envelope.kind, envelope.federation, envelope.site, envelope.name))
    sizes = 0 <= envelope.inside <= _MOST_INSIDE and 0 <= envelope.payload <= _MOST_PAYLOAD
    return texts and sizes and _KEY.fullmatch(envelope.key) is not None


def _inside(message: SignedMessage) -> bytes:
    return struct.pack(">H", len(message.signature)) + message.signature + message.header.encode()


def _cipher(secret: bytes, outside: bytes) -> AESGCM:
    """A key for this letter alone. It depends on all that stands outside, the letter's own public key included."""
    info = _DERIVED + hashlib.sha256(outside).digest()
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret))


def _nonce(number: int) -> bytes:
    return struct.pack(">IQ", 0, number)
