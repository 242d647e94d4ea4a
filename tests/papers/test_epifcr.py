"""Epi-FCR: its losses against their gradients on paper, FedAvg inside it, and who gets what of whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from one_client import DeepLinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.client import Client, Pool
from unseen.data.augment import RECIPES
from unseen.data.domain import UNIT, DomainDataset, Holding, Samples
from unseen.device.resident import SampleReader
from unseen.engines.local import LocalEngine
from unseen.methods.epifcr import Down, EpiFCR, Kept, KeptByDomain, Up
from unseen.parts.mixstyle import MixStyle
from unseen.parts.views import RandConv
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.task import Classification
from unseen.training import train
from unseen.world import build_world

FAST = {"lr": 0.05, "batch": 8, "optimizer": "sgd"}
TINY = {
    "epifcr": Case("epifcr", FAST, leaves="train.model train.own train.samples"),
    "epifcr-heads-masks": Case(
        "epifcr",
        {"lr": 0.02, "batch": 4, "optimizer": "adam", "exchange": "heads", "epi_c": 0.0, "warmup": 0},
        "segmentation",
        5,
        0.5,
        leaves="train.model train.head train.samples",
    ),
}


def drawn(seed: int) -> State:
    torch.manual_seed(seed)
    return {name: torch.randn_like(value) for name, value in state_of(DeepLinearNet(4, 5, 3)).items()}


def error(x: Tensor, y: Tensor, features: State, head: State) -> Tensor:
    """d CE / d logits of a head on another network's features."""
    logits = x @ features["look.weight"].T @ head["fc.weight"].T + head["fc.bias"]
    return (logits.softmax(1) - F.one_hot(y, 3)) / len(y)


def test_a_step_descends_the_three_episodes_and_fixes_the_partners() -> None:
    domain, lr = images(), 0.1
    x, y = batch_of(domain)
    x = x.flatten(1)
    net, other, own, random = (drawn(seed) for seed in range(4))
    plain, epi_f, epi_c, epi_r = (error(x, y, f, c) for f, c in ((net, net), (net, other), (other, net), (net, random)))
    features = (plain @ net["fc.weight"] + 2.0 * epi_f @ other["fc.weight"] + 0.1 * epi_r @ random["fc.weight"]).T @ x
    head = plain.T @ (x @ net["look.weight"].T) + 0.05 * epi_c.T @ (x @ other["look.weight"].T)  # F_j gets no step, C does
    head_of = {name.removeprefix("fc."): value for name, value in random.items() if name.startswith("fc.")}
    roles: Any = {role: lambda: nn.Linear(5, 3) for role in ("head", "random")}
    client = client_of(domain, lambda: DeepLinearNet(4, 5, 3), recall=lambda kind: Kept(model=own), **roles)
    method = EpiFCR(lr=lr, optimizer="sgd", weight_decay=0.0, steps=1, batch=12)
    up = method.train(Down(model=net, random=head_of, heads={}, models={"b": other}), client)
    assert torch.allclose(up.model["look.weight"], net["look.weight"] - lr * features, atol=1e-6)
    assert torch.allclose(up.model["fc.weight"], net["fc.weight"] - lr * head, atol=1e-6)
    alone = error(x, y, own, own)  # the client's own network descends its own loss
    assert up.own is not None and client.remembered["Kept"].model.keys() == up.own.keys()  # type: ignore[attr-defined]
    assert torch.allclose(up.own["look.weight"], own["look.weight"] - lr * (alone @ own["fc.weight"]).T @ x, atol=1e-6)
    assert up.head is None


def test_without_episodes_it_is_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    values: dict[str, Any] = {"batch": 9, "lr": 0.01, "views": RandConv(copies=1), "mixstyle": MixStyle()}
    zero = EpiFCR(epi_f=0.0, epi_c=0.0, epi_r=0.0, optimizer="adam", weight_decay=0.0, **values)
    one, two = (train(Experiment(method, tiny, "c", rounds=2), None, watch=Silent()).state for method in (zero, FedAvg(**values)))
    assert same_bits(one, two)


@pytest.mark.parametrize("exchange", ["heads", "models"])
def test_each_gets_the_others_last_networks_and_all_the_same_random_head(exchange: str, tiny: DomainDataset, tmp_path: Path) -> None:
    method = EpiFCR(exchange=exchange, epi_c=0.0 if exchange == "heads" else 0.05, **FAST)  # type: ignore[arg-type]
    world = build_world(Experiment(method, tiny, "c", rounds=3))
    engine, asked, answered = LocalEngine(world, tmp_path), list[dict[str, Down]](), list[dict[str, Up]]()
    state = method.start(world.fresh, engine.cohort(0))
    for number, lost in ((1, ""), (2, "b"), (3, "")):
        cohort = engine.cohort(number)
        ask = cohort.ask

        def noting(task: Any, down: dict[str, Down], ask: Any = ask, lost: str = lost) -> Any:
            asked.append(down)
            answered.append(ask(task, {name: one for name, one in down.items() if name != lost}).all())
            return type("Told", (), {"all": lambda self: answered[-1]})()

        cohort.ask = noting  # type: ignore[method-assign]
        state = method.round(state, cohort)
        assert same_bits(state.random, world.fresh("random")), "C_r never changes"

    def sent(down: Down) -> dict[str, State]:
        return down.heads if exchange == "heads" else down.models

    def left(up: Up) -> State | None:
        return up.head if exchange == "heads" else up.own

    assert [sorted(sent(downs["a"])) for downs in asked] == [[], ["b"], ["b"]] and all("b" not in sent(downs["b"]) for downs in asked)
    for downs in asked[1:]:  # b was missing in round 2: in round 3 a meets what b sent in round 1
        assert same_bits(sent(downs["a"])["b"], left(answered[0]["b"]) or {})
        assert all(same_bits(down.random or {}, state.random) for down in downs.values())
    assert asked[0]["a"].random is None, "no episodes in the warm-up"
    random = world.fresh("random")
    assert not same_bits(random, world.fresh("head")) and random["weight"].shape == world.fresh("task")["fc.weight"].shape


