"""Messages: only what was signed for this purpose by this key is opened, whatever the bytes."""

from __future__ import annotations

import dataclasses

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.errors import RefusedReply
from unseen.federation.messages import Message, SignedMessage, open_message, sign

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(header=st.dictionaries(st.text(), JSON, max_size=5), payload=st.binary())
def test_what_was_signed_is_opened(header: dict[str, object], payload: bytes) -> None:
    message = Message(header, payload)
    assert open_message(sign(message, KEY, "question"), KEY.public_key(), "question", 10**6) == message


@settings(max_examples=500)
@given(header=st.text(), payload=st.binary(), signature=st.binary(max_size=80))
def test_garbage_is_refused(header: str, payload: bytes, signature: bytes) -> None:
    with pytest.raises(RefusedReply):
        open_message(SignedMessage(header, payload, signature), KEY.public_key(), "answer", 10**6)


@settings(max_examples=500)
@given(position=st.integers(0), flip=st.integers(1, 255), part=st.sampled_from(["header", "payload", "signature"]))
def test_one_changed_byte_is_refused(position: int, flip: int, part: str) -> None:
    signed = sign(Message({"a": [1, 2], "b": "text"}, b"some payload"), KEY, "answer")
    value = getattr(signed, part)
    raw = bytearray(value.encode("latin-1") if isinstance(value, str) else value)
    raw[position % len(raw)] ^= flip
    changed = raw.decode("latin-1") if isinstance(value, str) else bytes(raw)
    with pytest.raises(RefusedReply):
        open_message(dataclasses.replace(signed, **{part: changed}), KEY.public_key(), "answer", 10**6)


def test_another_key_another_purpose_and_too_much_are_refused() -> None:
    signed = sign(Message({}, b"1234"), KEY, "answer")
    for key, purpose, most in ((OTHER, "answer", 10), (KEY, "question", 10), (KEY, "answer", 3)):
        with pytest.raises(RefusedReply):
            open_message(signed, key.public_key(), purpose, most)  # type: ignore[arg-type]
    not_an_object = SignedMessage("[]", b"", KEY.sign(b"x"))
    with pytest.raises(RefusedReply, match="signature"):
        open_message(not_an_object, KEY.public_key(), "answer", 10)
