"""What clients remember, on the disk: one file per client and kind, a new version per task, committed with the round.

A version is written when a task ends and counts only once the reply was accepted, so a refused update leaves no trace in
a client's memory, and a run that is cut short goes back to the versions that its checkpoint names.

What a client remembers on a GPU it recalls there. The last versions also stay there, as far as they find room: the next task reads them
without a way over the disk, and they are written while it trains.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from unseen.codec import decode, encode, encode_parts, notes_in, tensors_in
from unseen.device.streams import once_done
from unseen.files import write_atomically
from unseen.payload import Memory
from unseen.runs.writing import Writer

__all__ = ["FILE_OF_MEMORY", "Memories", "MemoryStore", "Versions"]

M = TypeVar("M", bound=Memory)
T = TypeVar("T")
FILE_OF_MEMORY = re.compile(r"[0-9a-f]{20}/[A-Za-z_][A-Za-z0-9_]{0,80}\.[0-9]{6}-[0-9-]{3}\.safetensors")  # below the store's folder
Versions = dict[str, dict[str, str]]  # client -> kind -> file, relative to the store
_CPU = torch.device("cpu")
_ON_THE_GPU = "on the GPU"  # a file's note: which of its tensors lay there
_PART = 32  # the last versions have one part of so many of a GPU's memory


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
        self._near: dict[tuple[str, str], tuple[str, Memory]] = {}  # by client and kind: the file, and what it holds, on a GPU

    def recall(self, client: str, kind: type[M], device: torch.device = _CPU) -> M | None:
        """What counts of that kind; the recaller's own. What lay on a GPU lies on `device`."""
        file = self.versions.get(client, {}).get(kind.__name__)
        if file is None:
            return None
        kept, near = self._near.get((client, kind.__name__), ("", None))
        if kept == file and isinstance(near, kind):
            return _mapped(near, lambda _, tensor: tensor.clone())
        if self.writer is not None:
            self.writer.flush()
        data = (self.root / file).read_bytes()
        there = set(json.loads(notes_in(data).get(_ON_THE_GPU, "[]")))
        return _mapped(decode(kind, data), lambda path, tensor: tensor.to(device) if path in there else tensor)

    def stage(self, client: str, memory: Memory, place: str) -> str:
        """Write a version that does not count yet, or have it written; returns its file."""
        folder = hashlib.sha256(client.encode()).hexdigest()[:20]  # a client's name may hold anything, a path must not
        file = f"{folder}/{type(memory).__name__}.{place}.safetensors"
        (self.root / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        there = {path: tensor for path, tensor in tensors_in(memory, type(memory)) if tensor.is_cuda}
        notes = {_ON_THE_GPU: json.dumps([*there])} if there else None

        def write() -> None:
            write_atomically(self.root / file, encode_parts(memory, notes=notes))

        if self.writer is None:
            write()
        elif not there:
            self.writer.later(write_atomically, self.root / file, encode(memory))
        else:
            device = next(iter(there.values())).device
            self._keep_near(client, memory, file, torch.cuda.get_device_properties(device).total_memory // _PART)
            self.writer.later(once_done(write, device))
        return file

    def _keep_near(self, client: str, memory: Memory, file: str, room: int) -> None:
        """The oldest make room, which is so many bytes."""
        key = client, type(memory).__name__
        self._near.pop(key, None)
        self._near[key] = file, memory
        while len(self._near) > 1 and sum(_size(held) for _, held in self._near.values()) > room:
            del self._near[next(iter(self._near))]

    def holds(self, file: str) -> bool:
        return (self.root / file).exists()

    def sweep(self, *keep: Versions) -> None:
        named = self.named(*keep)
        if self.root.exists():
            for path in self.root.glob("*/*.safetensors"):
                if path.relative_to(self.root).as_posix() not in named:
                    path.unlink()


def _mapped(value: T, change: Callable[[str, Tensor], Tensor], where: str = "") -> T:
    """The value with every tensor inside it replaced by what `change` makes of its path, as `tensors_in` has it, and it."""

    def mapped(key: Any, item: Any) -> Any:
        return _mapped(item, change, f"{where}.{key}" if where else str(key))

    if isinstance(value, Tensor):
        return cast(T, change(where, value))
    if isinstance(value, dict):
        return cast(T, {key: mapped(key, item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return cast(T, type(value)(mapped(key, item) for key, item in enumerate(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return cast(
            T, dataclasses.replace(value, **{one.name: mapped(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)})
        )
    return value


def _size(memory: Memory) -> int:
    return sum(tensor.nbytes for _, tensor in tensors_in(memory, type(memory)))
