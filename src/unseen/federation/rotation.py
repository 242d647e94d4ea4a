"""New keys at a site, beside the old ones until the server knows them. Public keys that were are kept: they signed a part of the ledger.

A site's folder holds `node.key`, `signing.key` and `box.key`. New keys wait in `next/`. To take them that folder becomes `taking/` in one
step, and then file by file takes the place of the old ones; whoever was killed on the way goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from unseen.errors import BadInput
from unseen.federation.keys import SiteKeys, public_hex, read_public, read_signing, timestamp, write_secret
from unseen.files import write_atomically

__all__ = ["earlier_keys", "finish_taking", "next_keys", "take_next_keys"]

_EARLIER = "earlier-keys.json"


def next_keys(folder: Path) -> SiteKeys:
    """The site's next keys: those that wait, or new ones."""
    waiting = folder / "next"
    if not waiting.exists():
        scratch = folder / ".next.tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        for name, data in SiteKeys.make().files.items():
            write_secret(scratch / name, data)
        os.replace(scratch, waiting)
    return SiteKeys.read(waiting)


def take_next_keys(folder: Path) -> None:
    """From now on the site's keys are those that waited."""
    finish_taking(folder)
    if not (folder / "next").exists():
        raise BadInput(f"no new keys wait in {folder}; make them with: unseen federation rotate {folder}")
    SiteKeys.read(folder / "next")  # all of them, before the old ones go
    os.replace(folder / "next", folder / "taking")
    finish_taking(folder)


def finish_taking(folder: Path) -> None:
    """Put keys that are being taken into their places, as far as they are not there."""
    taking = folder / "taking"
    if not taking.is_dir():
        return
    if (taking / "signing.key").exists():
        _remember(folder, public_hex(read_signing(folder / "signing.key")))
    for file in sorted(taking.iterdir()):
        os.replace(file, folder / file.name)
    taking.rmdir()


def _remember(folder: Path, key: str) -> None:
    known = _read_earlier(folder)
    if key not in [entry["signing"] for entry in known]:
        text = json.dumps([*known, {"signing": key, "until": timestamp()}], indent=1)
        write_atomically(folder / _EARLIER, text + "\n", 0o600)


def earlier_keys(folder: Path) -> tuple[str, ...]:
    """Public signing keys that the site had before, hexadecimal, the oldest first."""
    return tuple(entry["signing"] for entry in _read_earlier(folder))


def _read_earlier(folder: Path) -> list[dict[str, str]]:
    file = folder / _EARLIER
    try:
        entries = [{"signing": str(entry["signing"]), "until": str(entry["until"])} for entry in json.loads(file.read_text())]
        for entry in entries:
            read_public(entry["signing"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file} cannot be read ({type(error).__name__}: {error}); bring it back from a copy") from error
    return entries
