"""Methods that the package does not know run on its seams alone: in process, through bytes, resumed, and between three sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import sketches
from conftest import tiny_classification, tiny_segmentation
from federation_in_memory import FEW, FederationInMemory
from unseen import BadInput, Experiment, FedADG, FedAvg, Method
from unseen.data.domain import DomainDataset
from unseen.federation.site.policy import Policy
from unseen.method import Replies
from unseen.methods import METHODS
from unseen.parts.aggregation import Aggregate, Candidates, Losses, Uniform
from unseen.parts.combining import Up
from unseen.runs.watch import Silent
from unseen.state import same_bits, state_of
from unseen.training import Result, train

FOUR = tiny_classification((24, 20, 16, 12))  # three sites and one that stays unseen
FILES = ("records.jsonl", "model.safetensors", "best.safetensors")


@pytest.fixture(autouse=True)
def style_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CCST's pretrained networks, where torch keeps such files."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.manual_seed(0)
    for role, net in (("encoder", nn.Conv2d(3, 4, 1)), ("decoder", nn.Conv2d(4, 3, 1))):
        safetensors.torch.save_file(state_of(net), tmp_path / f"checkpoints/style-{role}.safetensors")


def made(name: str, tmp_path: Path) -> Method[Any]:
    if name in ("GA", "GMA"):
        return FedAvg(lr=0.05, batch=8, optimizer="sgd", aggregation=getattr(sketches, name)())
    return getattr(sketches, name)()


ALL = ("MOON", "SCAFFOLD", "FedNova", "FedBN", "GA", "GMA", "FedIIR", "FedSR", "CCST")


def go(method: Method[Any], out: Path, data: DomainDataset = FOUR, rounds: int = 3, **modes: Any) -> Result:
    return train(Experiment(method, data, data.names[-1], rounds=rounds), out, watch=Silent(), **modes)


@pytest.mark.parametrize("name", ALL)
def test_equal_bits_through_bytes_and_after_resume(name: str, tmp_path: Path) -> None:
    method = made(name, tmp_path)
    whole = go(method, tmp_path / "whole")
    assert not any(record["missing"] for record in whole.records)
    assert all(torch.isfinite(value).all() for value in whole.state.values() if value.is_floating_point())
    go(method, tmp_path / "parts", rounds=1, through_bytes=True)
    go(method, tmp_path / "parts", resume=True, through_bytes=True)
    for file in FILES:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()


@pytest.mark.parametrize("name", ALL)
def test_it_learns(name: str, tmp_path: Path) -> None:
    last = go(made(name, tmp_path), tmp_path / "run", rounds=8).records[-1]
    assert last.get("own_mean", last["source_mean"])["accuracy"] > 0.6


@pytest.mark.parametrize("name", ["MOON", "SCAFFOLD", "FedNova", "FedBN", "FedIIR", "FedSR"])
def test_between_three_sites_it_is_as_in_process(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = made(name, tmp_path)
    monkeypatch.setitem(METHODS, name.lower(), type(method))
    federation = FederationInMemory(tmp_path / "federation", FOUR, "d")
    experiment = Experiment(method, FOUR.name, "d", rounds=3)
    train(experiment, tmp_path / "there", watch=Silent(), elsewhere=federation.federate(experiment))
    go(method, tmp_path / "here")
    for file in FILES:
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes()


def test_a_gradient_is_let_out_only_where_the_policy_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "fediir", sketches.FedIIR)
    federation = FederationInMemory(tmp_path, FOUR, "d", {"a": Policy(**FEW)})
    federation.federate(Experiment(sketches.FedIIR(), FOUR.name, "d", rounds=1))
    assert any("a does not take part: refused by the site: kinds: slope is a gradient" in said for said in federation.said)


def test_fedbn_keeps_its_norms_and_is_scored_with_them(tmp_path: Path) -> None:
    record = go(sketches.FedBN(), tmp_path / "run", rounds=6).records[-1]
    assert set(record["own"]) == {"a", "b", "c"} and record["own_mean"]["accuracy"] > record["source_mean"]["accuracy"]
    sent = {row["field"]: row["bytes"] for row in record["travelled"] if row["direction"] == "sent"}
    received = {row["field"]: row["bytes"] for row in record["travelled"] if row["direction"] == "received"}
    assert sent["model"] < received["model"]


def test_fednova_with_equal_steps_is_fedavg(tmp_path: Path) -> None:
    """tau_i = tau for all: the normalised average is the average."""
    nova = go(sketches.FedNova(steps=3), tmp_path / "nova")
    plain = go(FedAvg(steps=3, lr=0.05, batch=8, optimizer="sgd"), tmp_path / "plain")
    for name, value in plain.state.items():
        torch.testing.assert_close(nova.state[name], value, rtol=1e-4, atol=1e-5)


def test_scaffold_without_control_variates_in_round_one_is_fedavg(tmp_path: Path) -> None:
    first = go(sketches.SCAFFOLD(), tmp_path / "scaffold", rounds=1)
    plain = go(FedAvg(lr=0.05, batch=8, optimizer="sgd", aggregation=Uniform()), tmp_path / "plain", rounds=1)
    assert same_bits(first.state, plain.state)
    later = [
        go(method, tmp_path / f"later-{n}", rounds=2).state for n, method in enumerate((sketches.SCAFFOLD(), plain.world.experiment.method))
    ]
    assert not same_bits(*later)


class Judges:
    """Clients that find the global model so much worse than their own."""

    def __init__(self, gaps: dict[str, float]) -> None:
        self.names, self.gaps = [*gaps], gaps

    def ask(self, task: Any, down: dict[str, Candidates]) -> Replies[Losses]:
        return Replies(iter([(c, Losses(losses={"own": 1.0, "all": 1.0 + self.gaps[c]})) for c in down]))


def test_ga_by_hand() -> None:
    """K = 3, gaps (0.1, 0, -0.1), a step of 0.2: (0.533, 0.333, 0.133)."""
    ups = {c: Up(model={"w": torch.tensor([value])}, samples=None, perturbed=None) for c, value in zip("abc", (1.0, 2.0, 6.0), strict=True)}
    after = sketches.GA().combine(Judges({"a": 0.1, "b": 0.0, "c": -0.1}), ups.items(), Aggregate({"w": torch.zeros(1)}))
    assert after.numbers["next"] == pytest.approx({"a": 0.5333, "b": 0.3333, "c": 0.1333}, abs=1e-4)
    assert after.weights == pytest.approx(dict.fromkeys("abc", 1 / 3)) and float(after.model["w"]) == pytest.approx(3.0)


@pytest.mark.parametrize("aggregation", [sketches.GA(), sketches.GMA()], ids=["ga", "gma"])
def test_an_aggregation_of_ones_own_does_not_lose_a_generator(aggregation: Any, tmp_path: Path) -> None:
    records = go(FedADG(classification_epochs=1, alignment_epochs=1, batch=8, aggregation=aggregation), tmp_path / "run").records
    for record in records:
        assert {row["field"] for row in record["travelled"] if row["task"] == "train" and row["direction"] == "sent"} >= {
            "model",
            "generator",
        }


def test_a_network_of_another_role_may_have_a_layer_called_head(tmp_path: Path) -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 1)

    class WithCritic(sketches.FedNova):
        def networks(self, shapes):
            return {"critic": Critic}

    assert go(WithCritic(), tmp_path / "run", rounds=1).records


def test_a_frozen_network_keeps_its_weights_whatever_is_trained(tmp_path: Path) -> None:
    method = made("CCST", tmp_path)
    world = go(method, tmp_path / "run").world
    file = tmp_path / "checkpoints/style-encoder.safetensors"
    before = safetensors.torch.load_file(file)
    assert same_bits(state_of(world.builders["encoder"]()), before)
    file.unlink()
    with pytest.raises(BadInput, match=r"pretrained weights are not on this machine; get style-encoder\.safetensors"):
        go(method, tmp_path / "again")


def test_what_is_not_as_declared_is_told_in_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "only", lambda state, names: state)  # everything, under the declaration of a part
    with pytest.raises(TypeError, match="model has not the names, shapes and types of the without-norms of the network 'task'"):
        go(sketches.FedBN(), tmp_path / "run", rounds=1)


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedBN", "GMA", "FedNova"])
def test_masks_too(name: str, tmp_path: Path) -> None:
    """A U-Net of instance norms has neither buffers nor norms of its own: an empty part travels as such."""
    records = go(made(name, tmp_path), tmp_path / "run", tiny_segmentation(), rounds=2).records
    assert all(record["source"] and not record["missing"] for record in records)
