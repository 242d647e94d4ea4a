"""Which runs of a benchmark failed, and why: kept beside them until they are done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unseen.bench.plan import BenchmarkCell
from unseen.files import write_atomically
from unseen.runs.listing import FAILED_FILE, read_failures

__all__ = ["grouped", "keep_failures"]


def grouped(failed: Mapping[str, str], out: Path) -> list[tuple[str, list[str]]]:
    """Each reason once, with the runs that it stopped. A run's own folder in a reason does not make it another.

    >>> grouped({"a/seed-0": "no data", "a/seed-1": "no data", "b": "o/b holds another"}, Path("o"))
    [('no data', ['a/seed-0', 'a/seed-1']), ('o/b holds another', ['b'])]
    """
    groups: dict[str, tuple[str, list[str]]] = {}
    for folder, reason in failed.items():
        groups.setdefault(reason.replace(str(out / folder), ""), (reason, []))[1].append(folder)
    return list(groups.values())


def keep_failures(out: Path, cells: Iterable[BenchmarkCell], failed: Mapping[str, str]) -> None:
    """Write down what failed now; what failed before and was not tried now stays, what succeeded is struck out."""
    tried: Sequence[str] = [cell.folder for cell in cells]
    kept = {folder: why for folder, why in read_failures(out).items() if folder not in tried} | dict(failed)
    if kept:
        write_atomically(out / FAILED_FILE, json.dumps(kept, indent=1) + "\n")
    else:
        (out / FAILED_FILE).unlink(missing_ok=True)
