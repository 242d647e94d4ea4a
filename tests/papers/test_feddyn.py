"""FedDyn against its algorithm: what holds at a client's optimum, at the server, and when a client is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cases import Case
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import BadInput, Client, Experiment, FedDyn, on_client
from unseen.data.domain import DomainDataset
from unseen.engines.local import LocalEngine
from unseen.methods.fedgca import FedGCA
from unseen.parts import dynamic
from unseen.parts.combining import Down
from unseen.parts.dynamic import Drift, Dynamic, DynamicUp
from unseen.parts.views import RandConv
from unseen.world import build_world

TINY = {
    "feddyn": Case(
        "feddyn",
        {"lr": 0.05, "batch": 8, "alpha": 0.1, "epochs": 2, "optimizer": "momentum"},
        leaves="train.buffers train.parameters",
    ),
    "feddyn-masks": Case(
        "feddyn",
        {"lr": 0.02, "batch": 4, "alpha": 0.1, "epochs": 1, "optimizer": "adam"},
        task="segmentation",
        rounds=12,
        reaches=0.5,
        leaves="train.parameters",
    ),
    "feddyn+rc": Case(
        "feddyn",
        {"lr": 0.05, "batch": 8, "alpha": 0.1, "epochs": 2, "optimizer": "momentum", "views": RandConv(copies=2)},
        leaves="train.buffers train.parameters",
    ),
}


def gradient(state: dict[str, torch.Tensor], domain: Any) -> dict[str, torch.Tensor]:
    """Of the plain mean cross entropy of a linear net, in closed form: (softmax - one-hot) x^T / n."""
    x, y = batch_of(domain)
    flat = x.flatten(1)
    error = (flat @ state["fc.weight"].T + state["fc.bias"]).softmax(1) - F.one_hot(y, 3)
    return {"fc.weight": error.T @ flat / len(y), "fc.bias": error.mean(0)}


def test_at_a_clients_optimum_its_gradient_is_the_new_lambda() -> None:
    """Stationarity of L(w) - <lambda, w> + alpha/2 |w - w_t|^2: grad L(w_i) = lambda - alpha (w_i - w_t), which is lambda's update."""
    domain, alpha = images(), 0.5
    method = FedDyn(alpha=alpha, steps=400, batch=12, optimizer="sgd", lr=0.5)
    torch.manual_seed(0)
    state = {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}
    kept: Drift | None = None
    for _ in range(3):
        client = client_of(domain, lambda: LinearNet(4, 3), recall=lambda kind, kept=kept: kept)
        up = method.train(Down(model=state), client)
        before, kept = kept, client.remembered["Drift"]
        assert isinstance(kept, Drift)
        for name, g in gradient(up.parameters, domain).items():
            assert torch.allclose(g, kept.drift[name], atol=2e-5), name
            started = before.drift[name] if before else torch.zeros_like(g)
            assert torch.allclose(kept.drift[name], started - alpha * (up.parameters[name] - state[name]), atol=1e-6)
        state = {name: w + 0.1 for name, w in up.parameters.items()}  # the server sends something else


def test_the_servers_update_by_hand_with_one_of_three_missing() -> None:
    """sum (w_i - w) = (1 - 0) + (4 - 0); lambda = -0.5 / 3 * 5; w = 2.5 - lambda / 0.5. Buffers are averaged and nothing else."""
    method = FedDyn(alpha=0.5)
    state = Dynamic({"w": torch.zeros(1), "running": torch.tensor([9.0]), "count": torch.tensor(1)}, {})
    ups = {
        "a": DynamicUp(parameters={"w": torch.tensor([1.0])}, buffers={"running": torch.tensor([2.0]), "count": torch.tensor(5)}),
        "b": "too late",
        "c": DynamicUp(parameters={"w": torch.tensor([4.0])}, buffers={"running": torch.tensor([4.0]), "count": torch.tensor(3)}),
    }
    after = method.round(state, Fixed(ups))
    assert after.drift["w"].item() == pytest.approx(-0.5 / 3 * 5) and set(after.drift) == {"w"}
    assert after.model["w"].item() == pytest.approx(2.5 + 5 / 3)
    assert after.model["running"].item() == 3.0 and after.model["count"].item() == 5
    again = method.round(after, Fixed({"a": ups["a"], "b": "late", "c": "late"}))
    drift = -5 / 6 - 0.5 / 3 * (1 - (2.5 + 5 / 3))
    assert again.drift["w"].item() == pytest.approx(drift) and again.model["w"].item() == pytest.approx(1 - drift / 0.5)


