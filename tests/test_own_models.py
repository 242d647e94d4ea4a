"""Each client's own model, scored at that client: right by hand, the same bits everywhere, and nothing of it elsewhere."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from typer.testing import CliRunner

import methods_for_tests as tests
from federation_in_memory import EVERYTHING, FederationInMemory, place_of
from unseen import Client, Experiment, FedAvg, Method, State
from unseen.cli import app
from unseen.codec import decode, notes_in
from unseen.data.domain import DomainDataset
from unseen.engines.workers import Workers
from unseen.errors import ClientFailed
from unseen.methods import METHODS, method_class
from unseen.networks import build_network
from unseen.report.collect import collect
from unseen.report.page import render_page
from unseen.report.trackers import scalars
from unseen.runs.record import Record, read_records
from unseen.runs.selection import RULES, source_score
from unseen.runs.watch import Silent
from unseen.scoring import Scores
from unseen.state import same_bits
from unseen.training import Result, train
from unseen.world import World

FILES = ("records.jsonl", "model.safetensors", "best.safetensors")
KEEPER = f"{tests.__file__}:NormKeeper"


def go(data: DomainDataset | str, out: Path | None, method: Method[Any] | None = None, rounds: int = 3, **modes: Any) -> Result:
    around = {key: modes.pop(key) for key in ("target", "network") if key in modes}
    experiment = Experiment(method or tests.NormKeeper(), data, around.pop("target", "c"), rounds=rounds, validation=0.3, **around)
    return train(experiment, out, watch=Silent(), **modes)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: DomainDataset) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, go(tiny, folder)


def norms_of(folder: Path, client: str) -> State:
    """What the client keeps after the last round, read from its file."""
    versions = json.loads(notes_in((folder / "checkpoint.safetensors").read_bytes())["versions"])
    return decode(tests.Norms, (folder / "memory" / versions[client]["Norms"]).read_bytes()).norms


def by_hand(state: State, world: World, client: str) -> dict[str, float]:
    """Loss and accuracy on a client's validation part, without any of the library's scoring."""
    net = build_network("small_cnn:width=4", outputs=3, channels=3, size=(8, 8))
    net.load_state_dict(state)
    ((domain, index),) = world.holdings[client].validation.parts
    with torch.no_grad():
        logits = net.eval()(torch.tensor(domain.images[index]).float() / 255).double()
    labels = torch.tensor(domain.labels[index])
    accuracy = float((logits.argmax(1) == labels).double().mean())
    return {"loss": float(F.cross_entropy(logits, labels)), "accuracy": accuracy, "samples": len(labels)}


def agrees(row: dict[str, float], expected: dict[str, float]) -> bool:
    return all(row[key] == pytest.approx(value, rel=1e-5) for key, value in expected.items())


def test_it_is_the_global_model_with_the_clients_own_norms(whole: tuple[Path, Result]) -> None:
    folder, result = whole
    record, model = result.records[-1], load_file(folder / "model.safetensors")
    for client in ("a", "b"):
        norms = norms_of(folder, client)
        assert set(norms) == {name for name in model if name.startswith("bn")}
        assert agrees(record["own"][client], by_hand({**model, **norms}, result.world, client))
        assert agrees(record["source"][client], by_hand(model, result.world, client))
        assert record["own"][client]["loss"] != record["source"][client]["loss"]
        assert record["own"][client].keys() == record["source"][client].keys()
    other = by_hand({**model, **norms_of(folder, "b")}, result.world, "a")
    assert not agrees(record["own"]["a"], other)  # nor is it another client's
    for metric, mean in record["own_mean"].items():
        assert mean == pytest.approx((record["own"]["a"][metric] + record["own"]["b"][metric]) / 2)
    assert record["own_mean"].keys() == record["source_mean"].keys()


def test_only_where_there_is_one(tiny: DomainDataset, whole: tuple[Path, Result]) -> None:
    plain = go(tiny, None, FedAvg(steps=1), rounds=1).records[0]
    assert not {"own", "own_mean"} & plain.keys()
    assert {row["field"] for row in plain["scoring"]} == {"model", "metrics", "samples"}
    record = whole[1].records[0]
    rows = {row["field"]: row for row in record["scoring"]}
    assert rows["own"]["clients"] == ["a", "b"] and rows["own"]["kind"] == "score" and rows["own"]["direction"] == "sent"
    assert rows["metrics"]["clients"] == ["a", "b", "c"] and set(record["own"]) == {"a", "b"}


def test_the_same_bits_through_bytes_and_on_resume(whole: tuple[Path, Result], tiny: DomainDataset, tmp_path: Path) -> None:
    go(tiny, tmp_path / "bytes", through_bytes=True)
    go(tiny, tmp_path / "parts", rounds=1)
    go(tiny, tmp_path / "parts", resume=True)
    assert contents(tmp_path / "bytes") == contents(whole[0]) == contents(tmp_path / "parts")


def test_the_same_bits_with_workers(tmp_path: Path) -> None:
    settings = {"method": method_class(KEEPER)(), "target": "outline", "network": "small_cnn:width=2", "rounds": 2}
    go("styled-digits", tmp_path / "alone", **settings)
    with Workers(2) as workers:
        result = go("styled-digits", tmp_path / "workers", workers=workers, **settings)
    assert contents(tmp_path / "alone") == contents(tmp_path / "workers")
    assert set(result.records[-1]["own"]) == set(result.world.clients)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site runs only methods that are installed there."""
    monkeypatch.setitem(METHODS, "normkeeper", tests.NormKeeper)


