"""Letters: only what was signed for this purpose by this key is opened, whatever the bytes."""

from __future__ import annotations

import dataclasses

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.errors import RefusedReply
from unseen.federation.letters import Letter, Sealed, open_letter, seal

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(header=st.dictionaries(st.text(), JSON), payload=st.binary())
def test_what_was_sealed_is_opened(header: dict[str, object], payload: bytes) -> None:
    letter = Letter(header, payload)
    assert open_letter(seal(letter, KEY, "question"), KEY.public_key(), "question", 10**6) == letter


@settings(max_examples=2000)
@given(header=st.text(), payload=st.binary(), signature=st.binary(max_size=80))
def test_garbage_is_refused(header: str, payload: bytes, signature: bytes) -> None:
    with pytest.raises(RefusedReply):
        open_letter(Sealed(header, payload, signature), KEY.public_key(), "answer", 10**6)


@settings(max_examples=1000)
@given(position=st.integers(0), flip=st.integers(1, 255), part=st.sampled_from(["header", "payload", "signature"]))
def test_one_changed_byte_is_refused(position: int, flip: int, part: str) -> None:
    sealed = seal(Letter({"a": [1, 2], "b": "text"}, b"some payload"), KEY, "answer")
    value = getattr(sealed, part)
    raw = bytearray(value.encode("latin-1") if isinstance(value, str) else value)
    raw[position % len(raw)] ^= flip
    changed = raw.decode("latin-1") if isinstance(value, str) else bytes(raw)
    with pytest.raises(RefusedReply):
        open_letter(dataclasses.replace(sealed, **{part: changed}), KEY.public_key(), "answer", 10**6)


def test_another_key_another_purpose_and_too_much_are_refused() -> None:
    sealed = seal(Letter({}, b"1234"), KEY, "answer")
    for key, purpose, most in ((OTHER, "answer", 10), (KEY, "question", 10), (KEY, "answer", 3)):
        with pytest.raises(RefusedReply):
            open_letter(sealed, key.public_key(), purpose, most)  # type: ignore[arg-type]
    not_an_object = Sealed("[]", b"", KEY.sign(b"x"))
    with pytest.raises(RefusedReply, match="signature"):
        open_letter(not_an_object, KEY.public_key(), "answer", 10)
