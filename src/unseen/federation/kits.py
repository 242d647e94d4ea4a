"""The folder of a federation at its server, and what a site has to join: a kit of a trial, or the site's own folder."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from unseen.errors import BadInput
from unseen.federation.keys import (
    Authority,
    SiteKeys,
    ending_soon,
    private_bytes,
    public_hex,
    read_box,
    read_public,
    read_public_box,
    read_signing,
    refuse_expired,
    timestamp,
    write_secret,
)
from unseen.federation.rotation import earlier_keys, finish_taking
from unseen.files import write_atomically

__all__ = [
    "ADDRESS",
    "KEYS",
    "MOST_DAYS",
    "NAME",
    "Federation",
    "Kit",
    "init",
    "new_folder",
    "open_kit",
    "read_federation",
    "read_register",
    "refuse_name",
    "write_card",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ADDRESS = re.compile(r"[A-Za-z0-9.:-]{1,253}:[0-9]{1,5}")
MOST_DAYS = 20 * 365  # of the authority, and so of every certificate
KEYS = ("node", "signing", "box")
_KIT_FILES = ("kit.toml", "ca.pem", "node.key", "signing.key", "box.key")
_MOST_KIT_BYTES = 100_000
_ANEW = "make a new federation with `unseen federation init`"
_NEW_AUTHORITY = f"it is the authority's; the server has to {_ANEW}"


@dataclass(frozen=True)
class Federation:
    """What the server knows of its federation."""

    path: Path
    id: str
    server: str  # name or address that the sites use
    port: int
    clients: dict[str, dict[str, str]]  # by name: `node` (OpenSSH public key), `signing` and `box` (hexadecimal public keys)

    @property
    def address(self) -> str:
        return f"{self.server}:{self.port}"

    @property
    def ca(self) -> Path:
        return self.path / "ca.pem"

    @property
    def signing(self) -> Ed25519PrivateKey:
        return read_signing(self.path / "secrets/signing.key")

    @property
    def box(self) -> X25519PrivateKey:
        return read_box(self.path / "secrets/box.key")

    def public_key(self, client: str) -> Ed25519PublicKey:
        return read_public(self.clients[client]["signing"])

    def box_key(self, client: str) -> X25519PublicKey:
        return read_public_box(self.clients[client]["box"])

    @property
    def warnings(self) -> tuple[str, ...]:
        return ending_soon(self.path / "server.pem", _renew(self.path))


@dataclass(frozen=True)
class Kit:
    """What a site has to join."""

    path: Path
    federation: str
    client: str
    server: str  # host:port
    server_key: Ed25519PublicKey  # whoever signs with it may ask
    server_box: X25519PublicKey
    trial: bool  # the server made this site's keys, and so knows them
    members: dict[str, str] = field(default_factory=dict)  # of a trial: each site's public signing key, hexadecimal
    earlier: tuple[str, ...] = ()  # public signing keys that this site had before, hexadecimal, the oldest first

    @property
    def signing(self) -> Ed25519PrivateKey:
        return read_signing(self.path / "signing.key")

    @property
    def box(self) -> X25519PrivateKey:
        return read_box(self.path / "box.key")

    @property
    def warnings(self) -> tuple[str, ...]:
        return ending_soon(self.path / "ca.pem", _NEW_AUTHORITY)


def _renew(path: Path) -> str:
    return f"run: unseen federation renew {path}"


def init(path: Path, server: str, clients: Sequence[str] = (), port: int = 8000, days: int = 365) -> Federation:
    """Make a federation's folder: authority, certificate, keys, an invitation for sites; for a trial, also kits with keys in them."""
    _refuse_names(server, clients, port, days)
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        raise BadInput(f"{path} is not empty; a federation is made in a new folder")
    with new_folder(path):
        return _fill(path, server, clients, port, days)


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """A folder that its owner alone can read, and that is gone again if it could not be filled."""
    existed = path.exists()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    try:
        yield
    except BaseException:
        for item in path.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()
        if not existed:
            path.rmdir()
        raise


def _fill(path: Path, server: str, clients: Sequence[str], port: int, days: int) -> Federation:
    name, signing, box = secrets.token_hex(8), Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    authority = Authority.make(name, MOST_DAYS)
    certificate, key = authority.certify(server, days)
    (path / "secrets").mkdir(mode=0o700)
    write_secret(path / "ca.pem", authority.pem)
    write_secret(path / "server.pem", certificate)
    write_secret(path / "secrets/ca.key", private_bytes(authority.key))
    write_secret(path / "secrets/server.key", key)
    write_secret(path / "secrets/signing.key", private_bytes(signing))
    write_secret(path / "secrets/box.key", private_bytes(box))
    write_secret(path / "secrets/exec.secret", secrets.token_bytes(32))
    invitation = {"federation": name, "server": f"{server}:{port}", "signing": public_hex(signing), "box": public_hex(box)}
    text = json.dumps({**invitation, "ca": authority.pem.decode()}, indent=1) + "\n"
    write_secret(path / "invitation.json", text.encode())
    known = {client: SiteKeys.make() for client in clients}
    _pack_kits(path, invitation, known, authority.pem)
    members = {client: {**keys.public, "since": timestamp(), "trial": True} for client, keys in known.items()}
    about = {"id": name, "server": server, "port": port, "clients": members, "removed": []}
    write_atomically(path / "federation.json", json.dumps(about, indent=1) + "\n", 0o600)
    return Federation(path, name, server, port, {client: keys.public for client, keys in known.items()})