def between(federation: FederationInMemory, out: Path, rounds: int = 3) -> Result:
    told = Experiment(tests.NormKeeper(), "tiny", "c", rounds=rounds, validation=0.3)
    return train(told, out, watch=Silent(), resume=out.exists(), elsewhere=federation.federate(told))


def test_the_same_bits_between_sites_and_no_norm_leaves(
    installed: None, whole: tuple[Path, Result], tiny: DomainDataset, tmp_path: Path
) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    between(federation, tmp_path / "run")
    assert contents(tmp_path / "run") == contents(whole[0])
    models, scores = 0, []
    for client, question, answer in federation.carrier.carried:
        place = place_of(question)
        if place is not None and place[1] == 1:
            assert not [name for name in tests.Model.from_bytes(answer.payload).model if name.startswith("bn")]
            models += 1
        elif place is not None:
            scores.append((client, Scores.from_bytes(answer.payload).own is not None))
    assert models == 6 and sorted(set(scores)) == [("a", True), ("b", True), ("c", False)] and len(scores) == 9


def test_a_site_that_gives_no_scores_has_none_of_its_own(installed: None, tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c", {"b": replace(EVERYTHING, scores="last-round")})
    first, last = between(federation, tmp_path / "run", rounds=2).records
    assert set(first["own"]) == {"a"} == set(first["source"]) and set(last["own"]) == {"a", "b"}
    assert first["own_mean"]["loss"] == first["own"]["a"]["loss"]


def test_a_client_that_keeps_nothing_yet_counts_with_the_global_model(tiny: DomainDataset) -> None:
    first, second, _ = go(tiny, None, tests.NormKeeper(bad="b1")).records
    assert set(first["missing"]) == {"b"} and set(first["own"]) == {"a"} and set(first["source"]) == {"a", "b"}
    assert first["own_mean"]["loss"] == pytest.approx((first["own"]["a"]["loss"] + first["source"]["b"]["loss"]) / 2)
    assert set(second["own"]) == {"a", "b"}


def test_a_client_that_is_missing_later_keeps_its_norms(tiny: DomainDataset, tmp_path: Path) -> None:
    before = go(tiny, tmp_path / "before", rounds=1)
    result = go(tiny, tmp_path / "run", tests.NormKeeper(bad="b2"), rounds=2)
    record, model = result.records[-1], load_file(tmp_path / "run/model.safetensors")
    assert set(record["missing"]) == {"b"} and same_bits(norms_of(tmp_path / "run", "b"), norms_of(tmp_path / "before", "b"))
    assert agrees(record["own"]["b"], by_hand({**model, **norms_of(tmp_path / "before", "b")}, result.world, "b"))
    assert before.records[0]["own"] == result.records[0]["own"]


@dataclass(frozen=True)
class Rude(tests.NormKeeper):
    """Draws, builds a network, and writes into the model it was given; it would answer an unseen domain too."""

    asked: ClassVar[list[str]] = []

    def local_model(self, model: State, client: Client) -> State | None:
        self.asked.append(client.id)
        torch.rand(3)
        torch.rand(3, generator=client.rng)
        client.build("task", model)
        kept = client.recall(tests.Norms)
        model.update(kept.norms if kept else {})
        return model


@dataclass(frozen=True)
class Without(tests.NormKeeper):
    """The same training, and no model of a client's own."""

    def local_model(self, model: State, client: Client) -> State | None:
        return None


def without_own(record: Record) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if key not in ("own", "own_mean", "method")}
    return {**kept, "scoring": [row for row in record["scoring"] if row["field"] != "own"]}


