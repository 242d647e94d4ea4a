"""What server and sites write to each other: a header of plain values, a payload of bytes, both signed.

Whoever carries a message can neither change it nor write one: a site answers only what the federation's server signed for it,
and the server counts only what the asked site signed in answer to that very question.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unseen.errors import RefusedReply

__all__ = ["MOST_HEADER", "Bytes", "Message", "SignedMessage", "open_message", "question_id", "sign"]

MOST_HEADER = 2**20  # characters; the names of a site's memories fit many times over
Purpose = Literal["question", "answer"]
Bytes = bytes | memoryview


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Message:
    """A header (JSON values) and a payload (bytes, possibly none).

    A payload may be sent in two parts, of which the second is the same for several sites. It arrives as one. `rest` is to be called when
    it was sent: a payload that lies in a file then takes no memory, until it is read again.
    """

    header: dict[str, Any]
    payload: Bytes = b""
    prefix: bytes = b""
    rest: Callable[[], None] = _nothing

    @cached_property
    def payload_hash(self) -> bytes:
        """SHA-256. Its signature and its name both rest on it, and a payload may have gigabytes."""
        digest = hashlib.sha256(self.prefix)
        digest.update(self.payload)
        return digest.digest()


@dataclass(frozen=True)
class SignedMessage:
    """A message as it travels."""

    header: str
    payload: Bytes
    signature: bytes
    prefix: bytes = b""
    rest: Callable[[], None] = field(default=_nothing, compare=False)

    def whole(self) -> SignedMessage:
        """The same, with its payload in one part."""
        return replace(self, payload=b"".join((self.prefix, self.payload)), prefix=b"") if self.prefix else self


def sign(message: Message, key: Ed25519PrivateKey, purpose: Purpose) -> SignedMessage:
    header = json.dumps(message.header, separators=(",", ":"), allow_nan=False)
    return SignedMessage(
        header, message.payload, key.sign(_signed_text(header, message.payload_hash, purpose)), message.prefix, message.rest
    )


def question_id(message: Message) -> str:
    """The name of a question: of all that it says but for the receipt, which tells of earlier answers. The same question has one name."""
    header = {key: value for key, value in message.header.items() if key != "receipt"}
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(hashlib.sha256(text.encode()).digest() + message.payload_hash).hexdigest()


def open_message(signed: SignedMessage, key: Ed25519PublicKey, purpose: Purpose, most_bytes: int) -> Message:
    """The message, or RefusedReply: too large, not signed by `key` for this purpose, or no JSON object."""
    if len(signed.header) > MOST_HEADER or len(signed.prefix) + len(signed.payload) > most_bytes:
        raise RefusedReply(f"{len(signed.header) + len(signed.prefix) + len(signed.payload):,} bytes; at most {most_bytes:,} are taken")
    signed = signed.whole()
    message = Message({}, signed.payload)
    try:
        key.verify(signed.signature, _signed_text(signed.header, message.payload_hash, purpose))
        header = json.loads(signed.header)
    except (InvalidSignature, UnicodeEncodeError):
        raise RefusedReply("the signature does not fit") from None
    except (ValueError, RecursionError):
        raise RefusedReply("the header cannot be read") from None
    if not isinstance(header, dict):
        raise RefusedReply("the header cannot be read")
    message.header.update(header)
    return message


def _signed_text(header: str, payload_hash: bytes, purpose: Purpose) -> bytes:
    return b"unseen message 1 " + purpose.encode() + hashlib.sha256(header.encode()).digest() + payload_hash