def rounds(method: Any, data: DomainDataset, path: Path, count: int) -> tuple[LocalEngine, list[Any]]:
    world = build_world(Experiment(method, data, "c"))
    engine, states = LocalEngine(world, path), []
    cohort = engine.cohort(0)
    state = method.start(world.fresh, cohort)
    cohort.close()
    for number in range(1, count + 1):
        cohort = engine.cohort(number)
        state = method.round(state, cohort)
        cohort.close()
        states.append(state)
    return engine, states


def clients_mean(engine: LocalEngine, kind: type[Any]) -> dict[str, torch.Tensor]:
    kept = [engine.memory.recall(name, kind).drift for name in ("a", "b")]
    return {name: (kept[0][name] + kept[1][name]) / 2 for name in kept[0]}


@pytest.mark.parametrize(
    ("method", "memory"),
    [
        (FedDyn(alpha=0.1, batch=9, epochs=1, lr=0.05), dynamic.Drift),
        (FedGCA(alpha=0.1, batch=9, epochs=1, copies=1), dynamic.Drift),
    ],
    ids=["feddyn", "fedgca"],
)
def test_the_servers_lambda_is_the_mean_of_the_clients(method: Any, memory: type[Any], tiny: DomainDataset, tmp_path: Path) -> None:
    engine, states = rounds(method, tiny, tmp_path, 3)
    mean = clients_mean(engine, memory)
    assert mean.keys() == states[-1].drift.keys() == {n for n, _ in engine.world.builders["task"]().named_parameters()}
    assert max(float(v.abs().max()) for v in mean.values()) > 1e-3
    for name, value in states[-1].drift.items():
        assert torch.allclose(value, mean[name], atol=1e-6), name


@dataclass(frozen=True)
class Absent(FedDyn):
    """Client a's second answer cannot be used."""

    @on_client
    def train(self, down: Down, client: Client) -> DynamicUp:
        second = client.id == "a" and client.recall(Drift) is not None
        up = FedDyn.train(self, down, client)
        return DynamicUp(parameters={k: v * float("nan") for k, v in up.parameters.items()}, buffers=up.buffers) if second else up


def test_a_missing_client_keeps_its_lambda_and_the_server_still_has_the_mean(tiny: DomainDataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"alpha": 0.1, "batch": 9, "epochs": 1, "lr": 0.05}
    once, _ = rounds(Absent(**settings), tiny, tmp_path / "once", 1)
    engine, states = rounds(Absent(**settings), tiny, tmp_path / "more", 3)
    before, after = (e.memory.recall("a", Drift) for e in (once, engine))
    assert all(torch.equal(before.drift[k], after.drift[k]) for k in before.drift)
    mean = clients_mean(engine, Drift)
    assert all(torch.allclose(value, mean[name], atol=1e-6) for name, value in states[-1].drift.items())


def test_rounds_lead_to_where_the_federations_gradient_vanishes() -> None:
    """Two clients with different images: FedDyn's fixed point is the optimum of the mean loss."""
    domains = [images(seed=1), images(seed=2)]
    method = FedDyn(alpha=0.1, steps=60, batch=12, optimizer="sgd", lr=0.5)
    torch.manual_seed(0)
    state = Dynamic({k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}, {})
    kept: list[Any] = [None, None]
    norms = []
    for _ in range(25):
        ups = {}
        for number, domain in enumerate(domains):
            client = client_of(domain, lambda: LinearNet(4, 3), recall=lambda kind, n=number: kept[n])
            ups["ab"[number]] = method.train(Down(model=state.model), client)
            kept[number] = client.remembered["Drift"]
        state = method.round(state, Fixed(ups))
        norms.append(float(sum(gradient(state.model, d)["fc.weight"] for d in domains).norm()))
    assert norms[-1] < 0.05 * norms[0]


def test_alpha_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="divides by it"):
        FedDyn(alpha=0.0)
