"""What happens in a federation, told to whoever looks on: a screen, a log, a command that asks.

One kind of event serves both ends. Names and reasons in it may come from the other end, so every text goes through `printable` before
anybody sees it. An event holds sizes, times and names of fields; it never holds data.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["BoundedLog", "Event", "Kind", "Observer", "amount", "clock_text", "nobody", "printable"]

Kind = Literal[
    "note",  # anything that is said
    "connected",
    "lost",  # the line to the other end
    "asked",  # a question, and the work on it begins
    "answered",  # what left a site
    "again",  # the same answer once more: it had been lost on its way
    "refused",
    "failed",
    "waits",  # a study that nobody here has approved
    "approved",
    "ended",  # a study, after its last round
]
_IN_WORDS = {"lost": "not connected", "waits": "waits for approval"}
_MOST_TEXT = 500  # characters
_MOST_LOG = 5 * 2**20  # bytes; one older part of the same size is kept


@dataclass(frozen=True)
class Event:
    """One thing that happened. At the server `site` says where; at a site it is empty."""

    kind: Kind
    text: str = ""  # why, or what
    site: str = ""
    study: str = ""  # its whole name
    round: int | None = None
    rounds: int = 0  # of the study
    task: str = ""
    bytes: int = 0
    seconds: float = 0.0
    next: str = ""  # what is asked after it
    ask: int = 0  # where in the round, as the study numbers its questions, and which step of a sum
    step: int = 0

    @property
    def line(self) -> str:
        """The event as a log has it."""
        return self._told(f"study {self.study[:8]}" if self.study else "", f" of {self.rounds}")

    @property
    def brief(self) -> str:
        """The event beside others of its study, on a narrow screen."""
        return self._told(self.study[:4], "")

    def _told(self, study: str, of: str) -> str:
        where = [self.site, study]
        if self.round is not None:
            where.append("before round 1" if self.round == 0 else f"round {self.round}{of}")
        where.append(self.task)
        what: str = self.kind if self.kind != "note" else ""
        if self.kind == "asked" and self.bytes:
            what = f"asked, with {amount(self.bytes)}"
        elif self.kind == "answered":
            what = f"answered, {amount(self.bytes)} in {clock_text(self.seconds)}"
        elif self.kind == "again":
            what = f"answered once more as before, {amount(self.bytes)}"
        elif self.kind in _IN_WORDS:
            what = _IN_WORDS[self.kind]
        head = ", ".join(printable(word) for word in where if word)
        told = ": ".join(word for word in (what, printable(self.text)) if word)
        return f"{head}: {told}" if head and told else head or told


Observer = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Looks on."""


def printable(text: str, most: int = _MOST_TEXT) -> str:
    """Text that cannot move the cursor, colour the screen or begin a line of its own, and is no longer than a person reads.

    >>> printable("a\\x1b[31mred\\nb"), printable("abcdef", 4)
    ('a?[31mred?b', 'abc…')
    """
    seen = "".join(c if c.isprintable() else "?" for c in text[: most + 1])
    return seen if len(seen) <= most else seen[: most - 1] + "…"


def amount(size: float) -> str:
    """Bytes as people say them.

    >>> [amount(n) for n in (1, 800, 45_123_000, 3_200_000_000)]
    ['1 byte', '800 bytes', '45.1 MB', '3.2 GB']
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:g} byte{'' if size == 1 else 's'}"


def clock_text(seconds: float) -> str:
    """How long something took, or takes.

    >>> [clock_text(s) for s in (0.04, 7.26, 75, 7322, 200_000)]
    ['0.0 s', '7.3 s', '1 min 15 s', '2 h 02 min', '2 d 7 h']
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


class BoundedLog:
    """Lines in a file that its owner alone reads. Several processes may append to it; it never takes more than twice its bound."""

    def __init__(self, file: Path, most: int = _MOST_LOG) -> None:
        self._file, self._most = file, most

    def __call__(self, event: Event) -> None:
        self.write(event.line)

    def write(self, line: str) -> None:
        """A log must not stop what it tells of, so a disk that is full costs the line."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, f"{stamp} {line}\n".encode(errors="replace"))
            finally:
                os.close(handle)
        self.bound()

    def bound(self) -> None:
        """Whatever is too much goes to FILE.1, and what was there is forgotten.

        The file itself is emptied, not replaced: other processes append to it, and go on at its new end.
        """
        with contextlib.suppress(OSError):
            if self._file.stat().st_size > self._most:
                with self._file.open("rb+") as stream:
                    stream.seek(max(0, stream.seek(0, os.SEEK_END) - self._most))
                    older, target = stream.read(), self._file.with_name(f"{self._file.name}.1")
                    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as kept:
                        kept.write(older)
                    stream.truncate(0)
