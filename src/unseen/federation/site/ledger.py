"""The ledger of a site: everything that left it, line by line, each line holding the hash of the one before.

Changing, removing or inserting a line breaks the chain. The last hash is kept beside the ledger, so a missing end is found too.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.errors import BadInput
from unseen.files import write_atomically

__all__ = ["Ledger", "read_ledger", "verify"]

_FIRST = "0" * 64


class Ledger:
    """Appends to a site's ledger. A line is on the disk before what it tells of leaves."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._last, self._number = _FIRST, 0
        if file.exists():
            _mend(file)
            self._number = verify(file)
            self._last = _head(file)[1]

    def append(self, entries: Sequence[Mapping[str, Any]]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        lines, number, last = [], self._number, self._last
        for entry in entries:
            number += 1
            body = {"number": number, "time": now, **entry, "previous": last}
            last = _hash(body)
            lines.append(_line({**body, "hash": last}))
        self._write(b"".join(lines), f"{number} {last}\n")
        self._number, self._last = number, last

    def _write(self, lines: bytes, head: str) -> None:
        """All or nothing: what a full disk cut short is taken back. Unbuffered, or closing would write the rest after all."""
        with os.fdopen(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0) as stream:
            before = stream.seek(0, os.SEEK_END)
            try:
                rest = memoryview(lines)
                while rest:
                    rest = rest[stream.write(rest) :]
                os.fsync(stream.fileno())
                write_atomically(_head_file(self.file), head)
            except OSError:
                os.ftruncate(stream.fileno(), before)
                raise


def read_ledger(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a ledger, as they stand."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise BadInput(f"no ledger {file} ({error.strerror})") from error
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line and number == text.count(b"\n") + 1:
            return
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise BadInput(f"{file}, line {number} cannot be read: the ledger was changed")
        yield entry


def verify(file: Path) -> int:
    """How many lines the ledger has, or BadInput that names the first line that is not as it was written."""
    previous, count = _FIRST, 0
    for count, entry in enumerate(read_ledger(file), 1):
        claimed = entry.pop("hash", None)
        if entry.get("number") != count or entry.get("previous") != previous or claimed != _hash(entry):
            raise BadInput(f"{file}, line {count} is not as it was written: the ledger was changed")
        previous = claimed
    number, last = _head(file)
    if (number, last) != (count, previous) or file.read_bytes() != _rewritten(file):
        raise BadInput(f"{file} ends after line {count}, but {number} lines were written: the ledger was changed")
    return count


def _mend(file: Path) -> None:
    """A process that was killed while it wrote leaves lines that the head does not know, the last perhaps cut short."""
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    known = _head(file) if _head_file(file).exists() else (0, _FIRST)
    if whole.count(b"\n") <= known[0] and whole == data:
        return
    if whole != data:
        write_atomically(file, whole)
        file.chmod(0o600)
    entries = list(read_ledger(file))
    at = entries[known[0] - 1].get("hash") if 0 < known[0] <= len(entries) else _FIRST
    if entries and at == known[1]:
        write_atomically(_head_file(file), f"{len(entries)} {entries[-1].get('hash')}\n")


def _rewritten(file: Path) -> bytes:
    return b"".join(_line(entry) for entry in read_ledger(file))


def _head_file(file: Path) -> Path:
    return file.with_name(file.name + ".head")


def _head(file: Path) -> tuple[int, str]:
    try:
        number, last = _head_file(file).read_text().split()
        return int(number), last
    except (OSError, ValueError) as error:
        raise BadInput(f"{_head_file(file)}, which belongs to the ledger, cannot be read: the ledger was changed") from error


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_line(body)).hexdigest()
