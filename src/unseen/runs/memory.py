"""What clients remember, on the disk: one file per client and kind, a new version per task, committed with the round.

A version is written when a task ends and counts only once the reply was accepted, so a refused update leaves no trace in
a client's memory, and a run that is cut short goes back to the versions that its checkpoint names.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from unseen.codec import decode, encode
from unseen.files import write_atomically
from unseen.payload import Memory
from unseen.runs.writing import Writer

__all__ = ["FILE_OF_MEMORY", "Memories", "MemoryStore", "Versions"]

M = TypeVar("M", bound=Memory)
FILE_OF_MEMORY = re.compile(r"[0-9a-f]{20}/[A-Za-z_][A-Za-z0-9_]{0,80}\.[0-9]{6}-[0-9-]{3}\.safetensors")  # below the store's folder
Versions = dict[str, dict[str, str]]  # client -> kind -> file, relative to the store


class Memories(ABC):
    """The clients' memories of one run, wherever they lie: which version of each counts."""

    def __init__(self, writer: Writer | None = None) -> None:
        self.versions: Versions = {}
        self.writer = writer  # who writes them, if this process does

    def commit(self, client: str, staged: Mapping[str, str]) -> None:
        """From now on these versions of a client's memories count."""
        if staged:
            self.versions = {**self.versions, client: {**self.versions.get(client, {}), **staged}}

    @abstractmethod
    def holds(self, file: str) -> bool:
        """Whether a version can still be recalled."""

    @abstractmethod
    def sweep(self, *keep: Versions) -> None:
        """Forget every version that neither counts now nor is named here."""

    def named(self, *keep: Versions) -> set[str]:
        """The files that count now or that `keep` names."""
        return {file for versions in (self.versions, *keep) for kinds in versions.values() for file in kinds.values()}


class MemoryStore(Memories):
    """Memories in a folder of this machine."""

    def __init__(self, root: Path, writer: Writer | None = None) -> None:
        super().__init__(writer)
        self.root = root

    def recall(self, client: str, kind: type[M]) -> M | None:
        file = self.versions.get(client, {}).get(kind.__name__)
        if file is not None and self.writer is not None:
            self.writer.flush()
        return None if file is None else decode(kind, (self.root / file).read_bytes())

    def stage(self, client: str, memory: Memory, place: str) -> str:
        """Write a version that does not count yet, or have it written; returns its file."""
        folder = hashlib.sha256(client.encode()).hexdigest()[:20]  # a client's name may hold anything, a path must not
        file = f"{folder}/{type(memory).__name__}.{place}.safetensors"
        (self.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.writer is None:
            write_atomically(self.root / file, encode(memory))
        else:
            self.writer.later(write_atomically, self.root / file, encode(memory))
        return file

    def holds(self, file: str) -> bool:
        return (self.root / file).exists()

    def sweep(self, *keep: Versions) -> None:
        named = self.named(*keep)
        if self.root.exists():
            for path in self.root.glob("*/*.safetensors"):
                if path.relative_to(self.root).as_posix() not in named:
                    path.unlink()
