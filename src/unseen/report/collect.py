"""Finding runs below a folder and reading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unseen.errors import BadInput
from unseen.folder import read_run
from unseen.report.record import read_records
from unseen.report.tables import Cell

__all__ = ["Collected", "collect"]


@dataclass(frozen=True)
class Collected:
    """The finished runs below a folder, and a note on each that is not finished."""

    cells: list[Cell]
    notes: list[str]


def collect(folder: Path) -> Collected:
    """Every run below `folder`. Unfinished runs are left out and named, never averaged silently."""
    if not folder.is_dir():
        raise BadInput(f"no folder {folder}; give the --out of `unseen run` or `unseen bench`")
    cells, notes = [], []
    for file in sorted(folder.rglob("run.json")):
        run = read_run(file.parent)
        assert run is not None
        records, wanted = read_records(file.parent / "records.jsonl"), run["experiment"]["rounds"]
        if len(records) < wanted:
            where = file.parent.relative_to(folder)
            notes.append(f"left out: {run['name']}, fold {run['fold']} ({where}) has {len(records)} of {wanted} rounds; resume it")
        else:
            cells.append(Cell(run["name"], run["fold"], run["experiment"]["seed"], records))
    if not cells and not notes:
        raise BadInput(f"{folder} holds no runs; give the --out of `unseen run` or `unseen bench`")
    if not cells:
        raise BadInput([f"{folder} holds no finished run", *notes])
    return Collected(cells, notes)
