"""A share of the clients drawn for each round: as many as asked for, from the seed and the round, the same wherever it runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import tiny_classification
from federation_in_memory import FederationInMemory
from unseen import BadInput, Experiment, FedAvg, FedDyn
from unseen.data.domain import DomainDataset
from unseen.engines.cohort import taking_part
from unseen.engines.local import LocalEngine
from unseen.federation.server.exchange import Terms
from unseen.parts.combining import Down
from unseen.runs.record import Record
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import build_world

SIX = tiny_classification((12,) * 7)


def clients_of(record: Record) -> list[str]:
    return next(row["clients"] for row in record["travelled"] if row["task"] == "train" and row["direction"] == "sent")


@given(share=st.floats(0.01, 1), seed=st.integers(0, 50), number=st.integers(1, 20))
def test_as_many_as_asked_for_and_at_least_one(share: float, seed: int, number: int) -> None:
    world = build_world(Experiment(FedAvg(), SIX, "g", participation=share, seed=seed))
    drawn = taking_part(world, number)
    assert len(set(drawn)) == len(drawn) == max(1, round(share * 6)) and set(drawn) <= set(world.clients) and drawn == sorted(drawn)
    assert taking_part(world, 0) == world.clients, "before round 1 everyone is asked"


def test_every_client_gets_its_turn_and_seeds_differ() -> None:
    world = build_world(Experiment(FedAvg(), SIX, "g", participation=0.5))
    turns = Counter(name for number in range(1, 201) for name in taking_part(world, number))
    assert set(turns) == set(world.clients) and all(75 < turns[name] < 125 for name in turns)  # 100 expected, deviation 7
    other = build_world(Experiment(FedAvg(), SIX, "g", participation=0.5, seed=1))
    assert [taking_part(world, n) for n in range(1, 9)] != [taking_part(other, n) for n in range(1, 9)]


@pytest.mark.parametrize("method", [FedAvg(lr=0.02, batch=8), FedDyn(lr=0.02, batch=8, epochs=1)], ids=["fedavg", "feddyn"])
def test_only_those_train_everyone_is_scored_and_a_resumed_run_draws_the_same(method: FedAvg, tmp_path: Path) -> None:
    def go(out: str, rounds: int, resume: bool = False) -> list[Record]:
        experiment = Experiment(method, SIX, "g", participation=0.34, rounds=rounds)
        return list(train(experiment, tmp_path / out, watch=Silent(), resume=resume).records)

    records = go("whole", 4)
    world = build_world(Experiment(method, SIX, "g", participation=0.34))
    assert [clients_of(record) for record in records] == [taking_part(world, number) for number in (1, 2, 3, 4)]
    assert all(set(record["source"]) == set("abcdef") and not record["missing"] for record in records)
    go("parts", 1)
    go("parts", 4, resume=True)
    assert (tmp_path / "whole/records.jsonl").read_bytes() == (tmp_path / "parts/records.jsonl").read_bytes()


def test_between_sites_the_same_are_drawn(tmp_path: Path) -> None:
    data: DomainDataset = tiny_classification((12, 12, 12, 12))
    experiment = Experiment(FedAvg(lr=0.02, batch=8), data.name, "d", participation=0.5, rounds=3)
    federation = FederationInMemory(tmp_path, data, "d")
    there = train(experiment, tmp_path / "there", watch=Silent(), elsewhere=federation.federate(experiment))
    here = train(Experiment(experiment.method, data, "d", participation=0.5, rounds=3), tmp_path / "here", watch=Silent())
    assert [clients_of(r) for r in there.records] == [clients_of(r) for r in here.records]
    assert (tmp_path / "there/records.jsonl").read_bytes() == (tmp_path / "here/records.jsonl").read_bytes()


def test_a_share_outside_its_range_is_refused() -> None:
    with pytest.raises(BadInput, match=r"participation is 1\.5"):
        Experiment(FedAvg(), SIX, "g", participation=1.5)


def test_a_share_that_draws_fewer_than_the_federation_needs_is_refused(tmp_path: Path) -> None:
    data = tiny_classification((12, 12, 12, 12))
    federation = FederationInMemory(tmp_path, data, "d")
    with pytest.raises(BadInput, match="participation draws 1 of 3 sites a round; minimum_clients is 2"):
        federation.federate(Experiment(FedAvg(), data.name, "d", participation=0.34), Terms(minimum_clients=2))


def test_a_question_to_each_client_by_name_reaches_those_drawn(tmp_path: Path) -> None:
    """ELCFS and SHA ask clients by name: who is not drawn is not asked, whatever the method."""
    world = build_world(Experiment(FedAvg(lr=0.02, batch=8), SIX, "g", participation=0.34, rounds=2))
    engine = LocalEngine(world, tmp_path)
    cohort = engine.cohort(1)
    asked = cohort.ask(world.experiment.method.train, {name: Down(model=world.fresh("task")) for name in cohort.names}).all()
    assert sorted(asked) == cohort.taking_part == taking_part(world, 1) and len(asked) == 2
