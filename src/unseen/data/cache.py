"""Where prepared data lies, and how it gets there whole or not at all.

    <cache>/<data set>-<size>px/current            the name of the version that counts
    <cache>/<data set>-<size>px/<version>/         manifest.json and the arrays of each domain
    <cache>/<data set>-<size>px/.scratch-*         a version that is being made

A version is made in a scratch folder, renamed when it is complete, and then named in `current`: whoever loads meanwhile sees
the old one or the new one. A lock lets one process at a time prepare; it is the system's, so it dies with its process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from unseen.data.domain import Domain, DomainDataset, Pixels
from unseen.errors import BadInput
from unseen.files import write_atomically
from unseen.task import Classification, Segmentation

__all__ = ["FORMAT", "CacheSlot", "Prepared", "cache_root", "everything_prepared"]

FORMAT = 1  # raised when what is written changes, so that older versions are prepared anew


def cache_root(cache: Path | None = None) -> Path:
    """The folder given, else the environment's UNSEEN_CACHE, else the platform's cache folder."""
    named = cache or os.environ.get("UNSEEN_CACHE")
    if named is None:
        import platformdirs  # only here: machines that name a cache need not have it

        named = platformdirs.user_cache_dir("unseen")
    return Path(named).expanduser()


@dataclass(frozen=True)
class Prepared:
    """A data set on the disk, ready to be mapped into memory."""

    folder: Path
    manifest: dict[str, Any]

    def dataset(self) -> DomainDataset:
        """The data set. Images and masks are mapped: nothing of them is read before batches are drawn."""
        m = self.manifest
        task = Classification(tuple(m["outputs"])) if m["task"] == "classification" else Segmentation(tuple(m["outputs"]))
        pixels = Pixels(tuple(m["pixels"]["mean"]), tuple(m["pixels"]["std"]))
        try:
            domains = tuple(self._domain(number, entry["name"]) for number, entry in enumerate(m["domains"]))
        except (OSError, ValueError, EOFError) as error:
            raise BadInput(f"the prepared data in {self.folder} are damaged ({error}); delete that folder and prepare them again") from None
        return DomainDataset(m["name"], task, domains, pixels, m["network"], m["augment"], tuple(m["notes"]))

    def ids(self, domain: str) -> NDArray[np.str_]:
        """Where each sample of a domain came from, in the order of its samples."""
        number = [entry["name"] for entry in self.manifest["domains"]].index(domain)
        ids: NDArray[np.str_] = self._array(number, "ids")
        return ids

    def _domain(self, number: int, name: str) -> Domain:
        def optional(what: str) -> Any:
            return self._array(number, what) if (self.folder / f"{number}.{what}.npy").exists() else None

        labels = self._array(number, "labels")
        parts = {what: optional(what) for what in ("groups", "split", "spacing")}
        return Domain(name, self._array(number, "images"), labels if labels.ndim > 1 else np.array(labels), **parts)

    def _array(self, number: int, what: str) -> Any:
        return np.load(self.folder / f"{number}.{what}.npy", mmap_mode="r", allow_pickle=False)


class CacheSlot:
    """The place of one data set at one size in the cache."""

    def __init__(self, root: Path, name: str, size: int) -> None:
        self.root = root
        self.folder = root / f"{_plain(name)}-{size}px"

    def current(self) -> Prepared | None:
        """What was prepared last, or None."""
        try:
            folder = self.folder / (self.folder / "current").read_text().strip()
            manifest = json.loads((folder / "manifest.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise BadInput(f"the prepared data in {self.folder} are damaged ({error}); delete that folder and prepare them again") from None
        return Prepared(folder, manifest) if manifest.get("format") == FORMAT else None

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """One process at a time; another one waits here and may then find the work done."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"the cache {self.root} cannot be written: {error.strerror}; name another folder: UNSEEN_CACHE=/path") from None
        with FileLock(self.folder / ".lock"):
            for left_over in self.folder.glob(".scratch-*"):  # of a process that was killed: nobody else is here now
                shutil.rmtree(left_over, ignore_errors=True)
            yield

    @contextlib.contextmanager
    def version(self, key: str) -> Iterator[Path]:
        """A scratch folder that becomes the current version when the block ends, and vanishes when it fails."""
        scratch = Path(tempfile.mkdtemp(prefix=".scratch-", dir=self.folder))
        try:
            yield scratch
            place = self.folder / f"{key[:16]}-{scratch.name.removeprefix('.scratch-')}"
            scratch.rename(place)
            write_atomically(self.folder / "current", place.name)
        except BaseException as error:
            shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BadInput(f"no space left for the cache {self.root}; make room, or name another folder: UNSEEN_CACHE=/path") from None
            raise
        for old in self.folder.iterdir():
            if old.is_dir() and old != place:
                shutil.rmtree(old, ignore_errors=True)  # may be mapped by another process: then the system keeps what that one needs


def everything_prepared(root: Path) -> dict[str, list[int]]:
    """What the cache holds, with the sizes in pixels: data sets by name, a user's own by where they lie."""
    found: dict[str, list[int]] = {}
    for current in sorted(root.glob("*px/current")):
        try:
            manifest = json.loads((current.parent / current.read_text().strip() / "manifest.json").read_text())
            own = current.parent.name.rpartition("-")[0] != manifest["name"]
            name, size = manifest["source"]["path"] if own else manifest["name"], int(manifest["options"]["size"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # whoever loads it says what is wrong
        if manifest.get("format") == FORMAT:
            found.setdefault(str(name), []).append(size)
    return {name: sorted(sizes) for name, sizes in found.items()}


def _plain(name: str) -> str:
    """A folder's name for any data set's name.

    >>> _plain("pacs"), _plain("folder:/data/My Sites")
    ('pacs', 'My_Sites-08f7eaa054')
    """
    if re.fullmatch(r"[a-z0-9-]+", name):
        return name
    readable = re.sub(r"\W+", "_", Path(name.partition(":")[2]).name)[:40]
    return f"{readable}-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:10]}"
