"""The answers of the present round, on the server's disk: they wait there for the last one, and a killed server goes by those it had.

A question that was asked again with other numbers would be refused by the sites, so a round that is repeated must come to the same
questions: it reads from here what it was told the first time, who gave no answer included.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.engines.tasks import Place
from unseen.errors import RefusedReply
from unseen.federation.server.beside import epsilon_told
from unseen.files import write_atomically
from unseen.method import Refused

__all__ = ["Arrived", "Journal", "PlaceJournal", "Question"]

_LARGE = 2**22  # bytes
_SUM = "sum.answer"


@dataclass(frozen=True)
class Arrived:
    """An answer that passed its checks and waits for the others."""

    file: Path
    staged: dict[str, str]
    epsilon: float | None


class Question:
    """The bytes of a question. Where they are many, they take memory only while they are being read."""

    def __init__(self, parts: tuple[bytes | memoryview, ...], folder: Path) -> None:
        self.bytes: bytes | memoryview
        self._mapped: mmap.mmap | None = None
        if sum(map(len, parts)) < _LARGE:
            self.bytes = b"".join(parts)
            return
        with tempfile.TemporaryFile(dir=folder) as file:
            for part in parts:
                file.write(part)
            file.flush()
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.bytes = memoryview(self._mapped)

    def rest(self) -> None:
        """It was sent. Should it be sent again, it is read again."""
        if self._mapped is not None:
            with contextlib.suppress(AttributeError, OSError):  # not every system can
                self._mapped.madvise(mmap.MADV_DONTNEED)


class PlaceJournal:
    """The answers to one question."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def question(self, parts: tuple[bytes | memoryview, ...]) -> Question:
        """A question in bytes, which several sites are asked. A large one lies in a file without a name, not in memory."""
        return Question(parts, self._folder)

    def put(self, site: str, payload: bytes | memoryview, staged: dict[str, str], epsilon: float | None) -> Arrived:
        file = self._folder / f"{site}.answer"
        write_atomically(file, payload)
        write_atomically(self._folder / f"{site}.json", json.dumps({"staged": staged, "epsilon": epsilon}))
        return Arrived(file, staged, epsilon)

    def put_sum(self, payload: tuple[bytes | memoryview, ...], staged: Mapping[str, dict[str, str]], epsilon: Mapping[str, float]) -> None:
        """What the sites answered on average: it stands for each of them."""
        write_atomically(self.sum, payload)
        for site, files in staged.items():
            about = {"staged": files, "epsilon": epsilon.get(site), "file": _SUM}
            write_atomically(self._folder / f"{site}.json", json.dumps(about))

    @property
    def sum(self) -> Path:
        """The one file that stands for every site's answer where they were summed."""
        return self._folder / _SUM

    @property
    def unfinished_sum(self) -> Path:
        """Where a sum is kept between its steps."""
        return self._folder / "sum.state"

    def close(self, refused: Mapping[str, str]) -> None:
        """Nobody is waited for any more: from now on these gave no usable answer, whatever comes."""
        write_atomically(self._folder / "refused", json.dumps(dict(refused)))

    def reopen(self) -> None:
        """Those who gave no usable answer are asked once more."""
        (self._folder / "refused").unlink(missing_ok=True)

    @property
    def closed(self) -> bool:
        return (self._folder / "refused").exists()

    def answers(self) -> dict[str, Arrived | Refused]:
        """What is known so far, by site. An answer that another version took, and that this one does not take, is one that is missing."""
        found: dict[str, Arrived | Refused] = {}
        for file in sorted(self._folder.glob("*.json")):
            about: dict[str, Any] = json.loads(file.read_text())
            try:
                epsilon = epsilon_told(about["epsilon"])
            except RefusedReply as refusal:
                if self.closed:
                    found[file.stem] = Refused(str(refusal))
                continue
            found[file.stem] = Arrived(self._folder / about.get("file", f"{file.stem}.answer"), about["staged"], epsilon)
        if self.closed:
            found |= {site: Refused(reason) for site, reason in json.loads((self._folder / "refused").read_text()).items()}
        return found


class Journal:
    """The answers of one round; those of the round before go when a new one begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def at(self, place: Place) -> PlaceJournal:
        if self._folder.exists():
            for old in self._folder.iterdir():
                if not old.name.startswith(f"{place.round:06d}."):
                    shutil.rmtree(old, ignore_errors=True)
        return PlaceJournal(self._folder / f"{place.round:06d}.{place.ask}")

    def clear(self) -> None:
        """The run has ended: single answers are needed no more."""
        shutil.rmtree(self._folder, ignore_errors=True)
