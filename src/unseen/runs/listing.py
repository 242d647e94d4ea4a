"""The runs below a folder: how far each has come, what failed and why, and taking runs away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from unseen.errors import BadInput
from unseen.files import write_atomically
from unseen.runs.folder import read_run
from unseen.runs.record import Record, read_records
from unseen.runs.selection import DEFAULT_RULE, RULES, source_score

__all__ = ["BENCH_FILE", "FAILED_FILE", "RunState", "forget_failures", "list_runs", "read_failures", "remove_run"]

BENCH_FILE = "bench.json"  # beside the runs of a benchmark: which there are to be
FAILED_FILE = "failed.json"  # beside them: folder -> why it failed
State = Literal["finished", "running", "stopped", "failed", "not begun", "unreadable"]
_OF_A_RUN = (
    "run.json", "records.jsonl", "timings.jsonl", "checkpoint.safetensors", "checkpoint.previous.safetensors", "model.safetensors",
    "best.safetensors", ".lock", "mlflow.db",
)  # fmt: skip
_FOLDERS_OF_A_RUN = ("memory", "tensorboard", "wandb")


@dataclass(frozen=True)
class RunState:
    """One run as `unseen runs` shows it."""

    folder: str  # below the folder that was asked for
    state: State
    name: str = ""
    fold: str = ""
    seed: int | None = None
    done: int = 0
    rounds: int | None = None
    metric: str = ""
    source: float | None = None  # of the round that the rule picks
    target: float | None = None
    why: str = ""  # it failed, or cannot be read
    between_sites: bool = False


def read_failures(folder: Path) -> dict[str, str]:
    """What `unseen bench` wrote down of its runs that failed."""
    file = folder / FAILED_FILE
    try:
        return {str(run): str(why) for run, why in json.loads(file.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput(f"{file} cannot be read ({error}); delete it, and run `unseen bench` again") from error


def list_runs(folder: Path) -> list[RunState]:
    """Every run at or below a folder, and those that a benchmark's plan names but that never began."""
    if not folder.is_dir():
        raise BadInput(f"no folder {folder}; give the --out of `unseen run` or `unseen bench`")
    failures = {path: why for home, why_of in _failures_below(folder) for path, why in _below(folder, home, why_of)}
    rows = {str(file.parent.relative_to(folder)): file.parent for file in sorted(folder.rglob("run.json"))}
    found = {name: _state(path, name, failures.get(name, "")) for name, path in rows.items()}
    for name in [*_planned(folder), *failures]:
        if name not in found:
            why = failures.get(name, "")
            found[name] = RunState(name, "failed" if why else "not begun", why=why)
    if not found:
        raise BadInput(f"{folder} holds no runs; give the --out of `unseen run` or `unseen bench`")
    return list(found.values())


def _failures_below(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    for file in sorted(folder.rglob(FAILED_FILE)):
        yield file.parent, read_failures(file.parent)


def _below(folder: Path, home: Path, failures: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, why in failures.items():
        yield str((home / name).relative_to(folder)), why


def _planned(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob(BENCH_FILE)):
        try:
            names = json.loads(file.read_text(encoding="utf-8"))["runs"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of the plan nothing but its names is wanted here
        yield from (str((file.parent / str(name)).relative_to(folder)) for name in names)


def _state(path: Path, name: str, why: str) -> RunState:
    try:
        about = read_run(path) or {}
        rounds = int(about["experiment"]["rounds"])
        records = read_records(path / "records.jsonl")
    except (BadInput, KeyError, TypeError, ValueError) as error:
        return RunState(name, "unreadable", why=str(error))
    whole = len(records) >= rounds
    state: State = "finished" if whole else "running" if _held(path) else "failed" if why else "stopped"
    source, target = _scores(records)
    return RunState(
        folder=name,
        state=state,
        name=str(about["name"]),
        fold=str(about["fold"]),
        seed=about["experiment"].get("seed"),
        done=len(records),
        rounds=rounds,
        metric=str(about.get("metric", "")),
        source=source,
        target=target,
        why=why if state == "failed" else "",
        between_sites=bool(about.get("between_sites")),
    )


def _scores(records: list[Record]) -> tuple[float | None, float | None]:
    """Source validation and the unseen domains' mean, in percent, of the round that the rule picks."""
    index = RULES[DEFAULT_RULE].picks(records)
    if index is None:
        return None, None
    record = records[index]
    source = source_score(record)
    targets = [row[record["metric"]] for row in record["target"].values() if record["metric"] in row]
    return (100 * source if source is not None else None), (100 * sum(targets) / len(targets) if targets else None)


def _held(path: Path) -> bool:
    """Whether a process works in this folder now."""
    lock = path / ".lock"
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def remove_run(folder: Path, run: RunState) -> str:
    """Take away what a run wrote, and nothing else. Returns what was kept, and why; nothing if all is gone."""
    path = folder / run.folder
    if run.between_sites:
        return f"{run.folder}: a run between sites, whose answers and receipts lie there; remove it by hand"
    if path.is_symlink() or not path.is_dir():
        return "" if not path.exists() else f"{run.folder}: no folder of its own"
    lock = FileLock(path / ".lock", timeout=0)
    try:
        lock.acquire()
    except (Timeout, OSError):
        return f"{run.folder}: a process is working there"
    try:
        for name in _FOLDERS_OF_A_RUN:
            if (path / name).is_dir() and not (path / name).is_symlink():
                shutil.rmtree(path / name)
        for file in (*(path / name for name in _OF_A_RUN), *path.glob("records.lost-*.jsonl")):
            if file.is_file() or file.is_symlink():
                file.unlink()
    finally:
        lock.release()
    left = sorted(p.name for p in path.iterdir())
    if left:
        return f"{run.folder}: kept what is not of the run ({', '.join(left[:3])})"
    _remove_empty(path, folder)
    return ""


def _remove_empty(path: Path, above: Path) -> None:
    """This folder, and those over it that have become empty, up to the one that was asked for."""
    while path != above and not any(path.iterdir()):
        path.rmdir()
        path = path.parent


def forget_failures(folder: Path, gone: Collection[str]) -> None:
    """Strike out the failures of runs that were taken away."""
    for home, failures in _failures_below(folder):
        kept = {name: why for name, why in failures.items() if str((home / name).relative_to(folder)) not in gone}
        if kept:
            write_atomically(home / FAILED_FILE, json.dumps(kept, indent=1) + "\n")
        else:
            (home / FAILED_FILE).unlink()
