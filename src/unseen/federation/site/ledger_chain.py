"""The form of a site's ledger, and whether one is as it was written.

A line is a JSON object that holds the hash of the line before, its own hash, and the site's signature. The first line is the
ledger's start, and there is no other start. Beside the ledger lie its head (number and hash of the last line, signed by the site)
and the server's receipts. The head is there before the first line is: a missing half is a changed ledger, never a new one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unseen.errors import BadInput
from unseen.federation.countersigning import EMPTY, read_receipts, refuse_behind
from unseen.federation.keys import public_hex, read_public

__all__ = ["Chain", "check_chain", "head_file", "head_text", "read_ledger", "receipts_file", "signed_line", "verify"]

_ENTRY, _HEAD = b"unseen ledger entry 1 ", b"unseen ledger head 1 "  # what a signature is for
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_HEAD_TEXT = re.compile(rb"(0|[1-9][0-9]{0,15}) ([0-9a-f]{64}) ([0-9a-f]{128})\n")


@dataclass(frozen=True)
class Chain:
    """A ledger that was checked."""

    site: str  # as its first line names it; empty while there is none
    hashes: list[str]  # line by line
    size: int  # bytes of its whole lines; what lies behind was cut short by a kill
    known: int  # lines that the head knows; the site was killed before it wrote of the others
    signer: str  # public key that signed the last line


def read_ledger(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a ledger, as they stand."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"no ledger {file} ({error.strerror})") from error
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        yield _read_line(file, number, line)


def verify(
    file: Path, key: Ed25519PublicKey, server_key: Ed25519PublicKey | None, receipts: Path | None = None, earlier: Sequence[str] = ()
) -> int:
    """How many lines the ledger has, or BadInput that names the first thing that is not as it was written.

    `key` is the site's, `earlier` the public keys that it had before. With the server's key its receipts are checked too: those beside
    the ledger, and those in the file `receipts` that the server keeps.
    """
    chain = check_chain(file, key, earlier)
    if not chain.hashes:
        raise BadInput(f"no ledger {file}")
    if receipts is not None and server_key is None:
        raise BadInput(f"the receipts in {receipts} can be checked only with the server's public key")
    if receipts is not None and not receipts.is_file():
        raise BadInput(f"no receipts {receipts}")
    if server_key is not None:
        for known in (receipts_file(file), *([receipts] if receipts else [])):
            refuse_behind(chain.hashes, read_receipts(known, server_key, chain.site)[0], file)
    return len(chain.hashes)


def check_chain(file: Path, key: Ed25519PublicKey, earlier: Sequence[str] = ()) -> Chain:
    """Every line and the head, checked; BadInput if the ledger was changed, cut, or half of it is missing."""
    keys = {public_hex(one): one for one in (*(read_public(text) for text in earlier), key)}
    if not file.exists() and not head_file(file).exists():
        raise BadInput(f"no ledger {file}")
    known, last = _head(file, keys.values())
    if not file.exists() and known:
        raise BadInput(f"{file} is missing, but {known} lines were written: the ledger was changed")
    lines = (file.read_bytes() if file.exists() else b"").split(b"\n")[:-1]
    hashes, signer, site, size = [EMPTY], "", "", 0
    for number, line in enumerate(lines, 1):
        entry = _read_line(file, number, line)
        if entry.get("number") != number or entry.get("previous") != hashes[-1] or _hash(entry) != entry.get("hash"):
            raise BadInput(f"{file}, line {number} is not as it was written: the ledger was changed")
        if (entry.get("kind") == "start") != (number == 1):
            what = "does not begin with a start" if number == 1 else f"begins anew at line {number}"
            raise BadInput(f"{file} {what}: the ledger was changed")
        signer = _signer(file, entry, keys, signer)
        site, size = site or str(entry.get("site")), size + len(line) + 1
        hashes.append(str(entry["hash"]))
    if known >= len(hashes):
        raise BadInput(f"{file} ends after line {len(hashes) - 1}, but {known} lines were written: the ledger was changed")
    if hashes[known] != last:
        raise BadInput(f"{file}, line {known} is not the one that its head names: the ledger was changed")
    return Chain(site, hashes[1:], size, known, signer)


def _read_line(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or _canonical(entry) != line:
        raise BadInput(f"{file}, line {number} cannot be read: the ledger was changed")
    return entry


def _signer(file: Path, entry: Mapping[str, Any], keys: dict[str, Ed25519PublicKey], before: str) -> str:
    """Who signed an entry. A new key comes in with the entry that names it, and then the one before is no longer taken."""
    names = [before] if before else list(keys)
    if entry.get("kind") in ("start", "key"):
        names = [str(entry.get("key"))]
    signature = entry.get("signature")
    for name in names:
        if name in keys and isinstance(signature, str) and _SIGNATURE.fullmatch(signature):
            try:
                keys[name].verify(bytes.fromhex(signature), _ENTRY + _canonical(_body(entry)))
            except InvalidSignature:
                continue
            if before and name != before:
                del keys[before]
            return name
    raise BadInput(f"{file}, line {entry['number']} was not signed by this site: the ledger was changed")


def signed_line(body: Mapping[str, Any], key: Ed25519PrivateKey) -> tuple[bytes, str]:
    """A line with its end, and its hash."""
    plain = {name: _plain(value) for name, value in body.items()}
    digest = _hash(plain)
    signature = key.sign(_ENTRY + _canonical(plain)).hex()
    return _canonical({**plain, "hash": digest, "signature": signature}) + b"\n", digest


def head_text(number: int, last: str, key: Ed25519PrivateKey) -> str:
    return f"{number} {last} {key.sign(_head_bytes(number, last)).hex()}\n"


def _head(file: Path, keys: Iterable[Ed25519PublicKey]) -> tuple[int, str]:
    head = head_file(file)
    try:
        told = _HEAD_TEXT.fullmatch(head.read_bytes())
    except OSError as error:
        raise BadInput(f"{head}, which belongs to the ledger, is missing or cannot be read: the ledger was changed") from error
    number, last, signature = (part.decode() for part in told.groups()) if told else ("", "", "")
    for key in keys if told else ():
        try:
            key.verify(bytes.fromhex(signature), _head_bytes(int(number), last))
        except InvalidSignature:
            continue
        return int(number), last
    raise BadInput(f"{head}, which belongs to the ledger, was not signed by this site: the ledger was changed")


def head_file(file: Path) -> Path:
    return file.with_name(file.name + ".head")


def receipts_file(file: Path) -> Path:
    return file.with_name(file.name + ".receipts")


def _head_bytes(number: int, last: str) -> bytes:
    return _HEAD + f"{number} {last}".encode()


def _body(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("hash", "signature")}


def _hash(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(_body(entry))).hexdigest()


def _canonical(entry: Mapping[str, Any]) -> bytes:
    """An entry's one spelling, its names in the order in which it was written."""
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=True).encode()


def _plain(value: Any) -> Any:
    """Every reader of JSON takes it: an infinite epsilon is the text `inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
