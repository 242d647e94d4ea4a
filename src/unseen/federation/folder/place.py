"""The folder through which letters go. Others write to it too, so nothing in it is trusted and nothing but letters is touched.

A letter is called `q-` (question) or `a-` (answer), then digits for the federation, the site and the question: names that every stick
takes. It is written under another name and renamed, so that it appears whole. Each letter has one writer, and clocks do
not matter: when a file was changed is only ever compared with what the same folder said before.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from unseen.errors import BadInput
from unseen.federation.folder.letters import MOST_LETTER, LetterKind, UnreadableLetter, open_letter, read_envelope, write_letter
from unseen.federation.messages import SignedMessage

__all__ = ["LetterFolder", "SayOnce", "parse_carrier"]

_NAME = re.compile(r"([qa])-([0-9a-f]{12})-([0-9a-f]{12})-([0-9a-f]{24})\.letter")
_SCRATCH = re.compile(r"~([qa])-([0-9a-f]{12})-([0-9a-f]{12})-[0-9a-f]{12}\.tmp")
_INITIAL = {"question": "q", "answer": "a", "failure": "a"}
_AGAIN = 30.0  # seconds after which a letter that could not be read is tried again although it looks the same
_MOST_SAID, _MOST_FAILED = 200, 1000
_OPENING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_Stamp = tuple[int, int, int]


def parse_carrier(text: str) -> Path | None:
    """The folder in `folder:PATH`; None for `flower`."""
    if text == "flower":
        return None
    kind, _, place = text.partition(":")
    if kind != "folder" or not place:
        raise BadInput(f"carrier {text!r}; expected flower, or folder:PATH with a folder that server and sites share")
    path = Path(place).expanduser()
    if not path.is_dir():
        raise BadInput(f"carrier {text!r}: there is no folder {path}; make it, or mount the share or stick first")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise BadInput(f"carrier {text!r}: this user may not write to {path}")
    return path.resolve()


class SayOnce:
    """Says each thing once, and no more than a person would read."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()

    def __call__(self, what: str, message: str) -> None:
        if what not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(what)
            self._say(message)

    def forget(self, what: str) -> None:
        self._said.discard(what)


