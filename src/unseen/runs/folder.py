"""A run's folder: what it holds, and how it survives being killed at any moment.

Every file is replaced whole or appended by line. After a round: best.safetensors, then the line in records.jsonl, then the
checkpoint; a cut between two of them is repaired on resume by going back to the last round that both agree on. Records that no
checkpoint reaches are kept beside the new ones.

A run between sites holds what each site sent to the server alone: its folder and files are its owner's alone, whatever the umask.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from unseen.codec import CodecError, decode, encode_parts, notes_in, state_parts
from unseen.errors import BadInput
from unseen.files import OWNER_ALONE, write_atomically
from unseen.runs.memory import Versions
from unseen.runs.record import Record, Timing, read_records, to_line
from unseen.runs.traffic import Travelled
from unseen.runs.writing import Writer
from unseen.state import State

__all__ = ["Checkpoint", "RunFolder", "read_checkpoint", "read_run"]

_MAY_CHANGE = ("rounds",)
_Parts = tuple[bytes | memoryview, ...]


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on: the server's state, the clients' memories by version, and the best score so far."""

    round: int
    state: Any
    versions: Versions
    best: float | None
    before: list[Travelled] = field(default_factory=list)  # what travelled before round 1
    averaged: list[State] = field(default_factory=list)  # what the average over rounds keeps, where there is one


@functools.cache
def _saved(state_type: type) -> type:
    """What of a checkpoint is tensors: the server's state, whose type the method decides, and what the average over rounds keeps."""
    return make_dataclass("Saved", [("state", state_type), ("averaged", list[State])], frozen=True)


