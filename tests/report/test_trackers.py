"""Trackers get every number of every round, and change nothing about the run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import unseen
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.methods.fedavg import FedAvg
from unseen.report import trackers
from unseen.report.trackers import Tracked, Tracker, scalars
from unseen.training import Silent


class Notebook(Tracker):
    """Writes down what it is told."""

    pages: list[Any] = []

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path, done: int) -> None:
        self.pages.append((name, settings["set.lr"], folder, done))

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self.pages.append((number, dict(values)))

    def close(self) -> None:
        self.pages.append("closed")


def trained(tiny: DomainDataset, out: Path, names: list[str], rounds: int = 2, resume: bool = False) -> Any:
    with Tracked(Silent(), names, out) as watch:
        return unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=rounds, out=out, watch=watch, resume=resume, device="cpu")


def test_every_round_is_told_once(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "TRACKERS", {"json": Notebook})
    Notebook.pages = []
    result = trained(tiny, tmp_path / "a", ["json"])
    trained(tiny, tmp_path / "a", ["json"], rounds=3, resume=True)
    assert Notebook.pages[0] == ("FedAvg, c, seed 0", 0.02, tmp_path / "a", 0) and Notebook.pages[4][3] == 2
    assert [page[0] for page in Notebook.pages if isinstance(page[0], int)] == [1, 2, 3]
    assert Notebook.pages[1][1]["target/c/accuracy"] == result.records[0]["target"]["c"]["accuracy"]
    plain = unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=2, out=tmp_path / "b", device="cpu")
    assert json.dumps(plain.records) == json.dumps(result.records)


def test_the_flat_table() -> None:
    record = {"source_mean": {"loss": 1.0}, "target": {"x": {"accuracy": 0.5}}, "held_out": {}}
    record["travelled"] = [{"direction": "sent", "bytes": 3, "clients": ["a", "b"]}]  # type: ignore[assignment]
    expected = {"source/loss": 1.0, "target/x/accuracy": 0.5, "bytes/sent": 6.0, "bytes/received": 0.0, "seconds": 2.0}
    assert scalars(record, 2.0) == expected


def test_what_is_not_known_or_not_installed_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="did you mean 'mlflow'"):
        Tracked(Silent(), ["mlfow"], tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'unseen\[track\]'"):
        Tracked(Silent(), ["wandb"], tmp_path)


@pytest.mark.filterwarnings("ignore")  # of the trackers, about themselves
@pytest.mark.parametrize(
    ("name", "left"), [("tensorboard", "tensorboard/events*"), ("wandb", "wandb/offline-run-*"), ("mlflow", "mlflow.db")]
)
def test_the_real_ones_write_offline(name: str, left: str, tiny: DomainDataset, tmp_path: Path) -> None:
    pytest.importorskip(name, reason="the extra track is not installed")
    trained(tiny, tmp_path / "run", [name], rounds=1)
    assert list((tmp_path / "run").glob(left))
