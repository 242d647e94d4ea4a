"""Trackers get every number of every round, and change nothing about the run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import unseen
from unseen.bench.jobs import in_processes
from unseen.bench.plan import read_benchmark
from unseen.cli import app
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.methods.fedavg import FedAvg
from unseen.report import trackers
from unseen.report.trackers import Places, Tracked, Tracker, scalars, track_finished
from unseen.runs.watch import Silent


class Notebook(Tracker):
    """Writes down what it is told."""

    pages: list[Any] = []

    def __init__(self, name: str, settings: Mapping[str, Any], places: Places, done: int) -> None:
        self.pages.append((name, settings["set.lr"], places, done))

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self.pages.append((number, dict(values)))

    def close(self) -> None:
        self.pages.append("closed")


def trained(tiny: DomainDataset, out: Path, names: list[str], rounds: int = 2, resume: bool = False) -> Any:
    with Tracked(Silent(), names, out, Experiment(FedAvg(lr=0.02, batch=8), tiny, "c", device="cpu")) as watch:
        return unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=rounds, out=out, watch=watch, resume=resume, device="cpu")


def test_every_round_is_told_once(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "TRACKERS", {"json": Notebook})  # a name that is a package, since that is looked for
    Notebook.pages = []
    result = trained(tiny, tmp_path / "a", ["json"])
    trained(tiny, tmp_path / "a", ["json"], rounds=3, resume=True)
    assert Notebook.pages[0] == ("FedAvg, c, seed 0", 0.02, Places(tmp_path / "a", tmp_path / "a"), 0) and Notebook.pages[4][3] == 2
    assert [page[0] for page in Notebook.pages if isinstance(page[0], int)] == [1, 2, 3]
    assert Notebook.pages[1][1]["target/c/accuracy"] == result.records[0]["target"]["c"]["accuracy"]
    plain = unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=2, out=tmp_path / "b", device="cpu")
    assert json.dumps(plain.records) == json.dumps(result.records)
    before = len(Notebook.pages)
    trained(tiny, tmp_path / "a", ["json"], rounds=3, resume=True)
    assert len(Notebook.pages) == before  # it was finished: no second, empty run at the tracker


def test_the_flat_table() -> None:
    record = {"source_mean": {"loss": 1.0}, "target": {"x": {"accuracy": 0.5}}, "held_out": {}}
    record["travelled"] = [{"direction": "sent", "bytes": 3, "clients": ["a", "b"]}]  # type: ignore[assignment]
    expected = {"source/loss": 1.0, "target/x/accuracy": 0.5, "bytes/sent": 6.0, "bytes/received": 0.0, "seconds": 2.0}
    assert scalars(record, 2.0) == expected


def test_what_is_not_known_or_not_installed_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(FedAvg(), "styled-digits", "plain")
    with pytest.raises(BadInput, match="did you mean 'mlflow'"):
        Tracked(Silent(), ["mlfow"], tmp_path, experiment)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'unseen\[track\]'"):
        Tracked(Silent(), ["wandb"], tmp_path, experiment)


@pytest.mark.filterwarnings("ignore")  # of the trackers, about themselves
@pytest.mark.parametrize(
    ("name", "left"), [("tensorboard", "tensorboard/events*"), ("wandb", "wandb/offline-run-*"), ("mlflow", "mlflow.db")]
)
def test_the_real_ones_write_offline(name: str, left: str, tiny: DomainDataset, tmp_path: Path) -> None:
    pytest.importorskip(name, reason="the extra track is not installed")
    trained(tiny, tmp_path / "run", [name], rounds=1)
    assert list((tmp_path / "run").glob(left))


def test_every_run_of_a_benchmark_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "TRACKERS", {"json": Notebook})
    Notebook.pages = []
    text = 'targets = ["plain", "outline"]\nrounds = 1\nnetwork = "small_cnn:width=2"\nmethods = ["fedavg"]\n[set]\nsteps = 1\n'
    (tmp_path / "bench.toml").write_text(text)
    command = ["bench", str(tmp_path / "bench.toml"), "--out", str(tmp_path / "b"), "--workers", "1", "-q", "--track"]
    done = CliRunner().invoke(app, [*command, "json"])
    assert done.exit_code == 0, done.output
    begun = [page for page in Notebook.pages if isinstance(page[0], str) and page != "closed"]
    assert [page[0] for page in begun] == ["FedAvg, plain, seed 0", "FedAvg, outline, seed 0"]
    home = tmp_path / "b"  # where all runs may share a database
    assert [page[2] for page in begun] == [Places(home / "FedAvg" / fold / "seed-0", home) for fold in ("plain", "outline")]
    assert [page[0] for page in Notebook.pages if isinstance(page[0], int)] == [1, 1] and Notebook.pages.count("closed") == 2
    wrong = CliRunner().invoke(app, [*command, "jsn"])
    assert wrong.exit_code == 2 and "did you mean 'json'" in wrong.output


def test_runs_in_several_processes_are_told_too_and_a_run_elsewhere_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "TRACKERS", {"json": Notebook})
    Notebook.pages = []
    values = {"targets": ["plain", "outline"], "rounds": 2, "network": "small_cnn:width=2", "methods": ["fedavg"], "set": {"steps": 1}}
    cells = read_benchmark(values)
    assert in_processes(cells, tmp_path, 2, Silent(), ["json"]) == {}
    begun = sorted(page[0] for page in Notebook.pages if isinstance(page[0], str) and page != "closed")
    assert begun == ["FedAvg, outline, seed 0", "FedAvg, plain, seed 0"] and Notebook.pages.count("closed") == 2
    told = [page for page in Notebook.pages if isinstance(page[0], int)]
    assert sorted(number for number, _ in told) == [1, 1, 2, 2]
    Notebook.pages = []
    folder = tmp_path / cells[0].folder
    track_finished(["json"], folder, cells[0].experiment, before=1, home=tmp_path)
    assert Notebook.pages[0] == ("FedAvg, plain, seed 0", 0.0001, Places(folder, tmp_path), 1)
    assert Notebook.pages[1][0] == 2 and Notebook.pages[1][1]["target/plain/accuracy"] in [
        values["target/plain/accuracy"] for _, values in told if "target/plain/accuracy" in values
    ]
    assert Notebook.pages[2:] == ["closed"]
