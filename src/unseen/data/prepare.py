"""Decoding a data set once, on all cores, into arrays on the disk."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from unseen.data.cache import FORMAT
from unseen.data.reading.piece import Block, Facts, Piece, ReadPlan
from unseen.errors import BadInput
from unseen.machine import cores
from unseen.task import Classification, Segmentation, Task

__all__ = ["Progress", "write_dataset"]

Progress = Callable[[int, int], None]  # pieces done, pieces in all
_SHOWN = 10  # unreadable files that a message names
_ENLARGED = 16  # times that an image may be enlarged without a word
_AHEAD = 4  # blocks per worker that may wait to be written


def write_dataset(
    folder: Path, name: str, plan: ReadPlan, size: int, source: dict[str, Any], progress: Progress | None, workers: int | None
) -> None:
    """Write the arrays of every domain and the manifest. Every file that cannot be used is named in one BadInput."""
    total, done = sum(len(pieces) for pieces in plan.domains.values()), 0
    bad: list[str] = []
    entries, small = [], []
    for number, (domain, pieces) in enumerate(plan.domains.items()):
        with _DomainWriter(folder, number, domain) as writer:
            for block in _blocks(pieces, size, workers or cores()):
                done += 1
                if progress is not None:
                    progress(done, total)
                if isinstance(block, BadInput):
                    bad += block.problems
                elif not bad:  # nothing is kept once a file is bad, but the others are tried, to name all bad ones at once
                    writer.add(block)
            if not bad:
                small += writer.enlarged(size)
                entries.append(writer.finish(plan.task.outputs if plan.task.name == "classification" else 0))
    if bad:
        more = [f"and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
        raise BadInput([f"{len(bad)} of {total} files of {name} cannot be used; repair or remove them", *bad[:_SHOWN], *more])
    manifest = {
        "format": FORMAT,
        "name": name,
        "task": plan.task.name,
        "outputs": _outputs(plan.task),
        "pixels": {"mean": plan.pixels.mean, "std": plan.pixels.std},
        "network": plan.network,
        "augment": plan.augment,
        "notes": [*plan.notes, *small],
        "options": {"size": size},
        "source": source,
        "versions": _versions(),
        "domains": entries,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _outputs(task: Task) -> tuple[str, ...]:
    assert isinstance(task, Classification | Segmentation)
    return task.classes if isinstance(task, Classification) else task.structures


def _blocks(pieces: Sequence[Piece], size: int, workers: int) -> Iterator[Block | BadInput]:
    """The blocks in order, decoded a little ahead. Threads suffice: decoding and resizing hold no interpreter lock."""

    def decode(piece: Piece) -> Block | BadInput:
        try:
            return piece.block(size)
        except BadInput as bad:
            return bad

    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[Block | BadInput]] = deque()
    try:
        for piece in pieces:
            waiting.append(pool.submit(decode, piece))
            if len(waiting) >= _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _DomainWriter:
    """The files of one domain, growing block by block."""

    def __init__(self, folder: Path, number: int, name: str) -> None:
        self.path, self.name = folder / str(number), name
        self.images = _GrowingArray(folder / f"{number}.images.npy")
        self.masks = _GrowingArray(folder / f"{number}.labels.npy")
        self.labels: list[NDArray[np.int64]] = []
        self.facts: list[Facts] = []
        self.spacing: list[NDArray[np.float32]] = []
        self.modes: Counter[str] = Counter()
        self.sizes: set[tuple[int, int]] = set()
        self.smallest: tuple[int, str] | None = None  # shorter side in pixels, and which image

    def __enter__(self) -> _DomainWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.images.close()
        self.masks.close()

    def add(self, block: Block) -> None:
        self.images.append(block.images)
        if block.labels.ndim > 1:
            self.masks.append(block.labels)
        else:
            self.labels.append(block.labels.astype(np.int64))
        self.facts += block.facts
        if block.spacing is not None:
            self.spacing.append(block.spacing)
        self.modes.update(original.mode for original in block.originals)
        self.sizes.update((original.width, original.height) for original in block.originals)
        sides = [(min(original.width, original.height), fact.id) for original, fact in zip(block.originals, block.facts, strict=False)]
        self.smallest = min([*sides, *([self.smallest] if self.smallest else [])], default=None)

    def enlarged(self, size: int) -> list[str]:
        """A note where an image is stretched to several times its size: it may be a thumbnail, or no image at all."""
        if self.smallest is None or _ENLARGED * self.smallest[0] >= size:
            return []
        return [f"{self.name}: {self.smallest[1]} is {self.smallest[0]} px on its shorter side and is enlarged to {size} px; look at it"]

    def finish(self, classes: int) -> dict[str, Any]:
        """Write what is small, and say what there is."""
        entry: dict[str, Any] = {"name": self.name, "samples": len(self.facts), "images": self.images.finish()}
        if self.labels:
            labels = np.concatenate(self.labels)
            self._save("labels", labels)
            entry["per_class"] = np.bincount(labels, minlength=classes).tolist()
        else:
            entry["masks"] = self.masks.finish()
        self._save("ids", np.array([f.id for f in self.facts]))
        if any(f.group for f in self.facts):  # a sample of unknown patient is a group of its own
            self._save("groups", np.array([f.group or f.id for f in self.facts]))
        if all(f.split for f in self.facts):
            self._save("split", np.array([f.split for f in self.facts]))
        if self.spacing:
            self._save("spacing", np.concatenate(self.spacing))
        widths, heights = zip(*self.sizes) if self.sizes else ((0,), (0,))
        entry["originals"] = {"modes": dict(self.modes), "width": [min(widths), max(widths)], "height": [min(heights), max(heights)]}
        return entry

    def _save(self, what: str, array: NDArray[Any]) -> None:
        np.save(self.path.with_name(f"{self.path.name}.{what}.npy"), array, allow_pickle=False)


class _GrowingArray:
    """A .npy file of bytes whose length is known only at its end; the header is written last."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self.shape: tuple[int, ...] = ()
        self.digest = hashlib.sha256()
        self.file: BinaryIO | None = None

    def append(self, rows: NDArray[np.uint8]) -> None:
        if self.file is None:
            self.shape, self.file = rows.shape[1:], self.path.open("wb")
            self._header()
        data = np.ascontiguousarray(rows, dtype=np.uint8).data
        self.file.write(data)
        self.digest.update(data)
        self.rows += len(rows)

    def finish(self) -> dict[str, Any]:
        if self.file is None:
            raise BadInput(f"{self.path.name} would be empty")
        self._header()
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"shape": [self.rows, *self.shape], "sha256": self.digest.hexdigest()}

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _header(self) -> None:
        """numpy leaves room for the first dimension to grow, so that the header's length stays the same."""
        assert self.file is not None
        self.file.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)


def _versions() -> dict[str, str]:
    from importlib import metadata

    versions = {"python": platform.python_version()}
    for package in ("unseen", "numpy", "pillow"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            versions[package] = "not installed"
    return versions
