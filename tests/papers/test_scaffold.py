"""SCAFFOLD against Algorithm 1: its steps by hand, what c is the mean of, and where it leads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cases import Case
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import BadInput, Client, Experiment, FedAvg, on_client
from unseen.data.domain import Domain, DomainDataset
from unseen.engines.local import LocalEngine
from unseen.methods.scaffold import SCAFFOLD, Control, Controls, Drifted, Steered
from unseen.parts.aggregation import Uniform
from unseen.runs.watch import Silent
from unseen.state import State
from unseen.training import train
from unseen.world import build_world

TINY = {
    "scaffold": Case("scaffold", {"lr": 0.2, "batch": 8, "epochs": 2}, rounds=4, leaves="train.model train.change"),
    "scaffold-masks": Case(
        "scaffold", {"lr": 0.3, "batch": 4, "epochs": 2}, task="segmentation", rounds=8, reaches=0.5, leaves="train.model train.change"
    ),
}


def gradient(state: State, domain: Domain, decay: float = 0.0) -> State:
    """Of the mean cross entropy of a linear net, in closed form: (softmax - one-hot) x^T / n + decay w."""
    x, y = batch_of(domain)
    error = (x.flatten(1) @ state["fc.weight"].T + state["fc.bias"]).softmax(1) - F.one_hot(y, 3)
    slopes = {"fc.weight": error.T @ x.flatten(1) / len(y), "fc.bias": error.mean(0)}
    return {name: g + decay * state[name] for name, g in slopes.items()}


def linear(seed: int = 0) -> State:
    torch.manual_seed(seed)
    return {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}


def local(method: SCAFFOLD, domain: Domain, down: Steered, own: State | None) -> tuple[Drifted, State]:
    client = client_of(domain, lambda: LinearNet(4, 3), recall=lambda kind: Control(control=own) if own else None)
    up = method.train(down, client)
    kept = client.remembered["Control"]
    assert isinstance(kept, Control)
    return up, kept.control


def near(one: State, other: State, atol: float = 1e-5) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[n], other[n], atol=atol) for n in one)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_local_steps_and_the_new_control_by_hand(decay: float) -> None:
    """y <- y - eta (g - c_i + c), three times; c_i+ is the mean gradient on the way, and the change is told from c_i."""
    domain, lr, start, c, own = images(), 0.2, linear(), linear(1), linear(2)
    y, on_the_way = start, []
    for _ in range(3):
        g = gradient(y, domain, decay)
        on_the_way.append(g)
        y = {n: y[n] - lr * (g[n] - own[n] + c[n]) for n in y}
    method = SCAFFOLD(lr=lr, steps=3, batch=12, weight_decay=decay)
    up, kept = local(method, domain, Steered(model=start, control=c), own)
    assert near(up.model, y, 1e-6)
    assert near(kept, {n: sum(g[n] for g in on_the_way) / 3 for n in y})  # type: ignore[misc]
    assert near(up.change, {n: kept[n] - own[n] for n in y}, 1e-6)


def test_a_newcomer_takes_plain_steps_and_tells_its_control_from_zero() -> None:
    domain, start, c = images(), linear(), linear(1)
    up, kept = local(SCAFFOLD(lr=0.2, steps=1, batch=12), domain, Steered(model=start, control=c), None)
    g = gradient(start, domain)
    assert near(up.model, {n: start[n] - 0.2 * g[n] for n in g}, 1e-6)
    assert near(kept, g) and near(up.change, g)


def test_the_servers_update_by_hand_with_one_of_three_missing() -> None:
    """x: 1 + 0.5 (mean(3, 5) - 1); c: 10 + 2/3 mean(1, 2). Buffers are averaged and nothing else."""

    def up(y: float, dc: float, count: int) -> Drifted:
        return Drifted(model={"w": torch.tensor([y]), "seen": torch.tensor(count)}, change={"w": torch.tensor([dc])})

    before = Controls({"w": torch.tensor([1.0]), "seen": torch.tensor(0)}, {"w": torch.tensor([10.0])})
    after = SCAFFOLD(server_lr=0.5).round(before, Fixed({"a": up(3.0, 1.0, 5), "b": "gone", "c": up(5.0, 2.0, 7)}))
    assert after.model["w"].item() == 2.5 and after.model["seen"].item() == 7
    assert after.control["w"].item() == 11.0


@dataclass(frozen=True)
class Absent(SCAFFOLD):
    """Client b's answers cannot be used while its first one is due (`late`), or after it (`leaves`)."""

    when: str = ""

    @on_client
    def train(self, down: Steered, client: Client) -> Drifted:
        first = all(float(value.abs().max()) == 0 for value in down.control.values())
        up = SCAFFOLD.train(self, down, client)
        absent = client.id == "b" and self.when and first == (self.when == "late")
        return (
            Drifted(model={k: v * float("nan") if v.is_floating_point() else v for k, v in up.model.items()}, change=up.change)
            if absent
            else up
        )


