"""Records as they come, for the trackers people already use. Nothing else about a run changes, and offline works."""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from unseen.errors import BadInput, choose
from unseen.experiment import Experiment
from unseen.runs.record import Record, read_records, read_timings
from unseen.runs.traffic import total_bytes
from unseen.runs.watch import Watch, Within
from unseen.world import World

__all__ = ["TRACKERS", "Places", "Tracked", "Tracker", "Trackers", "refuse_missing", "scalars", "track_finished"]


def scalars(record: Record, seconds: float) -> dict[str, float]:
    """A round as a flat table: `target/outline/accuracy`, `source/loss`, `own/plain/loss`, `bytes/sent`, `seconds`."""
    values = {f"source/{metric}": value for metric, value in record["source_mean"].items()}
    values |= {f"own/{metric}": value for metric, value in record.get("own_mean", {}).items()}
    for part, rows in (("target", record["target"]), ("held_out", record["held_out"]), ("own", record.get("own", {}))):
        values |= {f"{part}/{name}/{metric}": float(v) for name, row in rows.items() for metric, v in row.items()}
    values |= {f"bytes/{way}": float(total_bytes(record["travelled"], way)) for way in ("sent", "received")}
    return {**values, "seconds": seconds}


@dataclass(frozen=True)
class Places:
    """Where a tracker may write: the run's folder, and that of the benchmark it is part of (else the same)."""

    run: Path
    home: Path


class Tracker(ABC):
    """Where numbers go."""

    @abstractmethod
    def __init__(self, name: str, settings: Mapping[str, Any], places: Places, done: int) -> None:
        """Begin a run, or go on with one after `done` rounds."""

    @abstractmethod
    def log(self, number: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class TensorBoard(Tracker):
    """Event files in the run's folder: tensorboard --logdir runs."""

    def __init__(self, name: str, settings: Mapping[str, Any], places: Places, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter  # it has no types
        self._writer = writer(str(places.run / "tensorboard"), purge_step=done + 1 if done else None)
        self._writer.add_text("settings", "\n".join(f"- {key}: {value}" for key, value in settings.items()))

    def log(self, number: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, number)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Tracker):
    """Offline unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

    def __init__(self, name: str, settings: Mapping[str, Any], places: Places, done: int) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        about: dict[str, Any] = {"project": "unseen", "name": name, "config": dict(settings), "dir": str(places.run), "mode": mode}
        self._run: Any = wandb.init(**about, reinit="create_new")  # several runs of a benchmark may go at once

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """One database for all runs of a benchmark, in its folder, unless MLFLOW_TRACKING_URI says otherwise."""

    def __init__(self, name: str, settings: Mapping[str, Any], places: Places, done: int) -> None:
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(places.home / 'mlflow.db').absolute()}"
        self._client: Any = MlflowClient(tracking_uri=place)
        found = self._client.get_experiment_by_name("unseen")
        experiment = found.experiment_id if found else self._client.create_experiment("unseen")
        self._id = self._client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._id, key, value)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._client.log_metric(self._id, key.replace("→", "to"), value, step=number)

    def close(self) -> None:
        self._client.set_terminated(self._id)


TRACKERS: Mapping[str, Callable[[str, Mapping[str, Any], Places, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def refuse_missing(names: Sequence[str]) -> None:
    """Say before a round is trained that a tracker is not known, or not installed."""
    for name in names:
        choose("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise BadInput(f"--track {name} needs {name}, which is not installed; install it with: pip install 'unseen[track]'")


class Trackers:
    """The trackers of one run. They begin with its first round: of a run that is finished there is nothing to tell.

    `home` is the folder of the benchmark that the run is part of, where there is one. Runs of several threads take turns.
    """

    _turn = Lock()

    def __init__(self, names: Sequence[str], folder: Path, experiment: Experiment, home: Path | None = None) -> None:
        refuse_missing(names)
        self._makers = [TRACKERS[name] for name in dict.fromkeys(names)]
        self._folder, self._home, self._experiment = folder, home or folder, experiment
        self._begun: list[Tracker] | None = None

    def log(self, record: Record, seconds: float) -> None:
        with self._turn:
            if self._begun is None:
                self._begun = self._begin(record)
            for tracker in self._begun:
                tracker.log(record["round"], scalars(record, seconds))

    def close(self) -> None:
        with self._turn:
            for tracker in self._begun or []:
                tracker.close()
            self._begun = None

    def _begin(self, record: Record) -> list[Tracker]:
        described = self._experiment.description()
        settings = {**{k: v for k, v in described.items() if k != "set"}, **{f"set.{k}": v for k, v in described["set"].items()}}
        name = f"{record['method']}, {record['fold']}, seed {record['seed']}"
        return [make(name, settings, Places(self._folder, self._home), record["round"] - 1) for make in self._makers]


def track_finished(names: Sequence[str], folder: Path, experiment: Experiment, before: int, home: Path | None = None) -> None:
    """Tell trackers of the rounds after `before` that lie in a run's folder: of a run that was trained on another machine."""
    trackers = Trackers(names, folder, experiment, home)
    for record, timing in zip(read_records(folder / "records.jsonl"), read_timings(folder / "timings.jsonl"), strict=False):
        if record["round"] > before:
            trackers.log(record, timing["train"] + timing["score"])
    trackers.close()


class Tracked:
    """A watch that passes everything on to another one, and the rounds to trackers too."""

    def __init__(self, watch: Watch, names: Sequence[str], folder: Path, experiment: Experiment, home: Path | None = None) -> None:
        self._watch, self._trackers = watch, Trackers(names, folder, experiment, home)

    def __enter__(self) -> Tracked:
        return self

    def __exit__(self, *_: object) -> None:
        self._trackers.close()

    def begin(self, world: World, done: int) -> None:
        self._watch.begin(world, done)

    def within(self, where: Within) -> None:
        self._watch.within(where)

    def round(self, record: Record, seconds: float) -> None:
        self._trackers.log(record, seconds)
        self._watch.round(record, seconds)

    def say(self, message: str) -> None:
        self._watch.say(message)
