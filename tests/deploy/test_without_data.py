"""Runs between sites, and runs whose data are gone: models leave all the same, and what cannot be said is not said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import unseen
from federation_in_memory import FederationInMemory
from unseen import Experiment
from unseen.cli import app
from unseen.data.domain import Domain, DomainDataset
from unseen.deploy import evaluate, export, load_model
from unseen.deploy.finished import finished_run
from unseen.errors import BadInput
from unseen.figures import draw
from unseen.figures.last_round import repeat_last_round
from unseen.methods.fedavg import FedAvg
from unseen.runs.watch import Silent
from unseen.task import Classification
from unseen.training import train


@pytest.fixture(scope="module")
def between(tiny: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("between")
    experiment = Experiment(FedAvg(lr=0.02, batch=8), "consortium", "c", rounds=2, device="cpu")
    train(experiment, folder / "run", watch=Silent(), elsewhere=FederationInMemory(folder, tiny, "c").federate(experiment))
    return folder / "run"


@pytest.fixture(scope="module")
def between_masks(tiny_masks: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("between-masks")
    experiment = Experiment(FedAvg(lr=0.02, batch=4), "consortium", "c", rounds=2, device="cpu")
    train(experiment, folder / "run", watch=Silent(), elsewhere=FederationInMemory(folder, tiny_masks, "c").federate(experiment))
    return folder / "run"


def test_run_json_says_what_the_model_takes_and_not_how_many_of_each_class_a_site_has(between: Path, classes_run: Path) -> None:
    there, here = (json.loads((run / "run.json").read_text()) for run in (between, classes_run))
    assert there["model"] == here["model"]
    assert there["model"] == {
        "network": "small_cnn:width=4",
        "labels": ["x", "y", "z"],
        "channels": 3,
        "size": [8, 8],
        "mean": [0.0],
        "std": [1.0],
    }
    assert there["between_sites"] and not here["between_sites"]
    assert all(set(client) == {"domain", "train", "validation"} for client in there["clients"].values())


def test_local_clients_are_counted_by_class(classes_run: Path, tiny: DomainDataset) -> None:
    about = json.loads((classes_run / "run.json").read_text())
    world = finished_run(classes_run, data=tiny).world
    for name, client in about["clients"].items():
        (domain, rows), *_ = world.holdings[name].train.parts
        assert client["classes"] == [int((domain.labels[rows] == n).sum()) for n in range(3)] and sum(client["classes"]) == client["train"]


def test_a_model_made_between_sites_is_exported_and_accepted(between: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(between), "--to", "safetensors", "--out", str(tmp_path / "model")])
    assert done.exit_code == 0 and "of noise; not calibrated" in done.output, done.output
    model = load_model(tmp_path / "model")
    card = model.card
    assert (card.sources, card.targets, card.labels, card.data) == (("a", "b"), ("c",), ("x", "y", "z"), "consortium")
    assert (card.channels, card.size, card.mean, card.std) == (3, (8, 8), (0.0,), (1.0,))
    assert card.temperature == 1.0 and card.calibration == {} and card.checked["noise"] == 1 and card.checked["images"] == 1000
    assert "not calibrated" in (tmp_path / "model/card.md").read_text()
    weights = load_file(between / "best.safetensors")
    assert all(np.array_equal(weights[k], v) for k, v in load_file(tmp_path / "model/model.safetensors").items())
    answer = evaluate(model, replace(tiny, domains=(tiny["c"],)), draws=5)
    record = [json.loads(line) for line in (between / "records.jsonl").read_text().splitlines()][card.training["round"] - 1]
    assert answer.metrics["accuracy"].value == pytest.approx(record["target"]["c"]["accuracy"])


def test_onnx_and_masks_too(between_masks: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX needs the extra: export")
    pytest.importorskip("onnxscript", reason="ONNX needs the extra: export")
    card = load_model(export(between_masks, "onnx", tmp_path / "model")).card
    assert card.labels == ("disc", "cup") and card.checked["largest_difference"] <= 1e-4


def test_figures_after_a_run_between_sites_need_images(between: Path, tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="stayed at its sites; give images"):
        draw("confusion", [between])
    axes = draw("confusion", [between], data=replace(tiny, domains=(tiny["c"],))).axes
    record = [json.loads(line) for line in (between / "records.jsonl").read_text().splitlines()]
    best = max(record, key=lambda r: r["source_mean"]["accuracy"])
    assert axes[0].get_title() == f"c: {100 * best['target']['c']['accuracy']:.1f} % right"
    with pytest.raises(BadInput, match="needs one that stayed unseen"):
        draw("confusion", [between], data=replace(tiny, domains=(tiny["a"],)))
    with pytest.raises(BadInput, match="which the model never saw"):
        draw("confusion", [between], data=replace(tiny, task=Classification(("x", "y", "tumour"))))
    with pytest.raises(BadInput, match="cannot be made again here"):
        repeat_last_round(finished_run(between))


def test_styles_need_images(between: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--styles needs"):
        export(between, "safetensors", tmp_path / "model", styles=True)


def test_data_that_are_gone_or_have_changed(tiny: DomainDataset, tmp_path: Path) -> None:
    unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=1, out=tmp_path / "run", device="cpu")
    shorter = replace(tiny, domains=(Domain("a", tiny["a"].images[:30], tiny["a"].labels[:30]), *tiny.domains[1:]))
    with pytest.raises(BadInput, match="the clients would hold other samples"):
        export(tmp_path / "run", "safetensors", data=shorter)
    about = json.loads((tmp_path / "run/run.json").read_text())
    about["experiment"]["data"] = f"folder:{tmp_path / 'moved'}"
    (tmp_path / "run/run.json").write_text(json.dumps(about))
    gone = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", "safetensors"])
    assert gone.exit_code == 2 and "does not exist" in gone.output and "--without-data" in gone.output
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", "safetensors", "--without-data"])
    assert done.exit_code == 0, done.output
    del about["model"]
    (tmp_path / "run/run.json").write_text(json.dumps(about))
    with pytest.raises(BadInput, match="older version"):
        export(tmp_path / "run", "safetensors", without_data=True)