@pytest.mark.parametrize("when", ["", "late", "leaves"])
def test_c_stays_the_mean_of_all_clients(when: str, tiny: DomainDataset, tmp_path: Path) -> None:
    method = Absent(when=when, lr=0.05, batch=9)
    world = build_world(Experiment(method, tiny, "c", device="cpu"))
    engine = LocalEngine(world, tmp_path)
    state = method.start(world.fresh, engine.cohort(0))
    for number in range(1, 4):
        cohort = engine.cohort(number)
        state = method.round(state, cohort)
        assert ("b" in cohort.missing) == {"": False, "late": number == 1, "leaves": number > 1}[when]
        kept = [memory.control for name in "ab" if (memory := engine.memory.recall(name, Control))]
        for name, c in state.control.items():
            assert torch.allclose(c, sum(one[name] for one in kept) / 2, atol=1e-6), (number, name)  # type: ignore[arg-type]
    assert max(float(c.abs().max()) for c in state.control.values()) > 1e-3


def test_identical_clients_are_fedavg() -> None:
    """c - c_i is 0 up to rounding, so each client goes FedAvg's way."""
    domain, start = images(), linear()
    method, state, own = (
        SCAFFOLD(lr=0.2, steps=2, batch=12),
        Controls(linear(), {n: torch.zeros_like(w) for n, w in linear().items()}),
        None,
    )
    for _ in range(3):
        up, own = local(method, domain, Steered(model=state.model, control=state.control), own)
        state = method.round(state, Fixed({"a": up, "b": up}))
    for _ in range(6):
        start = {n: start[n] - 0.2 * g for n, g in gradient(start, domain).items()}
    assert near(state.model, start)


def test_rounds_lead_to_where_the_federations_gradient_vanishes() -> None:
    """Two clients with different images and many local steps: FedAvg stops elsewhere, SCAFFOLD does not."""
    domains, norms = [images(seed=1), images(seed=2)], {}
    for corrected in (True, False):
        method = SCAFFOLD(lr=0.5, steps=40, batch=12)
        state = Controls(linear(), {n: torch.zeros_like(w) for n, w in linear().items()})
        kept: list[Any] = [None, None]
        for _ in range(25):
            ups = {}
            for k, domain in enumerate(domains):
                ups["ab"[k]], control = local(method, domain, Steered(model=state.model, control=state.control), kept[k])
                kept[k] = control if corrected else None
            state = method.round(state, Fixed(ups))
        norms[corrected] = float(sum(gradient(state.model, d)["fc.weight"] for d in domains).norm())
    assert norms[True] < 0.2 * norms[False]


def test_round_1_is_fedavg_and_other_optimisers_are_refused(tiny: DomainDataset) -> None:
    settings: dict[str, Any] = {"lr": 0.05, "batch": 9}
    one = train(Experiment(SCAFFOLD(**settings), tiny, "c", rounds=1), None, watch=Silent()).state
    two = train(Experiment(FedAvg(**settings, optimizer="sgd", aggregation=Uniform()), tiny, "c", rounds=1), None, watch=Silent()).state
    assert all(torch.equal(one[name], two[name]) for name in two)
    for optimizer in ("adam", "momentum", torch.optim.RMSprop):
        with pytest.raises(BadInput, match='is no sum of gradients; set optimizer = "sgd"'):
            SCAFFOLD(optimizer=optimizer)
    with pytest.raises(BadInput, match="lr is 0"):
        SCAFFOLD(lr=0.0)
    with pytest.raises(BadInput, match="server_lr is 0"):
        SCAFFOLD(server_lr=0.0)
