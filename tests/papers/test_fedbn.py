"""FedBN: what a client keeps, what the others get of it, and FedAvg inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cases import Case
from one_client import Fixed
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.engines.local import LocalEngine
from unseen.method import Global
from unseen.methods.fedbn import FedBN, OwnNorms, Up
from unseen.parts.aggregation import Uniform
from unseen.parts.combining import Down
from unseen.runs.watch import Silent
from unseen.state import only, same_bits
from unseen.training import train
from unseen.world import build_world

SETTINGS: dict[str, Any] = {"lr": 0.05, "batch": 8, "optimizer": "momentum"}
TINY = {
    "fedbn": Case("fedbn", SETTINGS, leaves="train.model train.norms"),
    "fedbn-private": Case(
        "fedbn", {**SETTINGS, "unseen_norm": "initial", "weighted": True}, reaches=None, leaves="train.model train.samples"
    ),
}


@pytest.mark.parametrize("unseen_norm", ["average", "initial"])
def test_clients_differ_in_their_norms_and_agree_in_all_else(unseen_norm: Any, tiny: DomainDataset, tmp_path: Path) -> None:
    """Two rounds through the engine, checked against the answers themselves."""
    method = FedBN(unseen_norm=unseen_norm, **SETTINGS)
    world = build_world(Experiment(method, tiny, "c", device="cpu"))
    engine, first = LocalEngine(world, tmp_path), world.fresh("task")
    state = method.round(Global(first), engine.cohort(1))
    kept = {name: engine.memory.recall(name, OwnNorms).norms for name in "ab"}
    norms, rest = world.entries("task").names("norms"), world.entries("task").names("without-norms")
    assert [*kept["a"]] == norms and all(name.startswith("bn") for name in norms)
    assert not torch.equal(kept["a"]["bn1.running_mean"], kept["b"]["bn1.running_mean"])
    for name in norms:
        wanted = first[name] if unseen_norm == "initial" else (kept["a"][name] + kept["b"][name]) / 2
        assert torch.allclose(state.model[name].double(), wanted.double(), atol=1e-6) or name.endswith("tracked"), name
    cohort = engine.cohort(2)
    ups = cohort.ask(method.train, Down(model=state.model)).all()
    again = method.round(state, Fixed(ups))
    for name in rest:
        assert torch.allclose(again.model[name], (ups["a"].model[name] + ups["b"].model[name]) / 2, atol=1e-6), name
    assert (ups["a"].norms is None) == (unseen_norm == "initial") and ups["a"].samples is None


def test_a_client_goes_on_from_its_own_norms(tiny: DomainDataset, tmp_path: Path) -> None:
    """The question's norms make no difference to a client that has its own; to a newcomer they do."""
    method = FedBN(**SETTINGS)
    world = build_world(Experiment(method, tiny, "c", device="cpu"))
    first = world.fresh("task")
    other = {**first, **{name: first[name] + 1 for name in world.entries("task").names("norms") if first[name].is_floating_point()}}

    def second_answers(folder: Path, experienced: bool, model: dict[str, torch.Tensor]) -> Up:
        engine = LocalEngine(world, folder)
        if experienced:
            method.round(Global(first), engine.cohort(1))
        return engine.cohort(2).ask(method.train, {"a": Down(model=model)}).all()["a"]

    one, two = (second_answers(tmp_path / str(n), True, model) for n, model in enumerate((first, other)))
    assert same_bits(one.model, two.model) and same_bits(one.norms or {}, two.norms or {})
    new, newer = (second_answers(tmp_path / f"new{n}", False, model) for n, model in enumerate((first, other)))
    assert not same_bits(new.model, newer.model)


def test_weights_and_a_missing_client() -> None:
    ups = {
        "a": Up(model={"w": torch.tensor([1.0])}, norms={"bn": torch.tensor([2.0])}, samples=1),
        "b": "gone",
        "c": Up(model={"w": torch.tensor([4.0])}, norms={"bn": torch.tensor([8.0])}, samples=2),
    }
    before = Global({"w": torch.zeros(1), "bn": torch.zeros(1)})
    assert {n: v.item() for n, v in FedBN(weighted=True).round(before, Fixed(ups)).model.items()} == {"w": 3.0, "bn": 6.0}
    assert {n: v.item() for n, v in FedBN().round(before, Fixed(ups)).model.items()} == {"w": 2.5, "bn": 5.0}


def test_one_client_is_fedavg_to_the_bit_and_two_are_not(tiny: DomainDataset) -> None:
    def final(method: Any, **around: Any) -> Any:
        return train(Experiment(method, tiny, "c", rounds=3, **around), None, watch=Silent()).state

    assert same_bits(final(FedBN(**SETTINGS), sources="a"), final(FedAvg(**SETTINGS), sources="a"))
    plain, kept = final(FedAvg(**SETTINGS, aggregation=Uniform())), final(FedBN(**SETTINGS))
    assert not same_bits(only(plain, ["conv1.weight"]), only(kept, ["conv1.weight"]))


def test_a_network_without_batch_norm_is_refused(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    for data, network in ((tiny_masks, None), (tiny, "small_cnn:width=4,norm=frozen")):
        with pytest.raises(BadInput, match="has no batch norm to train, so FedBN would be FedAvg"):
            build_world(Experiment(FedBN(), data, "c", network=network))
