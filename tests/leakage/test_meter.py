"""The study as it is played, the meter over it, its page and its command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_classification
from federation_in_memory import FederationInMemory, alone
from tiny_settings import SETTINGS
from unseen.cli import app
from unseen.cli.leakage import experiment_of, fitting
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.federation.cards import agree, card_of
from unseen.federation.site.policy import Policy, Privacy
from unseen.leakage.attempts import Attempt
from unseen.leakage.changes import changes_in
from unseen.leakage.leakage_page import render_leakage
from unseen.leakage.meter import Leakage, LeftField, measure
from unseen.leakage.playing import SITE, ask_once, part, parted, play
from unseen.methods import METHODS
from unseen.parts.aggregation import SHA
from unseen.task import Segmentation

STUDY = 'method = "fedavg"\nrounds = 2\nout = "runs/x"\n[set]\nbatch = 8\nlr = 0.01\n'


def site(images: int = 60) -> DomainDataset:
    return tiny_classification((images,))


def study(method: str = "fedavg", rounds: int = 2, **fields: object) -> Experiment:
    return Experiment(METHODS[method](**{"batch": 8, **fields}), site(), rounds=rounds, threads=1)


def test_what_leaves_is_kept_as_it_leaves_and_the_draws_beside_it() -> None:
    experiment, data = study(lr=0.01), site()
    parts = part(experiment, data, 0)
    assert parts.stand_in is None and (len(parts.members), len(parts.others)) == (30, 30)
    played = play(experiment, data, parts)
    assert played.rounds == 2 and played.times == {"train": 2, "scoring.score": 2}
    given = played.first["train"]
    train = played.world.holdings[SITE].train
    assert sorted(given.drawn.positions) == list(range(len(train))) == played.trained.tolist()
    x, _ = train.take(torch.tensor(given.drawn.positions[:8]))
    assert torch.allclose(given.drawn.images[0], x / 255)
    (change,) = changes_in(given, played.world.entries("task").names("parameters"))
    assert all(torch.equal(given.up.model[n], v) for n, v in change.after.items())  # type: ignore[attr-defined]
    assert torch.allclose(change.before["fc.bias"] + change.downhill["fc.bias"], change.after["fc.bias"])
    again = ask_once(played, given, np.arange(len(train)))
    assert torch.equal(again.up.model["fc.bias"], given.up.model["fc.bias"])  # type: ignore[attr-defined]


def test_parts_that_leave_apart_are_one_change_and_sha_gives_its_step_uphill() -> None:
    experiment, data = study("feddyn", 1), site()
    played = play(experiment, data, part(experiment, data, 0))
    names = played.world.entries("task").names("parameters")
    (change,) = changes_in(played.first["train"], names)
    assert change.what == "train.parameters+buffers, round 1" and change.after.keys() == change.before.keys()
    experiment = study(rounds=1, aggregation=SHA(rho=0.05, float64=True))
    parts = part(experiment, data, 0)
    assert parts.stand_in is not None and len(parts.stand_in) == 15  # models are assessed by another site
    played = play(experiment, data, parts)
    given = played.first["train"]
    model, uphill = changes_in(given, names)
    assert uphill.uphill_of_last_batch and torch.equal(uphill.before["fc.bias"], model.after["fc.bias"])
    step = given.up.perturbed["fc.bias"] - given.up.model["fc.bias"]  # type: ignore[attr-defined]
    assert torch.allclose(uphill.downhill["fc.bias"].double(), -step, atol=1e-6)


def test_a_direction_beside_buffers_is_one_change_and_a_heads_gradient_is_one_downhill() -> None:
    data = site()
    for method, task in (("fednova", "train"), ("fediir", "gradient")):
        experiment = study(method, 1)
        played = play(experiment, data, part(experiment, data, 0))
        given = played.first[task]
        (change,) = changes_in(given, played.world.entries("task").names("parameters"))
        if method == "fednova":
            assert change.what == "train.direction+buffers, round 1"
            assert torch.allclose(change.downhill["conv1.weight"], given.up.direction["conv1.weight"], atol=1e-6)  # type: ignore[attr-defined]
            assert torch.equal(change.after["bn1.running_mean"], given.up.buffers["bn1.running_mean"])  # type: ignore[attr-defined]
        else:
            assert change.what == "gradient.gradient, round 1" and not change.downhill["conv1.weight"].any()
            assert torch.allclose(change.downhill["fc.bias"], -given.up.gradient["fc.bias"], atol=1e-6)  # type: ignore[attr-defined]


def test_the_sites_noise_is_on_what_leaves() -> None:
    experiment, data = study(rounds=1, lr=0.01), site()
    parts = part(experiment, data, 0)
    plain = play(experiment, data, parts).first["train"]
    noisy = play(experiment, data, parts, privacy=Privacy(on=True, clip=1e-3, noise=1.0)).first["train"]
    moved = noisy.up.model["fc.bias"] - plain.up.model["fc.bias"]  # type: ignore[attr-defined]
    assert moved.abs().max() > 0
    change = next(changes_in(noisy, ["fc.weight"]))
    assert float(change.downhill["fc.weight"].std()) == pytest.approx(1e-3, rel=0.3)


@pytest.mark.parametrize("method", ["fedavg", "elcfs"])
def test_the_meter_attacks_all_that_leaves(method: str) -> None:
    data = site()
    found = measure(study(method, rounds=1), data, steps=3, shadows=2, budget=1e6, policy=Policy())
    attacks = {a.attack for a in found.attempts}
    assert {"images from the change of weights", "membership: low loss", "membership: loss against other models", "read"} <= attacks
    assert all(a.baseline == 0.5 and a.low is not None for a in found.attempts if a.measure == "AUC")
    assert found.worst in ("images", "better", "guessing", "silent") and found.headline
    held_back = {f"{row.task}.{row.field}" for row in found.left if row.held_back}
    if method == "elcfs":  # one exact window of each image: a fingerprint, which the default policy holds back
        (spectrum,) = [a for a in found.attempts if a.attack == "membership: the nearest spectrum"]
        assert (
            spectrum.value == 1.0
            and spectrum.outcome == "better"
            and "would not let it out" in spectrum.verdict
            and held_back == {"spectra.low"}
        )
        assert found.images["of a stand-in site"] == 15
    else:
        assert held_back == set() and found.images["of a stand-in site"] == 0
    json.dumps(found.values())


def test_bad_input_is_told() -> None:
    with pytest.raises(BadInput, match="20 images; the meter needs at least 40"):
        parted(site(20).domains[0], 0)
    with pytest.raises(BadInput, match="does classification"):
        masks = dataclasses.replace(site(), task=Segmentation(("disc",)))
        part(study("fedsb"), masks, 0)


def test_a_study_is_read_from_toml_and_from_json(tmp_path: Path) -> None:
    toml, study_json = tmp_path / "e.toml", tmp_path / "study.json"
    toml.write_text(STUDY)
    experiment, schema = experiment_of(toml)
    assert (experiment.rounds, experiment.method.local.lr, schema) == (2, 0.01, None)
    card = card_of(site(), False)
    schema = agree("tiny", {"a": card})
    study_json.write_text(json.dumps({"experiment": experiment.description(), "schema": schema}))
    read, told = experiment_of(study_json)
    assert read.description() == experiment.description() and told == schema
    assert fitting(site(), told).name == "tiny"
    for key, value in (("channels", 1), ("size", [9, 9]), ("task", "segmentation")):
        with pytest.raises(BadInput, match=f"the study has {key}"):
            fitting(site(), {**schema, key: value})
    with pytest.raises(BadInput, match="no class"):
        fitting(site(), {**schema, "classes": ["x", "y"]})
    with pytest.raises(BadInput, match="cannot be read"):
        fitting(site(), {k: v for k, v in schema.items() if k != "classes"})
    code = tmp_path / "code.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    study_json.write_text(json.dumps({"experiment": {**experiment.description(), "network": f"{code}:net"}, "schema": schema}))
    with pytest.raises(BadInput):
        experiment_of(study_json)
    assert not (tmp_path / "ran").exists()  # a study brings no code
    study_json.write_text(json.dumps({"experiment": {**experiment.description(), "weights": str(toml)}, "schema": schema}))
    with pytest.raises(BadInput, match="opens no file"):
        experiment_of(study_json)


def test_a_study_is_read_as_it_was_proposed(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    experiment = Experiment(SETTINGS["fedavg"].build(), "tiny", "c", rounds=2)
    proposed, file = federation.federate(experiment).study, tmp_path / "study.json"
    file.write_bytes(proposed.signed(federation.server.signing))
    read, schema = experiment_of(file)
    assert (read.method, read.rounds, read.seed) == (experiment.method, 2, experiment.seed) and schema == proposed.schema
    assert fitting(alone(tiny, "a"), schema).names == ("a",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"study": 3}',
        '{"study": {"experiment": {}}}',
        '{"experiment": 3, "schema": {}}',
        "[" * 100_000,
        "\udcff",
        '{"experiment": {}, "schema": {}}',
    ],
)
def test_what_is_no_study_is_one_message(text: str, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput):
        experiment_of(file)


HOSTILE = "<script>alert(1)</script>\"'&{{ 7 * 7 }}"


def test_the_page_escapes_whatever_it_is_given() -> None:
    attempt = Attempt(HOSTILE, HOSTILE, "better", HOSTILE, HOSTILE, 0.5, 0.4, 0.6, 0.5, 0.9, HOSTILE, HOSTILE)
    left = LeftField(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 12, 1, True, True)
    counts = {"trained": 1, "validated": 2, "never trained": 3, "of a stand-in site": 4}
    found = Leakage(HOSTILE, HOSTILE, HOSTILE, "classification", counts, 1, 2, HOSTILE, HOSTILE, [left], [attempt], 1.0)
    page = render_leakage(found)
    assert "<script" not in page and "&lt;script&gt;" in page and "7 * 7" in page and "49" not in page
    assert page.index("more than guessing would") < page.index("What was done")  # the finding comes first
    plain = dataclasses.replace(found, attempts=[dataclasses.replace(attempt, outcome="guessing")])
    assert "no proof that none can" in render_leakage(plain)


def test_the_command_writes_a_page_beside_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unseen.federation.site.process.load", lambda spec, size=None: site())
    file, policy, out = tmp_path / "e.toml", tmp_path / "p.toml", tmp_path / "out"
    file.write_text(STUDY)
    policy.write_text('kinds = ["model"]\n[privacy]\non = true\nclip = 1.0\nnoise = 0.1\n')
    words = ["leakage", str(file), "--data", "folder:ours", "--rounds", "1", "--budget", "1", "--policy", str(policy), "--out", str(out)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    told = json.loads((out / "leakage.json").read_text())
    assert told["rounds"] == 1 and told["noise"] == "clip 1, noise 0.1" and told["attempts"]
    assert (out / "leakage.html").read_text().startswith("<!doctype html>") and str(out / "leakage.html") in result.output.replace("\n", "")
    table = [line for line in result.output.splitlines() if "membership" in line or "guess" in line]
    assert table and all(len(line) <= 80 for line in table[1:])
    wrong = CliRunner().invoke(app, [*words[:-1], str(file)])
    assert wrong.exit_code == 2 and "cannot be written" in wrong.output
    wrong = CliRunner().invoke(app, ["leakage", str(tmp_path / "no.toml"), "--data", "folder:ours"])
    assert wrong.exit_code == 2 and "no file" in wrong.output
    file.write_text('method = "fedavgg"\n')
    wrong = CliRunner().invoke(app, ["leakage", str(file), "--data", "folder:ours"])
    assert wrong.exit_code == 2 and "did you mean 'fedavg'" in wrong.output