class RunFolder:
    """The files of one run. They are written while the run goes on, or at once: then nothing is copied to be written."""

    def __init__(self, path: Path, at_once: bool = False) -> None:
        self.path, self._at_once = path, at_once
        self.records, self.timings = path / "records.jsonl", path / "timings.jsonl"
        self.checkpoint, self.previous = path / "checkpoint.safetensors", path / "checkpoint.previous.safetensors"
        self.model, self.best = path / "model.safetensors", path / "best.safetensors"
        self.memory = path / "memory"
        self.writer = Writer()
        self._lock = FileLock(path / ".lock", timeout=0)
        self._mode = 0o666  # of new files, less the umask

    def claim(self, run: Mapping[str, Any], resume: bool, defaults: Mapping[str, Any] | None = None, all_rounds: bool = False) -> bool:
        """Take the folder for this run. True if it held the run already. Nothing is written before all is known to be well.

        A setting that an older version did not have had its default, from `defaults`. `all_rounds`: a schedule goes by the number of
        rounds, so that more of them would be another run.
        """
        if self.path.exists() and not self.path.is_dir():
            raise BadInput(f"{self.path} is a file; --out needs a folder")
        there = read_run(self.path) if self.path.exists() else None
        there = None if there is not None and self._untouched else there
        if there is None:
            names = [p.name for p in self.path.iterdir()] if self.path.exists() else []
            others = sorted(name for name in names if not name.startswith(".") and name != "run.json")
            if others:
                raise BadInput(f"{self.path} holds other files ({', '.join(others[:3])}); choose an empty or new folder for --out")
        elif not resume:
            what = f"{there['name']}, fold {there['fold']}, seed {there['experiment']['seed']}"
            raise BadInput(f"{self.path} holds a run already ({what}); add --resume to go on with it, or choose another --out")
        else:
            _refuse_another_run(_completed(there, defaults or {}), run, self.path, all_rounds)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if run.get("between_sites"):
                self.path.chmod(0o700)
            self._lock.acquire()
            if run.get("between_sites"):
                self._mode = OWNER_ALONE
                for inside in self.path.rglob("*"):  # of an older version, or of another umask
                    inside.chmod(0o700 if inside.is_dir() else OWNER_ALONE)
            write_atomically(self.path / "run.json", json.dumps(run, indent=1) + "\n", self._mode)
        except Timeout as error:
            raise BadInput(f"another process is working in {self.path}; wait for it, or choose another --out") from error
        except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
            raise BadInput(f"{self.path} cannot be written ({error.strerror}); choose another --out") from error
        return there is not None

    @property
    def _untouched(self) -> bool:
        """Whether a run was described here and never began: nothing was trained, so that another may take its place."""
        return {p.name for p in self.path.iterdir()} <= {"run.json", ".lock"}

    def abandon(self) -> None:
        """Leave nothing of a run that failed before it began: no checkpoint, no record."""
        if self.checkpoint.exists() or self.previous.exists() or self.records.exists():
            return
        shutil.rmtree(self.memory, ignore_errors=True)
        if self._untouched:
            (self.path / "run.json").unlink(missing_ok=True)
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def release(self) -> None:
        try:
            self.writer.close()
        finally:
            self._lock.release()

    def restore(self, state_type: type, say: Any, holds: Callable[[str], bool]) -> Checkpoint | None:
        """The newest checkpoint that can be read, that the records reach and whose memories are held; later lines are taken back."""
        records = read_records(self.records)
        if records and not (self.checkpoint.exists() or self.previous.exists()):  # a run that begins leaves one before its first record
            raise BadInput(
                f"{self.path} has records of {len(records)} rounds and no checkpoint to go on from; to begin again would lose them: "
                "put checkpoint.safetensors back, or choose another --out, or remove the folder"
            )
        for file in (self.checkpoint, self.previous):
            if not file.exists():
                continue
            try:
                found = read_checkpoint(file, state_type)
            except (CodecError, OSError, KeyError, ValueError) as error:
                say(f"{file.name} cannot be read ({type(error).__name__}); going back further")
                continue
            missing = [f for kinds in found.versions.values() for f in kinds.values() if not holds(f)]
            if found.round > len(records) or missing:
                say(f"{file.name} is of round {found.round}, but only {len(records)} rounds are recorded whole; going back further")
                continue
            self._keep_rounds(found.round)
            return found
        if records:
            say(f"no checkpoint can be used, so the run begins again; its records are kept as {self._set_aside().name}")
        self._keep_rounds(0)
        return None

    def _set_aside(self) -> Path:
        names = (self.path / f"records.lost-{number}.jsonl" for number in itertools.count(1))
        return self.records.rename(next(name for name in names if not name.exists()))

    def best_model(self) -> State | None:
        """The model of the best round by source validation, where there was one."""
        return safetensors.torch.load_file(self.best) if self.best.is_file() else None

    def finished(self, rounds: int) -> State | None:
        """The model of the last round, where that is recorded and its model saved: then nothing is needed of a checkpoint."""
        if len(read_records(self.records)) != rounds or not self.model.is_file():
            return None
        try:
            data = self.model.read_bytes()
            of_round = int(json.loads(notes_in(data)["about"])["round"])
            model: State = safetensors.torch.load(data)
        except (OSError, KeyError, ValueError, TypeError, SafetensorError):
            return None
        return model if of_round == rounds else None

    def _keep_rounds(self, number: int) -> None:
        for file in (self.records, self.timings):
            if file.exists():
                lines = file.read_bytes().split(b"\n")[:-1][:number]
                kept = b"".join(line + b"\n" for line in lines)
                if kept != file.read_bytes():
                    write_atomically(file, kept, self._mode)

    def save_round(self, record: Record, timing: Timing) -> None:
        for file, line in ((self.records, to_line(record)), (self.timings, to_line(timing))):
            self.writer.later(_append, file, line, self._mode)

    def save_checkpoint(self, checkpoint: Checkpoint, state_type: type) -> None:
        notes = {
            "round": str(checkpoint.round),
            "versions": json.dumps(checkpoint.versions),
            "best": json.dumps(checkpoint.best),
            "before": json.dumps(checkpoint.before),
        }
        self._write(self._write_checkpoint, encode_parts(_saved(state_type)(checkpoint.state, checkpoint.averaged), notes=notes))

    def _write(self, write: Callable[[_Parts], None], parts: _Parts) -> None:
        """Have tensors written: as they are, or a copy of them, since they may change before their turn comes."""
        self.writer.later(write, parts if self._at_once else (b"".join(parts),))
        if self._at_once:
            self.writer.flush()

    def _write_checkpoint(self, data: _Parts) -> None:
        if self.checkpoint.exists():
            os.replace(self.checkpoint, self.previous)
        write_atomically(self.checkpoint, data, self._mode)

    def save_model(self, file: Path, model: State, about: Mapping[str, str]) -> None:
        """Weights under their own names. One metadata entry, because safetensors does not keep the order of several."""
        notes = {"about": json.dumps(about)}
        self._write(lambda data: write_atomically(file, data, self._mode), state_parts(model, notes))

    def previous_versions(self) -> Versions:
        """The memories that the checkpoint before this one still needs."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            versions: Versions = json.loads(notes_in(self.previous.read_bytes())["versions"])
            return versions
        return {}


def _append(file: Path, line: bytes, mode: int) -> None:
    with open(file, "ab", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())


def read_checkpoint(file: Path, state_type: type) -> Checkpoint:
    """A checkpoint whose server state is of this type."""
    data = file.read_bytes()
    saved: Any = decode(_saved(state_type), data)
    notes = notes_in(data)
    versions, best, before = (json.loads(notes[key]) for key in ("versions", "best", "before"))
    return Checkpoint(int(notes["round"]), saved.state, versions, best, before, saved.averaged)


def read_run(folder: Path) -> dict[str, Any] | None:
    """run.json of a run's folder; None where there is none."""
    file = folder / "run.json"
    if not file.exists():
        return None
    try:
        run = json.loads(file.read_text())
        run["experiment"], run["name"], run["fold"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file} cannot be read as a run ({error}); restore it, or choose another folder") from error
    return dict(run)


def _completed(there: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """run.json of an older version, with the settings that it did not know."""
    experiment = {**defaults, **there["experiment"]}
    experiment["set"] = {**defaults.get("set", {}), **experiment.get("set", {})}
    return {**there, "experiment": experiment}


def _refuse_another_run(there: Mapping[str, Any], now: Mapping[str, Any], path: Path, all_rounds: bool) -> None:
    holdings = "study" if now.get("between_sites") else "partition (hash)"
    before, after = ({**run["experiment"], holdings: run["partition"]} for run in (there, now))
    differing = [k for k in sorted(before.keys() | after.keys()) if before.get(k) != after.get(k) and k not in _MAY_CHANGE]
    problems = []
    for key in differing:
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            inside = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)]
            problems += [f"{key}.{k} was {old.get(k)!r} and is {new.get(k)!r}" for k in inside]
        else:
            problems.append(f"{key} was {old!r} and is {new!r}")
    if after["rounds"] < before["rounds"]:
        problems.append(f"rounds was {before['rounds']} and is {after['rounds']}; a resumed run may have more rounds, not fewer")
    elif after["rounds"] > before["rounds"] and all_rounds:
        problems.append(
            f"rounds was {before['rounds']} and is {after['rounds']}, and the learning rate was to have fallen by the last of them; "
            "begin anew in another folder"
        )
    if problems:
        raise BadInput([f"{path} holds another experiment: {p}" for p in problems])
