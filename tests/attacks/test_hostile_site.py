"""A hostile site against the server and the other sites: properly signed answers that would end a run, or take it over.

An answer that cannot be used costs its sender alone: the run ends well, and no honest site is left out or outvoted by one number.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import tiny_classification
from federation_in_memory import FederationInMemory
from unseen import ELCFS, Experiment, FedAvg, FedDAG, codec
from unseen.data.domain import DomainDataset
from unseen.federation.kits import open_kit
from unseen.federation.messages import Message, SignedMessage, sign
from unseen.method import Method
from unseen.methods.elcfs import Spectra
from unseen.methods.feddag import Up as FedDAGUp
from unseen.parts.aggregation import CEA, Losses, Uniform
from unseen.parts.combining import Up
from unseen.parts.robust import Median
from unseen.payload import Payload
from unseen.runs.record import Record
from unseen.runs.selection import RULES
from unseen.runs.watch import Silent
from unseen.scoring import Scores
from unseen.training import train

Change = Callable[[Any, int], Payload]
HOSTILE = "a"  # the first by name, which ties used to go to
FEDAVG, SPECTRA = FedAvg(batch=16, lr=0.01), ELCFS(batch=8, steps=1, alpha=0.2, first_order=True)


@pytest.fixture(scope="module")
def four() -> DomainDataset:
    """Three sites that train, and d, which is unseen."""
    return tiny_classification(sizes=(40, 30, 20, 20))


@pytest.fixture
def attacked(four: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Record]]]:
    """Runs in which one site changes its answers of one kind and signs them properly. The number counts those answers."""
    for dtype, name in ((torch.float8_e4m3fn, "F8_E4M3"), (torch.float8_e5m2, "F8_E5M2"), (torch.complex64, "C64")):
        monkeypatch.setitem(codec._STORED, dtype, name)  # what an honest site cannot write

    def run(kind: type[Payload], change: Change, method: Method[Any] = FEDAVG, rounds: int = 1) -> list[Record]:
        federation, changed = FederationInMemory(tmp_path, four, "d"), 0
        key = open_kit(federation.server.path / "kits" / f"{HOSTILE}.kit", tmp_path / HOSTILE).signing

        def tamper(client: str, signed: SignedMessage) -> SignedMessage:
            nonlocal changed
            try:
                answer = kind.from_bytes(signed.payload)
            except ValueError:
                return signed  # of another kind
            if client != HOSTILE:
                return signed
            changed += 1
            return sign(Message(json.loads(signed.header), change(answer, changed).to_bytes()), key, "answer")

        federation.carrier.tamper = tamper
        experiment = Experiment(method, "tiny", "d", rounds=rounds)
        result = train(experiment, tmp_path / "run", watch=Silent(), elsewhere=federation.federate(experiment))
        assert changed, f"the site was never asked for {kind.__name__}"
        assert {name for record in result.records for name in record["missing"]} <= {HOSTILE}, "an honest site was left out"
        return list(result.records)

    yield run


def with_model(change: Callable[[Tensor], Tensor]) -> Change:
    return lambda up, _: dataclasses.replace(up, model={k: change(v) if v.is_floating_point() else v for k, v in up.model.items()})


def with_counters(value: int) -> Change:
    return lambda up, _: dataclasses.replace(
        up, model={k: v if v.is_floating_point() else torch.full_like(v, value) for k, v in up.model.items()}
    )


MODELS: dict[str, tuple[Change, str]] = {
    "float8": (with_model(lambda v: v.to(torch.float8_e4m3fn)), "type F8_E4M3"),
    "float8, wide": (with_model(lambda v: v.to(torch.float8_e5m2)), "type F8_E5M2"),
    "complex": (with_model(lambda v: v.to(torch.complex64)), "type C64"),
    "half": (with_model(lambda v: v.half()), "type torch.float16"),
    "1e30": (with_model(lambda v: torch.full_like(v, 1e30)), "expected -1e+06 to 1e+06"),
    "-2e6": (with_model(lambda v: torch.full_like(v, -2e6)), "expected -1e+06 to 1e+06"),
    "a counter near its end": (with_counters(2**63 - 1), "num_batches_tracked"),
}


@pytest.mark.parametrize("what", MODELS)
def test_a_model_that_cannot_be_used_costs_its_sender_alone(what: str, attacked: Callable[..., list[Record]]) -> None:
    change, reason = MODELS[what]
    (record,) = attacked(Up, change)
    assert reason in record["missing"][HOSTILE]


def with_metrics(*tables: dict[str, float]) -> Change:
    return lambda scores, n: dataclasses.replace(scores, metrics={**scores.metrics, **tables[min(n, len(tables)) - 1]})


SCORES: dict[str, Change] = {
    "accuracy 1e308": with_metrics({"accuracy": 1e308}),
    "accuracy 50": with_metrics({"accuracy": 50.0}),
    "accuracy 1.01": with_metrics({"accuracy": 1.01}),
    "accuracy -50": with_metrics({"accuracy": -50.0}),
    "a loss below zero": with_metrics({"loss": -3.0}),
    "a loss of 1e300": with_metrics({"loss": 1e300}),
    "another metric": with_metrics({"own_mean": 1.0}),
    "the number of samples as a metric": with_metrics({"samples": 1e6}),
    "a metric of masks": with_metrics({"dice": 1.0}),
    "a model of its own": lambda scores, _: dataclasses.replace(scores, own={"accuracy": 1.0}),
    "more samples than it holds": lambda scores, _: dataclasses.replace(scores, samples=10**9),
}


@pytest.mark.parametrize("what", SCORES)
def test_a_score_that_cannot_be_leaves_its_sender_out_of_the_mean(what: str, attacked: Callable[..., list[Record]]) -> None:
    (record,) = attacked(Scores, SCORES[what])
    assert set(record["source"]) == {"b", "c"} and "own" not in record
    assert set(record["source_mean"]) <= {
        "loss",
        "accuracy",
        "weighted_accuracy",
        "balanced_accuracy",
        "weighted_f1",
        "weighted_auc",
        "ece",
    }
    assert 0 <= record["source_mean"]["accuracy"] <= 1


def test_one_site_does_not_choose_the_best_round(attacked: Callable[..., list[Record]]) -> None:
    """It praises round 1 beyond measure and damns all others."""
    records = attacked(Scores, with_metrics({"accuracy": 50.0}, {"accuracy": -50.0}), FedAvg(batch=8, lr=0.05), rounds=3)
    means = [record["source_mean"]["accuracy"] for record in records]
    assert RULES["source"].picks(records) == means.index(max(means)) and all(0 <= value <= 1 for value in means)


def with_low(change: Callable[[Tensor], Tensor]) -> Change:
    return lambda answer, _: Spectra(low=change(answer.low))


ODD_SPECTRA: dict[str, Change] = {
    "float8": with_low(lambda v: v.to(torch.float8_e4m3fn)),
    "1e38": with_low(lambda v: torch.full_like(v, 1e38)),
    "more than pixels can give": with_low(lambda v: torch.full_like(v, 65.0)),
    "below zero": with_low(lambda v: -v - 1),
    "complex NaN": with_low(lambda v: v.to(torch.complex64) * complex("nan")),
    "complex": with_low(lambda v: v.to(torch.complex64)),
    "whole numbers": with_low(lambda v: v.long()),
    "none": with_low(lambda v: v[:0]),
    "one that is no batch": with_low(lambda v: v.new_zeros(())),
    "more than images": with_low(lambda v: v.repeat(50, 1, 1, 1)),
    "of another window": with_low(lambda v: torch.cat([v, v], -1)),
    "in double precision": with_low(lambda v: v.double()),
}


@pytest.mark.parametrize("what", ODD_SPECTRA)
def test_spectra_that_cannot_be_are_in_nobodys_bank(what: str, attacked: Callable[..., list[Record]]) -> None:
    (record,) = attacked(Spectra, ODD_SPECTRA[what], SPECTRA)
    assert not record["missing"], "the round itself goes on with all of them"
    banks = [row for row in record["travelled"] if row["field"] == "low" and row["direction"] == "received"]
    sizes = {client: row["bytes"] for row in banks for client in row["clients"]}
    assert sizes["b"] == 18 * 3 * 3 * 2 * 4, "b has the spectra of c alone"


def test_losses_that_cannot_be_do_not_weigh(attacked: Callable[..., list[Record]]) -> None:
    def praising_all(answer: Losses, _: int) -> Losses:
        return Losses(losses=dict.fromkeys(answer.losses, -1.0))

    (record,) = attacked(Losses, praising_all, FedAvg(batch=16, aggregation=CEA()))
    assert "losses.b is -1; expected 0 to 1e+09" in record["missing"][HOSTILE]


def test_a_network_that_was_not_asked_for_does_not_become_everybodys(attacked: Callable[..., list[Record]]) -> None:
    """A student of the site's own, where no global student is kept, or a generator in a round without one."""
    method = FedDAG(batch=8, steps=1, width=4, warmup=1, aggregation=Uniform())

    def with_student(up: FedDAGUp, _: int) -> FedDAGUp:
        return dataclasses.replace(up, student={k: v + 1 for k, v in up.teacher.items()})  # type: ignore[type-var]

    (record,) = attacked(FedDAGUp, with_student, method)
    assert "student is of student, which was not sent" in record["missing"][HOSTILE]


def test_the_median_holds_against_a_model_within_all_bounds(attacked: Callable[..., list[Record]]) -> None:
    poison = with_model(lambda v: torch.full_like(v, 1e5))
    (record,) = attacked(Up, poison, FedAvg(batch=8, lr=0.02, aggregation=Median()))
    assert not record["missing"] and record["source_mean"]["loss"] < 10
