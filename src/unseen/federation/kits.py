"""The folder of a federation at its server, and the kits it hands to its clients."""

from __future__ import annotations

import json
import os
import re
import secrets
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unseen.errors import BadInput
from unseen.federation.keys import Authority, node_key, private_bytes, read_public, read_signing, refuse_expired, write_secret

__all__ = ["Federation", "Kit", "init", "open_kit", "read_federation"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KIT_FILES = ("kit.toml", "ca.pem", "node.key", "signing.key")
_MOST_KIT_BYTES = 100_000


@dataclass(frozen=True)
class Federation:
    """What the server knows of its federation."""

    path: Path
    id: str
    server: str  # name or address that the sites use
    port: int
    clients: dict[str, dict[str, str]]  # by name: `node` (OpenSSH public key) and `signing` (hexadecimal public key)

    @property
    def address(self) -> str:
        return f"{self.server}:{self.port}"

    @property
    def ca(self) -> Path:
        return self.path / "ca.pem"

    @property
    def signing(self) -> Ed25519PrivateKey:
        return read_signing(self.path / "secrets/signing.key")

    def public_key(self, client: str) -> Ed25519PublicKey:
        return read_public(self.clients[client]["signing"])


@dataclass(frozen=True)
class Kit:
    """What a client was given to join."""

    path: Path
    federation: str
    client: str
    server: str  # host:port
    server_key: Ed25519PublicKey  # whoever signs with it may ask

    @property
    def signing(self) -> Ed25519PrivateKey:
        return read_signing(self.path / "signing.key")


def init(path: Path, server: str, clients: Sequence[str], port: int = 8000, days: int = 365) -> Federation:
    """Make a federation's folder: authority, certificate, keys, and one kit per client."""
    _refuse_names(server, clients, port, days)
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        raise BadInput(f"{path} is not empty; a federation is made in a new folder")
    old = os.umask(0o077)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for below in ("secrets", "kits"):
            (path / below).mkdir(mode=0o700)
        return _fill(path, server, clients, port, days)
    finally:
        os.umask(old)


def _fill(path: Path, server: str, clients: Sequence[str], port: int, days: int) -> Federation:
    name, authority, signing = secrets.token_hex(8), None, Ed25519PrivateKey.generate()
    authority = Authority.make(name, days)
    certificate, key = authority.certify(server, days)
    (path / "ca.pem").write_bytes(authority.pem)
    (path / "server.pem").write_bytes(certificate)
    write_secret(path / "secrets/ca.key", private_bytes(authority.key))
    write_secret(path / "secrets/server.key", key)
    write_secret(path / "secrets/signing.key", private_bytes(signing))
    write_secret(path / "secrets/exec.secret", secrets.token_bytes(32))
    known = {}
    for client in clients:
        node_private, node_public = node_key()
        own = Ed25519PrivateKey.generate()
        card = {"federation": name, "client": client, "server": f"{server}:{port}", "server_key": _hex(signing)}
        text = "".join(f"{k} = {json.dumps(v)}\n" for k, v in card.items())
        contents = (text.encode(), authority.pem, node_private, private_bytes(own))
        _pack(path / "kits" / f"{client}.kit", dict(zip(_KIT_FILES, contents, strict=True)))
        known[client] = {"node": node_public.decode(), "signing": _hex(own)}
    federation = Federation(path, name, server, port, known)
    about = {"id": name, "server": server, "port": port, "clients": known}
    (path / "federation.json").write_text(json.dumps(about, indent=1) + "\n")
    return federation


def _hex(key: Ed25519PrivateKey) -> str:
    raw = serialization.Encoding.Raw
    return key.public_key().public_bytes(raw, serialization.PublicFormat.Raw).hex()


def _pack(file: Path, contents: dict[str, bytes]) -> None:
    write_secret(file, b"")
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def _refuse_names(server: str, clients: Sequence[str], port: int, days: int) -> None:
    problems = [
        f"client {c!r}; a name has letters, digits, '.', '_' and '-', and begins with one of the first two"
        for c in clients
        if not _NAME.fullmatch(c)
    ]
    problems += [f"client {c!r} is named twice" for c in sorted({c for c in clients if clients.count(c) > 1})]
    if not clients:
        problems.append("no clients; name them as --clients a,b,c")
    if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", server):
        problems.append(f"server {server!r}; expected the host name or address under which the sites reach it")
    if not 1 <= port <= 65535:
        problems.append(f"port {port}; expected 1 to 65535")
    if days < 1:
        problems.append(f"{days} days; certificates last at least 1")
    if problems:
        raise BadInput(problems)


def read_federation(path: Path) -> Federation:
    """The federation that `init` made in this folder."""
    try:
        about = json.loads((path / "federation.json").read_text())
        clients = {str(name): {"node": str(keys["node"]), "signing": str(keys["signing"])} for name, keys in about["clients"].items()}
        federation = Federation(path, str(about["id"]), str(about["server"]), int(about["port"]), clients)
    except FileNotFoundError:
        raise BadInput(f"no federation in {path}; make one with `unseen federation init {path} --server NAME --clients a,b,c`") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path / 'federation.json'} cannot be read ({type(error).__name__}: {error})") from error
    refuse_expired(path / "server.pem")
    return federation


def open_kit(kit: Path, into: Path) -> Kit:
    """Unpack a kit into the site's folder (once), and read it. Only the files of a kit are taken, whatever an archive holds."""
    into.mkdir(parents=True, exist_ok=True, mode=0o700)
    contents = _kit_contents(kit)
    for name, data in contents.items():
        file = into / name
        if not file.exists():
            write_secret(file, data)
        elif file.read_bytes() != data:
            raise BadInput(f"{into} was made for another kit; choose another folder with --dir")
    refuse_expired(into / "ca.pem")
    try:
        card = tomllib.loads(contents["kit.toml"].decode())
        if not all(isinstance(card[key], str) for key in ("federation", "client", "server", "server_key")) or not _NAME.fullmatch(
            card["client"]
        ):
            raise ValueError("its names are not those that a federation gives")
        return Kit(into, card["federation"], card["client"], card["server"], read_public(card["server_key"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{kit} is not a kit: {error}") from error


def _kit_contents(kit: Path) -> dict[str, bytes]:
    try:
        if kit.is_dir():
            return {name: (kit / name).read_bytes() for name in _KIT_FILES}
        with zipfile.ZipFile(kit) as archive:
            if any(archive.getinfo(name).file_size > _MOST_KIT_BYTES for name in _KIT_FILES):
                raise BadInput(f"{kit} is not a kit: its files are too large")
            return {name: archive.read(name) for name in _KIT_FILES}
    except FileNotFoundError as error:
        raise BadInput(f"no kit {error.filename or kit}") from None
    except (OSError, KeyError, zipfile.BadZipFile, RuntimeError) as error:
        raise BadInput(f"{kit} is not a kit ({type(error).__name__}: {error})") from error
