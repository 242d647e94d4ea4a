"""How a site asks to be admitted: it makes its keys itself, and sends the public ones with a proof that it has the others.

Both files that travel, the server's invitation and the site's request, are public. Whoever carries them could put keys of his own in their
place; so people compare fingerprints over another way, such as the telephone.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from unseen.errors import BadInput
from unseen.federation.keys import (
    SiteKeys,
    fingerprint,
    public_hex,
    read_node_public,
    read_public,
    read_public_box,
    write_secret,
)
from unseen.federation.kits import ADDRESS, KEYS, NAME, new_folder, open_kit, refuse_name, write_card
from unseen.federation.rotation import next_keys
from unseen.files import write_atomically

__all__ = ["Invitation", "MembershipRequest", "make_site", "read_invitation", "read_request", "request_rotation"]

_MOST_BYTES = 20_000
_PURPOSE = b"unseen federation request 1 "  # no signature of a message or a study can be taken for that of a request
_CERTIFICATE_FAULTS = (x509.ExtensionNotFound, x509.DuplicateExtension, x509.InvalidVersion, UnsupportedAlgorithm)
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Invitation:
    """What a site has to know of a federation: where its server is, and by which keys it is recognised."""

    federation: str
    server: str  # host:port
    signing: str
    box: str
    ca: str  # the authority's certificate, PEM

    @property
    def fingerprint(self) -> str:
        authority = x509.load_pem_x509_certificate(self.ca.encode()).public_bytes(Encoding.DER)
        return fingerprint({"authority": hashlib.sha256(authority).hexdigest(), "signing": self.signing, "box": self.box})


def read_invitation(file: Path) -> Invitation:
    """The invitation in a file, or BadInput."""
    told = _read_object(file, "an invitation", ("federation", "server", "signing", "box", "ca"))
    try:
        if not _ID.fullmatch(told["federation"]) or not ADDRESS.fullmatch(told["server"]):
            raise ValueError("its names are not those that a federation gives")
        read_public(told["signing"])
        read_public_box(told["box"])
        authority = x509.load_pem_x509_certificate(told["ca"].encode())
        if not authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise ValueError("its certificate is no authority's")
    except (ValueError, *_CERTIFICATE_FAULTS) as error:
        raise BadInput(f"{file} is not an invitation: {error}") from error
    # The certificate alone: what else stood beside it in the text is in no fingerprint, and must not be trusted.
    return Invitation(**{**told, "ca": authority.public_bytes(Encoding.PEM).decode()})


@dataclass(frozen=True)
class MembershipRequest:
    """A site's public keys, signed with the key that is among them; with `replaces` also with the key that they replace."""

    federation: str
    name: str
    keys: dict[str, str]  # node, signing, box
    replaces: str = ""  # the public signing key that the server knows, where the site has new keys

    @property
    def fingerprint(self) -> str:
        return fingerprint({"name": self.name, **self.keys})

    @property
    def signed_text(self) -> bytes:
        told = {"federation": self.federation, "name": self.name, "replaces": self.replaces, **self.keys}
        return _PURPOSE + json.dumps(told, sort_keys=True, separators=(",", ":")).encode()

    def signed_by(self, new: Ed25519PrivateKey, old: Ed25519PrivateKey | None = None) -> str:
        """The file of this request."""
        told = {"federation": self.federation, "name": self.name, **self.keys, "signature": new.sign(self.signed_text).hex()}
        if old is not None:
            told |= {"replaces": self.replaces, "old_signature": old.sign(self.signed_text).hex()}
        return json.dumps(told, indent=1) + "\n"


def read_request(file: Path) -> MembershipRequest:
    """The request in a file, if everything in it is as it must be and the site proved that it has the keys; else BadInput."""
    told = _read_object(file, "a request", ("federation", "name", *KEYS, "signature"), ("replaces", "old_signature"))
    if not _ID.fullmatch(told["federation"]) or not NAME.fullmatch(told["name"]):
        raise BadInput(f"{file} is not a request: its names are not those that a federation gives")
    request = MembershipRequest(told["federation"], told["name"], {kind: told[kind] for kind in KEYS}, told.get("replaces", ""))
    try:
        read_node_public(request.keys["node"])
        read_public_box(request.keys["box"])
        read_public(request.keys["signing"]).verify(bytes.fromhex(told["signature"]), request.signed_text)
        if request.replaces:
            read_public(request.replaces).verify(bytes.fromhex(told.get("old_signature", "")), request.signed_text)
    except InvalidSignature:
        raise BadInput(f"{file} is not signed with the keys that it names; ask the site to send its request again") from None
    except ValueError as error:
        raise BadInput(f"{file} is not a request: {error}") from error
    return request


def _read_object(file: Path, what: str, needed: tuple[str, ...], possible: tuple[str, ...] = ()) -> dict[str, str]:
    """A small JSON object whose values are texts: those that are needed, perhaps those that are possible, and nothing else."""
    if not file.is_file():
        raise BadInput(f"no file {file}")
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        told: Any = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not {what}: it cannot be read ({type(error).__name__})") from error
    if len(data) > _MOST_BYTES:
        raise BadInput(f"{file} is not {what}: it has more than {_MOST_BYTES:,} bytes")
    if not isinstance(told, dict) or not set(needed) <= set(told) <= {*needed, *possible}:
        raise BadInput(f"{file} is not {what}: expected the fields {', '.join(needed)}")
    if not all(isinstance(value, str) for value in told.values()):
        raise BadInput(f"{file} is not {what}: its fields are texts")
    return told


def make_site(invitation: Invitation, name: str, folder: Path) -> tuple[MembershipRequest, Path]:
    """Make a site's folder with its own keys, and beside it the request to send to the server."""
    refuse_name(name)
    file = _request_file(folder, name)
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise BadInput(f"{folder} is not empty, and keys are never overwritten; choose another folder with --dir")
    if file.exists():
        raise BadInput(f"{file} exists already; a site asks once. Move it away to ask anew")
    keys = SiteKeys.make()
    request = MembershipRequest(invitation.federation, name, keys.public)
    kept = json.dumps(asdict(invitation), indent=1) + "\n"
    card = write_card(asdict(invitation), name, None)
    with new_folder(folder):
        for item, data in {"invitation.json": kept.encode(), "ca.pem": invitation.ca.encode(), **keys.files, "kit.toml": card}.items():
            write_secret(folder / item, data)
        write_secret(file, request.signed_by(keys.signing).encode())
    return request, file


def request_rotation(folder: Path) -> tuple[MembershipRequest, Path]:
    """Make a site's next keys (once), and the request that they replace its present ones."""
    kit = open_kit(folder, folder)
    if kit.trial:
        raise BadInput(
            f"{folder} is of a trial, whose keys the server made; a site that makes its own asks with `unseen federation request`"
        )
    keys = next_keys(folder)
    old = kit.signing
    request = MembershipRequest(kit.federation, kit.client, keys.public, public_hex(old))
    file = _request_file(folder, kit.client)
    write_atomically(file, request.signed_by(keys.signing, old), 0o600)
    return request, file


def _request_file(folder: Path, name: str) -> Path:
    return folder.parent / f"{name}.request"