def test_nothing_else_is_moved_by_it_and_the_unseen_domain_is_not_asked(whole: tuple[Path, Result], tiny: DomainDataset) -> None:
    Rude.asked.clear()
    rude, without = go(tiny, None, Rude()), go(tiny, None, Without())
    assert same_bits(rude.state, without.state) and same_bits(rude.state, whole[1].state)
    assert [*map(without_own, rude.records)] == [*map(without_own, without.records)] == [*map(without_own, whole[1].records)]
    assert [record["own"] for record in rude.records] == [record["own"] for record in whole[1].records]
    assert Rude.asked == ["a", "b"] * 3 and not any("own" in record for record in without.records)


@dataclass(frozen=True)
class Forgetful(tests.NormKeeper):
    """Changes what the client keeps while it is scored."""

    def local_model(self, model: State, client: Client) -> State | None:
        client.remember(tests.Norms(norms={}))
        return model


def test_scoring_must_leave_no_trace(tiny: DomainDataset) -> None:
    with pytest.raises(ClientFailed, match=r"failed in scoring\.score: TypeError: Forgetful\.local_model remembers something"):
        go(tiny, None, Forgetful())


def test_without_validation_samples_there_is_nothing_to_say(tiny: DomainDataset) -> None:
    told = Experiment(tests.NormKeeper(), tiny, "c", rounds=1, validation=0.0)
    (record,) = train(told, None, watch=Silent()).records
    assert not {"own", "own_mean"} & record.keys() and record["source_mean"] == {}


def test_the_best_round_is_that_of_the_clients_own_models(tiny: DomainDataset, tmp_path: Path) -> None:
    result = go(tiny, tmp_path / "run", tests.NormKeeper(lr=0.3), rounds=6)
    own, source = ([r[part]["accuracy"] for r in result.records] for part in ("own_mean", "source_mean"))
    chosen = RULES["source"].picks(result.records)
    assert chosen == own.index(max(own)) != source.index(max(source))
    assert source_score(result.records[chosen]) == max(own)
    again = go(tiny, None, tests.NormKeeper(lr=0.3), rounds=chosen + 1)
    assert same_bits(load_file(tmp_path / "run/best.safetensors"), again.state)


def command(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_run_and_report_show_it(tmp_path: Path) -> None:
    around = ["--target", "outline", "--rounds", 2, "--network", "small_cnn:width=2", "--workers", 1, "--device", "cpu"]
    told = command("run", "--method", KEEPER, *around, "--out", tmp_path / "r/keeper", "-v")
    command("run", "--method", "fedavg", *around, "--set", "steps=1", "--out", tmp_path / "r/fedavg", "-q")
    records = read_records(tmp_path / "r/keeper/records.jsonl")
    index = RULES["source"].picks(records)
    assert index is not None
    chosen = records[index]["own"]
    heading = "Accuracy in percent of each client's own model, at that client; best round by source validation"
    row = "| NormKeeper | " + " | ".join(f"{100 * chosen[client]['accuracy']:.2f}" for client in sorted(chosen))
    assert heading in told and row in told and told.index("on the unseen domain") < told.index(heading)
    assert f"own {records[0]['own_mean']['accuracy']:.3f}" in told and "plain, its own model: loss" in told
    text = command("report", tmp_path / "r", "--rule", "source")
    main, own = text.split(heading)
    assert "on the unseen domain" in main and "| FedAvg |" in main and "FedAvg" not in own and row in own and "worst client" in own
    assert own.count("|\n") == 3  # no row but this one
    tex = command("report", tmp_path / "r", "--rule", "last", "--format", "tex")
    assert tex.count(r"\begin{table}") == 3 and "of each client's own model, at that client; last round" in tex
    rows = list(csv.DictReader(io.StringIO(command("report", tmp_path / "r", "--rule", "last", "--format", "csv-table"))))
    told_of = {(row["method"], row["target"]): float(row["mean"]) for row in rows if row["model"] == "own"}
    last = records[-1]["own"]
    assert {c: told_of["NormKeeper", c] for c in last} == {c: pytest.approx(100 * row["accuracy"]) for c, row in last.items()}
    assert {row["method"] for row in rows if row["model"] == "global"} == {"NormKeeper", "FedAvg"}
    page = render_page(collect(tmp_path / "r"), "x")
    assert page.count("Each client's own model, at that client") == 3  # last, source, oracle
    assert all(f"<span>{100 * row['accuracy']:.2f}</span>" in page for row in chosen.values())
    fedavg = tmp_path / "r/fedavg"
    assert "own model" not in command("report", fedavg) + render_page(collect(fedavg), "x")


def test_trackers_are_told(whole: tuple[Path, Result]) -> None:
    record = whole[1].records[-1]
    values = scalars(record, 1.0)
    assert values["own/a/accuracy"] == record["own"]["a"]["accuracy"] and values["own/b/loss"] == record["own"]["b"]["loss"]
    assert values["own/loss"] == record["own_mean"]["loss"] != values["source/loss"]
