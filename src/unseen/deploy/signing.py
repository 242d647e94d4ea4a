"""Who made a model: the signature under its card (Ed25519).

The card holds the SHA-256 of the model's file, so whoever signs the card signs both. Any key that Unseen made can sign: that of a
federation's server, or of a site. A signature says that nothing was changed since; whether its key is the right one, only the reader
can know. A name in it is what the signer calls itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.errors import BadInput

__all__ = ["ModelSigner", "expected_keys", "refuse_other_signer", "sign_card", "signer_of"]

_KEY, _VALUE, _HASH = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}"), re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_LONGEST_NAME = 200
_LARGEST_FILE = 4 * 10**6  # of keys


@dataclass(frozen=True)
class ModelSigner:
    """Whose key signed a card."""

    key: str  # public, 64 hexadecimal digits
    name: str = ""  # as it calls itself

    @property
    def fingerprint(self) -> str:
        """128 bits of a SHA-256, for two people to compare by telephone.

        >>> ModelSigner("00" * 32).fingerprint
        '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20'
        """
        digits = hashlib.sha256(bytes.fromhex(self.key)).hexdigest()
        return " ".join(digits[start : start + 4] for start in range(0, 32, 4))

    def __str__(self) -> str:
        return f"signed by {self.fingerprint}" + (f" ({self.name})" if self.name else "")


def sign_card(values: Mapping[str, Any], markdown: str, key: Path) -> dict[str, Any]:
    """The card's values with a signature over all of them and over card.md. `key`: a federation's or a site's folder, or a PEM file."""
    _refuse_without_library()
    from unseen.federation.keys import read_signing

    file, name = _key_file(key)
    private = read_signing(file)
    note = {"key": private.public_key().public_bytes_raw().hex(), "name": name[:_LONGEST_NAME], "card.md": _hash(markdown.encode())}
    return {**values, "signature": {**note, "value": private.sign(_signed_bytes({**values, "signature": note})).hex()}}


def refuse_unusable_key(key: Path) -> None:
    """BadInput where `sign_card` could not sign with this key."""
    _refuse_without_library()
    from unseen.federation.keys import read_signing

    read_signing(_key_file(key)[0])


def signer_of(values: Mapping[str, Any], markdown: bytes | None) -> ModelSigner | None:
    """Who signed the card; None where nobody did. BadInput where the signature does not fit the card, or card.md."""
    note = values.get("signature")
    if not note:
        return None
    words = {"key": _KEY, "value": _VALUE, "card.md": _HASH}
    if not isinstance(note, Mapping) or note.keys() != {*words, "name"} or not isinstance(note["name"], str):
        raise BadInput("it has a signature that is none")
    if len(note["name"]) > _LONGEST_NAME or not all(isinstance(note[w], str) and form.fullmatch(note[w]) for w, form in words.items()):
        raise BadInput("it has a signature that is none")
    _refuse_without_library()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from unseen.federation.keys import anybody_can_sign_for

    if anybody_can_sign_for(note["key"]):
        raise BadInput("its signature is by a key for which anybody can sign")
    covered = {**values, "signature": {k: v for k, v in note.items() if k != "value"}}
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(note["key"])).verify(bytes.fromhex(note["value"]), _signed_bytes(covered))
    except (InvalidSignature, ValueError):
        raise BadInput("it was changed after it was signed: the signature does not fit") from None
    if markdown is not None and _hash(markdown) != note["card.md"]:
        raise BadInput("card.md beside it was changed after it was signed")
    return ModelSigner(note["key"], note["name"])


def refuse_other_signer(found: ModelSigner | None, expected: str, where: Path) -> None:
    """BadInput unless the card is signed by one of the keys that `expected` stands for."""
    known = expected_keys(expected)
    if found is None:
        raise BadInput(f"{where} is not signed: anybody may have written it; --signer asks for a signature of {expected}")
    if found.key not in known and found.fingerprint.replace(" ", "") not in known:
        raise BadInput(f"{where} is {found}, and not by {expected}; do not use it unless you know why")


def expected_keys(text: str) -> set[str]:
    """Public keys or fingerprints that a text stands for: either of them, or a file or folder that names keys.

    Of a federation's folder and its federation.json these are the server's and its sites'; of an invitation, a request and a site's
    folder those that they name.
    """
    plain = "".join(text.split()).lower()
    if _KEY.fullmatch(plain) or _FINGERPRINT.fullmatch(plain):
        return {plain}
    path = Path(text)
    try:
        files = [path] if path.is_file() else [f for name in _FILES_OF_KEYS if (f := path / name).is_file()]
        known = {key for file in files for key in _keys_in(file)} if plain else set()
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{text!r} cannot be read as a file of keys ({type(error).__name__}: {error})") from None
    if not known:
        raise BadInput(
            f"{text!r} names no key; expected a fingerprint, a public key (64 digits), an invitation, a request, or the folder of a "
            "federation or a site"
        )
    return known


_FILES_OF_KEYS = ("invitation.json", "federation.json", "kit.toml", "request.json", "secrets/signing.key", "signing.key")


def _keys_in(file: Path) -> Iterator[str]:
    if file.stat().st_size > _LARGEST_FILE:
        raise ValueError("too large")
    data = file.read_bytes()
    if data.startswith(b"-----BEGIN"):
        yield _public_of(file, data)
        return
    text = data.decode()
    values: Any = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("no table")
    clients, members = values.get("clients"), values.get("members")
    named = [values.get("signing"), values.get("server_key"), *(members.values() if isinstance(members, dict) else ())]
    named += [client.get("signing") for client in clients.values() if isinstance(client, dict)] if isinstance(clients, dict) else []
    yield from (key for key in named if isinstance(key, str) and _KEY.fullmatch(key))


def _public_of(file: Path, data: bytes) -> str:
    """Of a PEM file, with the private or the public key in it."""
    _refuse_without_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    from unseen.federation.keys import read_signing

    if b"PRIVATE" in data.partition(b"\n")[0]:
        return read_signing(file).public_key().public_bytes_raw().hex()
    key = load_pem_public_key(data)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("a key of another kind than Ed25519")
    return key.public_bytes_raw().hex()


def _key_file(key: Path) -> tuple[Path, str]:
    """Where the private key is, and what its owner calls itself."""
    if key.is_file():
        return key, ""
    for below, about in (("secrets/signing.key", "federation.json"), ("signing.key", "kit.toml")):
        if (key / below).is_file():
            return key / below, _name_in(key / about)
    raise BadInput(f"{key} holds no key to sign with; give a federation's folder, a site's folder, or a PEM file with an Ed25519 key")


def _name_in(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
        about = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
        return f"the server of federation {about['id']}" if "id" in about else f"{about['client']} of federation {about['federation']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _signed_bytes(values: Mapping[str, Any]) -> bytes:
    """The same bytes for the same card, however its JSON is laid out."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return b"unseen card 1 " + hashlib.sha256(text.encode()).digest()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refuse_without_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise BadInput("signatures need cryptography, which is not installed; install it with: pip install 'unseen[sign]'") from error
