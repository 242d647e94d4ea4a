"""A person's approval for a site that is at work: a file in the site's folder, signed with the site's own key.

`unseen study approve` writes it. The process with the data takes it up, since only there can the study be checked against rules and data.
Whoever can write to the folder but has not the site's key cannot approve: a file without that signature does not count.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from filelock import FileLock, Timeout

from unseen.errors import BadInput
from unseen.federation.kits import Kit
from unseen.federation.study.study import MOST_STUDY, Study, read_signed_study
from unseen.files import OWNER_ALONE, write_atomically

__all__ = [
    "WHILE_AT_WORK",
    "approve_by_hand",
    "at_work",
    "clear_outcome",
    "is_at_work",
    "note_outcome",
    "outcome",
    "pending",
    "read_by_hand",
    "waiting_file",
    "waiting_studies",
]

WHILE_AT_WORK = "stop that one first, or approve a study while it works with: unseen study approve STUDY --site FOLDER"
_PURPOSE = b"unseen approval by hand 1 "  # no other signature begins so
_NAME = re.compile(r"[0-9a-f]{64}\.json")
_WAITING = re.compile(r"[0-9a-f]{16}\.json")
_MOST = 4 * MOST_STUDY  # bytes: a study as a text within JSON


def approve_by_hand(kit: Kit, signed_study: bytes) -> Study:
    """Write down, signed, that a person at this site approves the study."""
    study = read_signed_study(signed_study, kit.server_key)
    folder = kit.path / "to-approve"
    folder.mkdir(exist_ok=True, mode=0o700)
    clear_outcome(kit.path, study.digest)
    signature = kit.signing.sign(_signed_bytes(kit, study)).hex()
    told = {"study": signed_study.decode(), "signature": signature}
    write_atomically(folder / f"{study.digest}.json", json.dumps(told), OWNER_ALONE)
    return study


def waiting_file(site: Path, digest: str) -> Path:
    """Where a study lies that the server wants to begin and nobody at the site has approved."""
    return site / "waiting" / f"{digest[:16]}.json"


def waiting_studies(site: Path) -> list[Path]:
    """The studies that wait for a person at the site."""
    return sorted(file for file in (site / "waiting").glob("*.json") if _WAITING.fullmatch(file.name))


def pending(site: Path) -> Iterator[Path]:
    """Files that wait to be taken up."""
    folder = site / "to-approve"
    if folder.is_dir():
        yield from sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))


def read_by_hand(file: Path, kit: Kit) -> bytes:
    """The study in such a file, if this site's own key signed it under this name; else BadInput."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as stream:
            looks = os.fstat(stream.fileno())
            if not stat.S_ISREG(looks.st_mode) or looks.st_size > _MOST:
                raise BadInput(f"{file} is no approval: it is no plain file, or too large")
            told = json.loads(stream.read())
        data = str(told["study"]).encode()
        study = read_signed_study(data, kit.server_key)
        kit.signing.public_key().verify(bytes.fromhex(told["signature"]), _signed_bytes(kit, study))
        if file.name != f"{study.digest}.json":
            raise BadInput(f"{file} holds another study than its name says")
    except BadInput:
        raise
    except InvalidSignature:
        raise BadInput(f"{file} is not signed with this site's key, and does not count") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(f"{file} cannot be read ({type(error).__name__})") from None
    return data


def note_outcome(file: Path, refusal: str | None) -> None:
    """The file was looked at and goes. What speaks against it stays until it is read, or approved again."""
    if refusal is not None:
        write_atomically(file.with_suffix(".refused"), refusal, OWNER_ALONE)
    file.unlink(missing_ok=True)


def outcome(site: Path, digest: str) -> str | None:
    """Why an approval did not count; an empty text if it did; None as long as it waits."""
    refused = site / "to-approve" / f"{digest}.refused"
    if refused.exists():
        return refused.read_text()
    return "" if (site / "studies" / digest / "approval.json").is_file() else None


def clear_outcome(site: Path, digest: str) -> None:
    (site / "to-approve" / f"{digest}.refused").unlink(missing_ok=True)


def at_work(site: Path) -> FileLock:
    """Held by `unseen join` as long as it runs."""
    return FileLock(site / ".join.lock", timeout=0, mode=OWNER_ALONE)


def is_at_work(site: Path) -> bool:
    if not (site / ".join.lock").exists():
        return False
    try:
        with at_work(site):
            return False
    except Timeout:
        return True


def _signed_bytes(kit: Kit, study: Study) -> bytes:
    return _PURPOSE + f"{kit.federation} {kit.client} {study.digest}".encode()