def test_contradictions_and_obstacles(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="no client has another's features; set epi_c = 0, or exchange = models"):
        EpiFCR(exchange="heads")
    with pytest.raises(BadInput, match="nobody needs another's features, but exchange is models; set exchange = heads"):
        EpiFCR(epi_c=0.0)  # whole networks would leave for their heads
    with pytest.raises(BadInput, match="a single client with one domain has nobody to meet"):
        build_world(Experiment(EpiFCR(), tiny, "c", sources="a"))
    assert [*EpiFCR().needs_each()] and not [*EpiFCR(epi_f=0.0, epi_c=0.0).needs_each()]


def test_pooled_domains_meet_each_others_networks() -> None:
    """Two domains, two steps each, against a loop over plain modules: partners are fixed, and learn on their own images alone."""
    a, b = images(seed=0, name="a"), images(seed=1, name="b")
    both = Samples(((a, np.arange(12)), (b, np.arange(12))))
    client = Client(
        Holding("pooled", "a+b", both, Samples(((a, np.empty(0, dtype=np.int64)),))), Classification(tuple("xyz")),
        Pool({"task": lambda: DeepLinearNet(4, 5, 3), "random": lambda: nn.Linear(5, 3)}, torch.device("cpu")),
        SampleReader((a, b), torch.device("cpu")), torch.Generator().manual_seed(0), UNIT, RECIPES["none"],
    )  # fmt: skip
    start, lr, random = drawn(0), 0.1, nn.Linear(5, 3)
    net, *owns = nets = [DeepLinearNet(4, 5, 3) for _ in range(3)]
    for each in nets:
        each.load_state_dict(start)

    def descend(loss: Tensor, module: nn.Module) -> None:
        slopes = torch.autograd.grad(loss, [*module.parameters()])
        with torch.no_grad():
            for weight, slope in zip(module.parameters(), slopes, strict=True):
                weight -= lr * slope

    for _ in range(2):
        for k, domain in enumerate((a, b)):
            x, y = batch_of(domain)
            seen, other = net.look(x.flatten(1)), owns[1 - k]
            loss = F.cross_entropy(net.fc(seen), y) + 2.0 * F.cross_entropy(other.fc(seen), y)
            loss = loss + 0.05 * F.cross_entropy(net.fc(other.look(x.flatten(1)).detach()), y) + 0.1 * F.cross_entropy(random(seen), y)
            descend(loss, net)
            descend(F.cross_entropy(owns[k](x), y), owns[k])
    method = EpiFCR(lr=lr, batch=12, steps=2, optimizer="sgd", weight_decay=0.0, warmup=0)
    up = method.train_pooled(Down(model=start, random=state_of(random), heads={}, models={}), client)
    assert all(torch.allclose(up.model[name], value, atol=1e-5) for name, value in state_of(net).items())
    kept = client.recall(KeptByDomain)
    assert kept is not None and kept.rounds == 1 and list(kept.models) == ["a", "b"]
    for own, model in zip(owns, kept.models.values(), strict=True):
        assert all(torch.allclose(model[name], value, atol=1e-5) for name, value in state_of(own).items())


def test_pooled_without_episodes_is_a_step_for_every_domain(tiny: DomainDataset) -> None:
    def run(**changes: Any) -> State:
        method = EpiFCR(**{**FAST, **changes})
        return dict(train(Experiment(method, tiny, "c", rounds=2, partition="pooled"), None, watch=Silent()).state)

    warm = run(warmup=2)
    assert same_bits(warm, run(warmup=2, epi_f=1.0, epi_c=0.5)) and not same_bits(warm, run(warmup=1))


def test_a_pooled_run_has_the_same_bits_through_bytes_and_after_resume_and_a_model_leaves(tiny: DomainDataset, tmp_path: Path) -> None:
    def run(rounds: int, folder: Path | None = None, **modes: Any) -> Any:
        return train(Experiment(EpiFCR(**FAST), tiny, "c", rounds=rounds, partition="pooled"), folder, watch=Silent(), **modes)

    whole = run(4)
    run(2, tmp_path, through_bytes=True)
    assert same_bits(whole.state, run(4, tmp_path, through_bytes=True, resume=True).state)
    left = {(row["task"], row["field"]) for record in whole.records for row in record["travelled"] if row["direction"] == "sent"}
    assert left == {("train_pooled", "model"), ("train_pooled", "samples")}
    assert whole.records[-1]["source_mean"]["accuracy"] > 0.5