class LetterFolder:
    """The letters of one federation between its server and one site, seen from either end."""

    def __init__(self, path: Path, federation: str, site: str, say: SayOnce) -> None:
        self._path, self._federation, self._site, self._say = path, federation, site, say
        self._tags = _tag(federation), _tag(site)
        self._failed: dict[str, tuple[_Stamp, float]] = {}  # letters that could not be read: how they looked, and when to try again

    def key_of(self, question: SignedMessage) -> str:
        """The digits that name a question and its answer; the same question has the same after a restart.

        Its signature stands for all that it says, the receipt included: an answer under this name is never older than that receipt.
        """
        whole = f"unseen letter name 1 {self._federation} {self._site} ".encode() + question.signature
        return hashlib.sha256(whole).hexdigest()[:24]

    def _name(self, kind: LetterKind, key: str) -> str:
        return "-".join((_INITIAL[kind], *self._tags, key)) + ".letter"

    def keys(self, kind: LetterKind) -> set[str]:
        """Which letters are there."""
        found = set()
        for name in self._listed():
            fits = _NAME.fullmatch(name)
            if fits and fits.group(1) == _INITIAL[kind] and fits.group(2, 3) == self._tags:
                found.add(fits.group(4))
        return found

    def _listed(self) -> Iterator[str]:
        """Names in small letters: a stick may give them back in others."""
        try:
            names = [name.lower() for name in os.listdir(self._path)]
        except OSError as error:
            self._say("listing", f"{self._path} cannot be read ({error.strerror}); looking again until it can")
            return
        self._say.forget("listing")
        for name in names:
            if _NAME.fullmatch(name):
                yield name
            elif name.endswith(".letter"):
                self._say(name, f"{name[:100]!r} in {self._path} is left alone: a copy that something else made, not a letter's own name")
            elif not name.startswith((".", "~")):
                self._say("foreign", f"{self._path} holds other files too, such as {name[:100]!r}; they are left alone")

    def has(self, kind: LetterKind, key: str, sender: Ed25519PublicKey) -> LetterKind | None:
        """Of which kind the letter under this name is, if it is whole outside and from that sender; None if there is none."""
        with contextlib.suppress(UnreadableLetter, OSError), self._opened(self._name(kind, key)) as (stream, stamp):
            envelope, _ = read_envelope(stream, stamp[0], sender)
            if (envelope.federation, envelope.site, envelope.name) == (self._federation, self._site, self._name(kind, key)):
                return envelope.kind
        return None

    def read(self, kind: LetterKind, key: str, sender: Ed25519PublicKey, receiver: X25519PrivateKey) -> SignedMessage | str | None:
        """What the letter says; None if there is none, or none that can be read as yet."""
        name = self._name(kind, key)
        stamp = (0, 0, 0)
        try:
            with self._opened(name) as (stream, stamp):
                before, again = self._failed.get(name, (None, 0.0))
                if stamp == before and time.monotonic() < again:
                    return None
                envelope, outside = read_envelope(stream, stamp[0], sender)
                if (envelope.federation, envelope.site, envelope.name) != (self._federation, self._site, name):
                    raise UnreadableLetter("it was written for another place")
                if _INITIAL.get(envelope.kind) != _INITIAL[kind]:
                    raise UnreadableLetter("it is of another kind")
                letter = open_letter(stream, envelope, outside, receiver)
        except FileNotFoundError:
            return None
        except (UnreadableLetter, OSError) as error:
            if len(self._failed) >= _MOST_FAILED:
                self._failed.clear()
            self._failed[name] = stamp, time.monotonic() + _AGAIN
            what = error.strerror if isinstance(error, OSError) else error
            self._say(f"unreadable {name}", f"{name} is not read: {what}; trying again when it changes")
            return None
        self._failed.pop(name, None)
        return letter

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[tuple[BinaryIO, _Stamp]]:
        """A plain file of this folder, never what a link leads to, and how it looks; its size is bounded before a byte is read."""
        handle = os.open(self._path / name, _OPENING)
        try:
            looks = os.fstat(handle)
            if not stat.S_ISREG(looks.st_mode):
                raise UnreadableLetter("it is no plain file")
            if looks.st_size > MOST_LETTER:
                raise UnreadableLetter(f"it has {looks.st_size:,} bytes, and a letter at most {MOST_LETTER:,}")
            with os.fdopen(handle, "rb", closefd=False) as stream:
                yield stream, (looks.st_size, looks.st_mtime_ns, looks.st_ino)
        finally:
            os.close(handle)

    def write(self, kind: LetterKind, key: str, message: SignedMessage | str, sender: Ed25519PrivateKey, receiver: X25519PublicKey) -> bool:
        """Whether the letter now lies there, whole. If it does not, why was said, and it can be tried again."""
        name = self._name(kind, key)
        scratch = self._path / f"~{_INITIAL[kind]}-{'-'.join(self._tags)}-{secrets.token_hex(6)}.tmp"
        try:
            with os.fdopen(os.open(scratch, _WRITING, 0o666), "wb") as stream:
                write_letter(stream, kind, (self._federation, self._site, name), message, sender, receiver)
                stream.flush()
                _settle(stream.fileno())
            os.replace(scratch, self._path / name)
        except OSError as error:
            self._say(f"writing {name}", f"{self._path} takes no letter ({error.strerror}); trying again until it does")
            return False
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink()
        self._sync_folder()
        return True

    def delete(self, kind: LetterKind, key: str) -> None:
        with contextlib.suppress(OSError):
            (self._path / self._name(kind, key)).unlink()

    def delete_scratch(self, kind: LetterKind) -> None:
        """What a killed process of this end left half written."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._path):
                fits = _SCRATCH.fullmatch(name.lower())
                if fits and fits.groups() == (_INITIAL[kind], *self._tags):
                    (self._path / name).unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        """A stick that is pulled out must not lose a name; not every system syncs folders."""
        with contextlib.suppress(OSError):
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _settle(handle: int) -> None:
    """On the disk, and readable by the other end, which may be another user; some shares and sticks can do neither."""
    with contextlib.suppress(OSError, AttributeError):
        os.fchmod(handle, 0o644)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _tag(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]
