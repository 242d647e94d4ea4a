"""Records as they come, for the trackers people already use. Nothing else about a run changes, and offline works."""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen.errors import BadInput, choose
from unseen.runs.record import Record
from unseen.runs.traffic import total_bytes
from unseen.runs.watch import Watch
from unseen.world import World

__all__ = ["TRACKERS", "Tracked", "Tracker", "refuse_missing", "scalars"]


def scalars(record: Record, seconds: float) -> dict[str, float]:
    """A round as a flat table: `target/outline/accuracy`, `source/loss`, `own/plain/loss`, `bytes/sent`, `seconds`."""
    values = {f"source/{metric}": value for metric, value in record["source_mean"].items()}
    values |= {f"own/{metric}": value for metric, value in record.get("own_mean", {}).items()}
    for part, rows in (("target", record["target"]), ("held_out", record["held_out"]), ("own", record.get("own", {}))):
        values |= {f"{part}/{name}/{metric}": float(v) for name, row in rows.items() for metric, v in row.items()}
    values |= {f"bytes/{way}": float(total_bytes(record["travelled"], way)) for way in ("sent", "received")}
    return {**values, "seconds": seconds}


class Tracker(ABC):
    """Where numbers go."""

    @abstractmethod
    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path, done: int) -> None:
        """Begin a run, or go on with one after `done` rounds."""

    @abstractmethod
    def log(self, number: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class TensorBoard(Tracker):
    """Event files in the run's folder: tensorboard --logdir runs."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter  # it has no types
        self._writer = writer(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
        self._writer.add_text("settings", "\n".join(f"- {key}: {value}" for key, value in settings.items()))

    def log(self, number: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, number)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Tracker):
    """Offline unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path, done: int) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        self._run: Any = wandb.init(project="unseen", name=name, config=dict(settings), dir=str(folder), mode=mode)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """In the run's folder unless MLFLOW_TRACKING_URI says otherwise."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path, done: int) -> None:
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
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


TRACKERS: Mapping[str, Callable[[str, Mapping[str, Any], Path, int], Tracker]] = {
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


class Tracked:
    """A watch that passes everything on to another one, and the rounds to trackers too."""

    def __init__(self, watch: Watch, names: Sequence[str], folder: Path) -> None:
        self._watch, self._folder = watch, folder
        refuse_missing(names)
        self._makers = [TRACKERS[name] for name in dict.fromkeys(names)]
        self._trackers: list[Tracker] = []

    def __enter__(self) -> Tracked:
        return self

    def __exit__(self, *_: object) -> None:
        for tracker in self._trackers:
            tracker.close()
        self._trackers = []

    def begin(self, world: World, done: int) -> None:
        described = world.experiment.description()
        settings = {**{k: v for k, v in described.items() if k != "set"}, **{f"set.{k}": v for k, v in described["set"].items()}}
        name = f"{world.experiment.name}, {world.fold.name}, seed {world.experiment.seed}"
        if done < world.experiment.rounds:  # of a run that is finished there is nothing to tell
            self._trackers = [make(name, settings, self._folder, done) for make in self._makers]
        self._watch.begin(world, done)

    def round(self, record: Record, seconds: float) -> None:
        for tracker in self._trackers:
            tracker.log(record["round"], scalars(record, seconds))
        self._watch.round(record, seconds)

    def say(self, message: str) -> None:
        self._watch.say(message)
