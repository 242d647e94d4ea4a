"""FedProx: its local step by hand, and FedAvg inside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from cases import Case
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import Experiment, FedAvg, FedProx
from unseen.data.domain import DomainDataset
from unseen.engines.tasks import Place, TaskRunner
from unseen.methods.fedprox import Down, Up
from unseen.parts.aggregation import Aggregate
from unseen.parts.sam import SAM
from unseen.parts.views import RandConv
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import train
from unseen.world import build_world

TINY = {
    "fedprox": Case("fedprox", {"lr": 0.02, "batch": 8}, leaves="train.model train.samples"),
    "fedprox+rc": Case("fedprox", {"lr": 0.02, "batch": 8, "views": RandConv(copies=1), "sam": SAM()}, leaves="train.model train.samples"),
}


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_local_steps_descend_the_loss_and_the_proximal_term(decay: float) -> None:
    """g = (softmax - one-hot) x^T / n + mu (w - w_t) + decay w, in closed form for a linear net."""
    domain, mu, lr = images(), 2.0, 0.2
    x, y = batch_of(domain)
    torch.manual_seed(0)
    state = {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}
    weight, bias = state["fc.weight"], state["fc.bias"]
    for _ in range(3):
        error = (x.flatten(1) @ weight.T + bias).softmax(1) - F.one_hot(y, 3)
        slope_w, slope_b = error.T @ x.flatten(1) / len(y), error.mean(0)
        weight = weight - lr * (slope_w + mu * (weight - state["fc.weight"]) + decay * weight)
        bias = bias - lr * (slope_b + mu * (bias - state["fc.bias"]) + decay * bias)
    method = FedProx(mu=mu, lr=lr, steps=3, batch=12, optimizer="sgd", weight_decay=decay)
    up = method.train(Down(model=state), client_of(domain, lambda: LinearNet(4, 3)))
    assert torch.allclose(up.model["fc.weight"], weight, atol=1e-6) and torch.allclose(up.model["fc.bias"], bias, atol=1e-6)
    assert up.samples == 12


def test_without_the_term_it_is_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    one = train(Experiment(FedProx(mu=0.0, batch=9, lr=0.01), tiny, "c", rounds=2), None, watch=Silent())
    two = train(Experiment(FedAvg(batch=9, lr=0.01), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(one.state, two.state)


def test_the_proximal_term_pulls_back_by_its_gradient(tiny: DomainDataset) -> None:
    """Two full-batch SGD steps: the second differs from FedAvg's by -lr mu (w_1 - w_0), worked out here."""
    lr, mu = 0.05, 0.7
    world = build_world(Experiment(FedProx(mu=mu, optimizer="sgd", lr=lr, batch=64, epochs=2), tiny, "c"))
    start = world.fresh("task")

    def local(method: FedAvg | FedProx) -> dict[str, torch.Tensor]:
        from unseen.methods import fedavg, fedprox

        down = (fedprox if isinstance(method, FedProx) else fedavg).Down(model=start)
        runner = TaskRunner(replace(world, experiment=replace(world.experiment, method=method)))
        up, _ = runner.run(method.train, down, "a", Place(1, 1), MemoryStore(Path("unused")))
        return up.model  # type: ignore[attr-defined, no-any-return]

    settings = {"optimizer": "sgd", "lr": lr, "batch": 64}
    first = local(FedAvg(epochs=1, **settings))  # type: ignore[arg-type]
    plain = local(FedAvg(epochs=2, **settings))  # type: ignore[arg-type]
    pulled = local(FedProx(mu=mu, epochs=2, **settings))  # type: ignore[arg-type]
    for key in ("conv1.weight", "fc.weight", "fc.bias"):
        difference = -lr * mu * (first[key] - start[key])
        assert difference.abs().max() > 1e-6
        assert torch.allclose(pulled[key] - plain[key], difference, atol=1e-6), key


def test_the_mean_is_weighted_by_samples_and_leaves_out_who_is_missing() -> None:
    one, four = (Up(model={"w": torch.tensor([w])}, samples=n, perturbed=None) for w, n in ((1.0, 1), (4.0, 2)))
    assert FedProx().round(Aggregate({"w": torch.zeros(1)}), Fixed({"a": one, "b": "gone", "c": four})).model["w"].item() == 3.0
