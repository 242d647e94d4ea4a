"""From a name to a data set."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from pathlib import Path
from typing import Any

from unseen.data.cache import FORMAT, CacheSlot, Prepared, cache_root
from unseen.data.domain import DomainDataset
from unseen.data.prepare import Progress, write_dataset
from unseen.data.reading.archive import open_source
from unseen.data.reading.class_folders import normal
from unseen.data.reading.manifest import TableSource
from unseen.data.reading.piece import ReadPlan
from unseen.data.reading.source import Source, WrongLayout, files_fingerprint
from unseen.data.sets.entry import DatasetEntry
from unseen.data.sets.registry import DATASETS, OWN_FOLDER, OWN_TABLE
from unseen.errors import BadInput, nearest

__all__ = ["load", "prepare", "prepared", "recognise"]

_SIZES = (8, 4096)  # pixels of a side that make sense


def load(spec: str, *, cache: Path | None = None, size: int | None = None) -> DomainDataset:
    """The data set called `spec`: a name of DATASETS, `folder:PATH` or `csv:PATH`.

    Embedded sets are made; others are mapped from the cache, into which `folder:` and `csv:` put themselves when they are
    new or their files changed.
    """
    entry, _ = _resolved(spec)
    if entry.make is not None:
        if size is not None and size != entry.size:
            raise BadInput(f"{spec} is made at {entry.size} pixels; a size of {size} is not to be had")
        return entry.make()
    return prepared(spec, cache=cache, size=size).dataset()


def prepared(spec: str, *, cache: Path | None = None, size: int | None = None) -> Prepared:
    """What the cache holds of a data set: its manifest, and where each sample came from."""
    entry, own = _resolved(spec)
    if entry.make is not None:
        raise BadInput(f"{spec} is made on the spot; nothing of it is prepared")
    size = _checked_size(size or entry.size)
    if own is not None:
        prepare(spec, cache=cache, size=size)
    found = _slot(spec, own, cache, size).current()
    if found is None:
        option = "" if size == entry.size else f" --size {size}"
        raise BadInput(
            f"{spec} is not prepared at {size} pixels in {cache_root(cache)}: run unseen data prepare {spec} --from FOLDER{option}"
        )
    return found


def prepare(
    spec: str,
    source: Path | None = None,
    *,
    cache: Path | None = None,
    size: int | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Path:
    """Decode a data set into the cache, unless that was done from the same files with the same options; where it lies now.

    `source` is the folder or archive of a named data set; `folder:PATH` and `csv:PATH` bring their own.
    """
    entry, own = _resolved(spec)
    if entry.make is not None:
        raise BadInput(f"{spec} is made on the spot; there is nothing to prepare")
    path = own or source
    if path is None:
        raise BadInput(f"say where the files of {spec} are: unseen data prepare {spec} --from FOLDER. Expected: {entry.layout}")
    path = Path(path).expanduser().absolute()
    size = _checked_size(size or entry.size)
    slot = _slot(spec, own, cache, size)
    origin = _origin(entry, path, size)
    if _is_current(slot.current(), origin):
        return _folder_of(slot)
    with slot.preparing():
        if not _is_current(slot.current(), origin):  # another process may have done it while this one waited
            with closing(_opened(entry, path)) as files, slot.version(origin["key"]) as folder:
                name = spec if own is None else path.stem if entry is OWN_TABLE else path.name
                write_dataset(folder, name, _planned(entry, files), size, origin, progress, workers)
        return _folder_of(slot)


def recognise(path: Path) -> str | None:
    """The known data set whose files these look like, or None."""
    with closing(open_source(path)) as source:
        return _recognised(source)


def _resolved(spec: str) -> tuple[DatasetEntry, Path | None]:
    """The entry, and the path of a data set that is the user's own."""
    kind, colon, rest = spec.partition(":")
    if colon and kind in ("folder", "csv"):
        if not rest:
            raise BadInput(f"{spec!r} has no path; expected {kind}:PATH")
        return (OWN_FOLDER if kind == "folder" else OWN_TABLE), Path(rest)
    if spec not in DATASETS:
        raise BadInput(f"no data set {spec!r}{nearest(spec, DATASETS)}; your own is folder:PATH or csv:PATH")
    return DATASETS[spec], None


def _slot(spec: str, own: Path | None, cache: Path | None, size: int) -> CacheSlot:
    """A user's own data are known by where they lie, from whatever folder that is said."""
    name = spec if own is None else f"{spec.partition(':')[0]}:{own.expanduser().absolute()}"
    return CacheSlot(cache_root(cache), name, size)


def _checked_size(size: int) -> int:
    low, high = _SIZES
    if not low <= size <= high:
        raise BadInput(f"size is {size}; expected {low} to {high} pixels")
    return size


def _opened(entry: DatasetEntry, path: Path) -> Source:
    return TableSource(path) if entry is OWN_TABLE else open_source(path)


def _origin(entry: DatasetEntry, path: Path, size: int) -> dict[str, Any]:
    """What the prepared data were made from: any change of it makes them anew."""
    if not path.exists():
        raise BadInput(f"{path} does not exist; expected {entry.layout}")
    listing = files_fingerprint(path)
    if entry is OWN_TABLE:
        listing = hashlib.sha256("\n".join([listing, *TableSource(path).fingerprints()]).encode()).hexdigest()
    key = hashlib.sha256(f"{FORMAT} {entry.name} {size} {listing}".encode()).hexdigest()
    return {"path": str(path), "sha256": listing, "key": key}


def _is_current(found: Prepared | None, origin: dict[str, Any]) -> bool:
    return found is not None and found.manifest["source"]["key"] == origin["key"]


def _folder_of(slot: CacheSlot) -> Path:
    found = slot.current()
    assert found is not None
    return found.folder


def _planned(entry: DatasetEntry, source: Source) -> ReadPlan:
    assert entry.read is not None
    try:
        return entry.read(source)
    except WrongLayout as wrong:
        known = _recognised(source)
        hint = "" if known in (None, entry.name) else f" It looks like {known}: unseen data prepare {known} --from {source.label}."
        raise BadInput(
            f"{source.label} is not laid out as {entry.name}: {wrong}. Expected {entry.layout}. Found {source.found()}.{hint}"
        ) from None


def _recognised(source: Source) -> str | None:
    """By file names that only one data set has, else by the share of its domains that are folders here."""
    for entry in DATASETS.values():
        if any(re.search(mark, name) for mark in entry.marks for name in source.names):
            return entry.name
    folders = {normal(part) for name in source.names for part in name.split("/")[:-1]}
    shares = {e.name: sum(normal(d) in folders for d in e.domains) / len(e.domains) for e in DATASETS.values() if e.domains and e.read}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0.5 else None
