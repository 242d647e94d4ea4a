"""Who belongs to a federation now: its folder is looked at again whenever it changes, so that a site is in or out at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from unseen.errors import BadInput
from unseen.federation.kits import read_federation

__all__ = ["Members", "NodeMember"]


@dataclass(frozen=True)
class NodeMember:
    """A site, and the key with which its SuperNode signs."""

    name: str
    key: EllipticCurvePublicKey


class Members:
    """The sites of the federation in a folder, as `federation.json` names them at this moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version: tuple[int, ...] = ()
        self._members: dict[bytes, NodeMember] = {}

    def present(self) -> dict[bytes, NodeMember]:
        """By public key, as Flower writes keys. BadInput if the folder cannot be read: then nobody is known."""
        try:
            found = (self._folder / "federation.json").stat()
        except OSError as error:
            self._version = ()
            raise BadInput(f"{self._folder / 'federation.json'} cannot be read ({type(error).__name__})") from error
        version = (found.st_mtime_ns, found.st_ino, found.st_size)
        if version != self._version:
            self._version = ()  # should the next line fail, nobody is known
            self._members = _read(self._folder)
            self._version = version
        return self._members

    def keys(self) -> dict[str, bytes]:
        """The public keys by name."""
        return {member.name: key for key, member in self.present().items()}


def _read(folder: Path) -> dict[bytes, NodeMember]:
    members = {}
    for name, keys in read_federation(folder).clients.items():
        try:
            key = serialization.load_ssh_public_key(keys["node"].encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadInput(f"the key of {name} in {folder / 'federation.json'} cannot be read: {error}") from error
        if not isinstance(key, EllipticCurvePublicKey):
            raise BadInput(f"the key of {name} in {folder / 'federation.json'} is of another kind; expected an elliptic curve")
        members[bytes(public_key_to_bytes(key))] = NodeMember(name, key)
    return members
