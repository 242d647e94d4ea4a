"""What server and sites write to each other: a header of plain values, a payload of bytes, both signed.

Whoever carries a letter can neither change it nor write one: a site answers only what the federation's server signed for it,
and the server counts only what the asked site signed in answer to that very question.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unseen.errors import RefusedReply

__all__ = ["MOST_HEADER", "Letter", "Sealed", "open_letter", "seal"]

MOST_HEADER = 4 * 2**20  # characters; an experiment and the names of a site's memories fit many times over
Purpose = Literal["question", "answer"]


@dataclass(frozen=True)
class Letter:
    """A header (JSON values) and a payload (bytes, possibly none)."""

    header: dict[str, Any]
    payload: bytes = b""


@dataclass(frozen=True)
class Sealed:
    """A letter as it travels."""

    header: str
    payload: bytes
    signature: bytes


def seal(letter: Letter, key: Ed25519PrivateKey, purpose: Purpose) -> Sealed:
    header = json.dumps(letter.header, separators=(",", ":"), allow_nan=False)
    return Sealed(header, letter.payload, key.sign(_digest(header, letter.payload, purpose)))


def open_letter(sealed: Sealed, key: Ed25519PublicKey, purpose: Purpose, most_bytes: int) -> Letter:
    """The letter, or RefusedReply: too large, not signed by `key` for this purpose, or no JSON object."""
    if len(sealed.header) > MOST_HEADER or len(sealed.payload) > most_bytes:
        raise RefusedReply(f"{len(sealed.header) + len(sealed.payload):,} bytes; at most {most_bytes:,} are taken")
    try:
        key.verify(sealed.signature, _digest(sealed.header, sealed.payload, purpose))
        header = json.loads(sealed.header)
    except (InvalidSignature, UnicodeEncodeError):
        raise RefusedReply("the signature does not fit") from None
    except (ValueError, RecursionError):
        raise RefusedReply("the header cannot be read") from None
    if not isinstance(header, dict):
        raise RefusedReply("the header cannot be read")
    return Letter(header, sealed.payload)


def _digest(header: str, payload: bytes, purpose: Purpose) -> bytes:
    parts = (hashlib.sha256(header.encode()).digest(), hashlib.sha256(payload).digest())
    return b"unseen letter 1 " + purpose.encode() + b"".join(parts)