def _pack_kits(path: Path, invitation: Mapping[str, str], known: Mapping[str, SiteKeys], ca: bytes) -> None:
    members = {client: keys.public["signing"] for client, keys in known.items()}
    for client, keys in known.items():
        (path / "kits").mkdir(exist_ok=True, mode=0o700)
        file = path / "kits" / f"{client}.kit"
        write_secret(file, b"")
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in {"kit.toml": write_card(invitation, client, members), "ca.pem": ca, **keys.files}.items():
                archive.writestr(name, data)


def write_card(invitation: Mapping[str, str], client: str, members: Mapping[str, str] | None) -> bytes:
    """`kit.toml`: who this site is, in which federation, and how the server is recognised; in a trial, the members too."""
    text = {"federation": invitation["federation"], "client": client, "server": invitation["server"]}
    text |= {"server_key": invitation["signing"], "server_box": invitation["box"]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in text.items()] + [f"trial = {json.dumps(members is not None)}"]
    if members is not None:
        lines += ["", "[members]", *(f"{json.dumps(name)} = {json.dumps(key)}" for name, key in members.items())]
    return "\n".join([*lines, ""]).encode()


def refuse_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise BadInput(_odd_name(name))


def _odd_name(name: str) -> str:
    return f"client {name!r}; a name has letters, digits, '.', '_' and '-', and begins with one of the first two"


def _refuse_names(server: str, clients: Sequence[str], port: int, days: int) -> None:
    problems = [_odd_name(c) for c in clients if not NAME.fullmatch(c)]
    problems += [f"client {c!r} is named twice" for c in sorted({c for c in clients if clients.count(c) > 1})]
    if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", server):
        problems.append(f"server {server!r}; expected the host name or address under which the sites reach it")
    if not 1 <= port <= 65535:
        problems.append(f"port {port}; expected 1 to 65535")
    if not 1 <= days <= MOST_DAYS:
        problems.append(f"{days} days; a certificate lasts 1 to {MOST_DAYS}")
    if problems:
        raise BadInput(problems)


def read_federation(path: Path) -> Federation:
    """The federation that `init` made in this folder."""
    about = read_register(path)
    clients = {name: {kind: member[kind] for kind in KEYS} for name, member in about["clients"].items()}
    refuse_expired(path / "server.pem", _renew(path))
    return Federation(path, about["id"], about["server"], about["port"], clients)


def read_register(path: Path) -> dict[str, Any]:
    """What `federation.json` says: members and removed ones, each with its keys; whatever the certificates are."""
    file = path / "federation.json"
    try:
        about = json.loads(file.read_text())
        if any("box" not in keys for keys in about["clients"].values()):
            raise BadInput(f"{file} is of an older version, without keys for letters; {_ANEW}")
        about = {"id": str(about["id"]), "server": str(about["server"]), "port": int(about["port"]), **_members(about)}
    except FileNotFoundError:
        raise BadInput(f"no federation in {path}; make one with `unseen federation init {path} --server NAME`") from None
    except BadInput:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} cannot be read ({type(error).__name__}: {error})") from error
    return about


def _members(about: Mapping[str, Any]) -> dict[str, Any]:
    words = (*KEYS, "since")
    clients = {str(name): {w: str(m[w]) for w in words} | {"trial": m["trial"] is True} for name, m in about["clients"].items()}
    return {"clients": clients, "removed": [{w: str(m[w]) for w in ("name", *words, "until", "why")} for m in about["removed"]]}


def open_kit(kit: Path, into: Path) -> Kit:
    """Read a site's folder, or unpack a kit into one (once). Only the files of a kit are taken, whatever an archive holds."""
    finish_taking(kit)
    contents = _kit_contents(kit)
    opened = _read_card(kit, contents["kit.toml"], into)
    if not (kit.is_dir() and into.exists() and kit.samefile(into)):
        if not opened.trial:
            raise BadInput(f"{kit} is a site's own folder, and its keys stay there; leave --dir away")
        _unpack(contents, into)
    refuse_expired(into / "ca.pem", _NEW_AUTHORITY)
    return opened


def _unpack(contents: Mapping[str, bytes], into: Path) -> None:
    if any((into / name).exists() and (into / name).read_bytes() != data for name, data in contents.items()):
        raise BadInput(f"{into} was made for another kit; choose another folder with --dir")
    into.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, data in contents.items():
        if not (into / name).exists():
            write_atomically(into / name, data, 0o600)


def _read_card(kit: Path, text: bytes, into: Path) -> Kit:
    try:
        card = tomllib.loads(text.decode())
        words = [card[key] for key in ("federation", "client", "server", "server_key", "server_box")]
        if not all(isinstance(word, str) for word in words) or not isinstance(card["trial"], bool):
            raise ValueError("its fields are not those of a kit")
        if not NAME.fullmatch(card["client"]) or not ADDRESS.fullmatch(card["server"]):
            raise ValueError("its names are not those that a federation gives")
        members = {name: public_hex(read_public(key)) for name, key in card.get("members", {}).items()}
        keys = read_public(card["server_key"]), read_public_box(card["server_box"])
        return Kit(into, card["federation"], card["client"], card["server"], *keys, card["trial"], members, earlier_keys(into))
    except KeyError as error:
        raise BadInput(f"{kit} is not a kit, or one of an older version: it has no {error.args[0]!r}; {_ANEW}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
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
    except KeyError as error:
        raise BadInput(f"{kit} is not a kit, or one of an older version ({error.args[0]}); {_ANEW}") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise BadInput(f"{kit} is not a kit ({type(error).__name__}: {error})") from error
