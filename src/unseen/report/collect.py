"""Finding runs below a folder, reading them, and refusing to compare what cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.errors import BadInput
from unseen.report.tables import Cell
from unseen.runs.folder import read_run
from unseen.runs.listing import BENCH_FILE
from unseen.runs.record import Record, Timing, read_records, read_timings

__all__ = ["Collected", "Run", "collect", "differences"]

_NEEDED = ("name", "fold", "targets", "task", "metric", "experiment")
_ALIKE = ("data", "size", "protocol")  # of an experiment; runs that differ here answer different questions


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it, finished or not."""

    folder: str  # below the folder that was asked for
    about: dict[str, Any]  # run.json
    records: Sequence[Record]
    timings: Sequence[Timing]

    def __repr__(self) -> str:
        return f"Run({self.folder!r}: {self.name}, fold {self.fold}, seed {self.seed}, {len(self.records)} of {self.rounds} rounds)"

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def fold(self) -> str:
        return str(self.about["fold"])

    @property
    def seed(self) -> int:
        return int(self.about["experiment"]["seed"])

    @property
    def rounds(self) -> int:
        """How many rounds it is to have."""
        return int(self.about["experiment"]["rounds"])

    @property
    def finished(self) -> bool:
        return len(self.records) >= self.rounds

    @property
    def cell(self) -> Cell:
        return Cell(self.name, self.fold, self.seed, self.records)


@dataclass(frozen=True)
class Collected:
    """The runs below a folder, with notes on what must be known before their numbers are compared."""

    runs: list[Run]
    notes: list[str]
    paper_numbers: dict[str, dict[str, float]] = field(default_factory=dict)  # row -> column -> what the paper prints

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(run.name for run in self.runs))
        return f"Collected({len(self.runs)} runs, {len(self.finished)} of them finished: {names})"

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.finished]

    @property
    def cells(self) -> list[Cell]:
        """The finished runs alone: one that ended early is never averaged."""
        return [run.cell for run in self.finished]


def collect(folder: Path, *, force: bool | None = False, unfinished: bool = False, repeats: bool = False) -> Collected:
    """Every run below `folder`. `force` lets runs of different data be mixed (None: nobody may); `unfinished` is content without a
    finished run.

    `repeats` lets several runs have the same name, fold and seed; in a table, one would take the other's place.
    """
    if not folder.is_dir():
        raise BadInput(f"no folder {folder}; give the --out of `unseen run` or `unseen bench`")
    runs = [_read(file.parent, folder) for file in sorted(folder.rglob("run.json"))]
    if not runs:
        raise BadInput(f"{folder} holds no runs; give the --out of `unseen run` or `unseen bench`")
    notes = [
        f"left out: {run.name}, fold {run.fold} ({run.folder}) has {len(run.records)} of {run.rounds} rounds; resume it"
        for run in runs
        if not run.finished
    ]
    if len(notes) == len(runs) and not unfinished:
        raise BadInput([f"{folder} holds no finished run", *notes])
    mixed = [*differences(runs), *([] if repeats else _repeated(runs))]
    if mixed and not force:
        hint = "" if force is None else ", or --force to mix them"
        raise BadInput([*mixed, f"these runs cannot stand in one table; give a folder of one kind{hint}"])
    return Collected(runs, [*(f"mixed by --force: {text}" for text in mixed), *notes], _paper_numbers(folder))


def _read(path: Path, below: Path) -> Run:
    about = read_run(path)
    missing = [key for key in _NEEDED if key not in (about or {})]
    missing += [key for key in ("seed", "rounds", "set") if about and key not in about["experiment"]]
    if about is None or missing:
        raise BadInput(f"{path / 'run.json'} has no {', '.join(missing)}; it was not written by `unseen run`. Remove it, or run it again")
    where = str(path.relative_to(below))
    return Run(where, about, read_records(path / "records.jsonl"), read_timings(path / "timings.jsonl"))


def differences(runs: Sequence[Run]) -> list[str]:
    """In what the runs differ that makes their numbers incomparable, with an example of each."""
    found = []
    for key in ("task", "metric", *_ALIKE):
        values: dict[str, str] = {}
        for run in runs:
            value = run.about["experiment"].get(key) if key in _ALIKE else run.about.get(key)
            values.setdefault(str(value), run.folder)
        if len(values) > 1:
            found.append(f"{key} differs: " + ", ".join(f"{value} ({where})" for value, where in values.items()))
    return found


def _repeated(runs: Sequence[Run]) -> list[str]:
    """Finished runs that a table cannot tell apart."""
    places: dict[tuple[str, str, int], list[str]] = {}
    for run in runs:
        if run.finished:
            places.setdefault((run.name, run.fold, run.seed), []).append(run.folder)
    return [
        f"{name}, fold {fold}, seed {seed} is there more than once ({', '.join(folders)}); a table takes the last. Give rows a --label"
        for (name, fold, seed), folders in places.items()
        if len(folders) > 1
    ]


def _paper_numbers(folder: Path) -> dict[str, dict[str, float]]:
    """What `unseen bench` wrote beside its runs."""
    file = folder / BENCH_FILE
    if not file.is_file():
        return {}
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["paper_numbers"]
        return {str(row): {str(column): float(value) for column, value in columns.items()} for row, columns in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} cannot be read ({error!r}); run `unseen bench` again, or delete it") from error
