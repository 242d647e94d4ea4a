"""FedIIR: the head's mean gradient, its moving average and the penalty by hand, and FedAvg inside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from conftest import tiny_classification
from federation_in_memory import FEW, FederationInMemory
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.federation.site.policy import Policy
from unseen.federation.sums.summable import is_summed
from unseen.method import task_types
from unseen.methods.fediir import Aligned, FedIIR, HeadGradient, Server
from unseen.networks.base import Outputs
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Down, Up
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import train

LEAVES = "gradient.gradient gradient.batches train.model"
TINY = {
    "fediir": Case("fediir", {"lr": 0.05, "batch": 8, "gamma": 0.05, "ema": 0.5}, leaves=LEAVES),
    "fediir-masks": Case(
        "fediir", {"lr": 0.5, "batch": 4, "gamma": 0.01, "ema": 0.5}, "segmentation", rounds=8, reaches=0.5, leaves=LEAVES
    ),
}


def linear() -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    return lambda: LinearNet(4, 3), {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}


def slope(x: Tensor, y: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(softmax - one-hot) x^T / n: the closed form of dCE / dC."""
    error = (x.flatten(1) @ state["fc.weight"].T + state["fc.bias"]).softmax(1) - F.one_hot(y, 3)
    return error.T @ x.flatten(1) / len(y), error.mean(0)


def test_the_mean_gradient_of_the_head_in_closed_form() -> None:
    domain = images(10)
    build, state = linear()
    up = FedIIR(batch=5).gradient(Down(model=state), client_of(domain, build))
    weight, bias = slope(*batch_of(domain), state)  # two batches of five: the mean of their means is the mean of all
    assert up.batches == 2 and torch.allclose(up.gradient["fc.weight"], weight, atol=1e-7)
    assert torch.allclose(up.gradient["fc.bias"], bias, atol=1e-7)


def test_a_step_descends_the_loss_and_the_penalty_as_finite_differences_have_it() -> None:
    """L + gamma |dL/dC - gbar|^2, its derivative by the network's weights taken numerically in float64."""
    domain, gamma, lr = images(), 0.8, 0.3
    build, state = linear()
    goal = {name: torch.full_like(w, 0.05) for name, w in state.items()}
    x, y = batch_of(domain)
    flat = torch.cat([state["fc.weight"].flatten(), state["fc.bias"]]).double()

    def objective(w: Tensor) -> Tensor:
        now = {"fc.weight": w[:12].view(3, 4), "fc.bias": w[12:]}
        logits = x.double().flatten(1) @ now["fc.weight"].T + now["fc.bias"]
        apart = zip(slope(x.double(), y, now), (goal["fc.weight"], goal["fc.bias"]), strict=True)
        return F.cross_entropy(logits, y) + gamma * sum((g - b).square().sum() for g, b in apart)

    h = 1e-6 * torch.eye(15, dtype=torch.float64)
    numeric = torch.stack([(objective(flat + d) - objective(flat - d)) / 2e-6 for d in h])
    method = FedIIR(gamma=gamma, lr=lr, batch=12, optimizer="sgd")
    up = method.train(Aligned(model=state, gradient=goal), client_of(domain, build))
    moved = flat - torch.cat([up.model["fc.weight"].flatten(), up.model["fc.bias"]]).double()
    assert torch.allclose(moved / lr, numeric, atol=1e-5)


class Deep(LinearNet):
    """A layer of features below the head."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.below = nn.Linear(4, 4)

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        return super().forward(self.below(x.flatten(1)).tanh(), full)


def test_the_penalty_reaches_the_features_too() -> None:
    """What one step does to the layer below, beyond FedAvg's step, is the penalty's derivative there, taken numerically."""
    domain, gamma, lr = images(), 2.0, 0.5
    torch.manual_seed(0)
    state = {k: v.detach().clone() for k, v in Deep().state_dict().items()}
    none = {name: torch.zeros_like(state[name]) for name in ("fc.weight", "fc.bias")}
    (x, y), methods = batch_of(domain), [FedIIR(gamma=g, lr=lr, batch=12, optimizer="sgd") for g in (gamma, 0.0)]

    def penalty(below: Tensor) -> Tensor:
        features = (x.double().flatten(1) @ below.view(4, 4).T + state["below.bias"].double()).tanh()
        return sum(g.square().sum() for g in slope(features, y, {k: v.double() for k, v in state.items()}))  # type: ignore[return-value]

    flat, h = state["below.weight"].double().flatten(), 1e-6 * torch.eye(16, dtype=torch.float64)
    numeric = torch.stack([(penalty(flat + d) - penalty(flat - d)) / 2e-6 for d in h])
    ups = [m.train(Aligned(model=state, gradient=none), client_of(domain, Deep)).model["below.weight"] for m in methods]
    assert numeric.abs().max() > 1e-3 and torch.allclose((ups[1] - ups[0]).double().flatten() / lr / gamma, numeric, atol=1e-5)


def test_the_average_forgets_by_ema_and_weighs_by_batches() -> None:
    class Two(Fixed):
        def ask(self, task: Any, down: Any) -> Any:
            self.sent = down
            answers = {
                "a": HeadGradient(gradient={"w": torch.tensor([1.0])}, batches=1),
                "b": HeadGradient(gradient={"w": torch.tensor([4.0])}, batches=2),
                "c": "gone",
            }
            trained = {n: Up(model={"w": torch.tensor([7.0])}, samples=None, perturbed=None) for n in ("a", "c")} | {"b": "gone"}
            return Fixed(trained if task.__name__ == "train" else answers).ask(task, down)

    clients, before = Two(dict.fromkeys("abc")), Server(Aggregate({"w": torch.zeros(1)}), {"w": torch.tensor([1.0])})
    after = FedIIR(ema=0.75).round(before, clients)
    assert after.gradient["w"].item() == 0.75 * 1 + 0.25 * 3 and torch.equal(clients.sent.gradient["w"], after.gradient["w"])
    assert after.task.model["w"].item() == 7.0
    assert is_summed(task_types(FedIIR.gradient)[1]) and not [*FedIIR().needs_each()]


def test_without_the_penalty_it_is_fedavg_to_the_bit_and_no_gradient_leaves(tiny: DomainDataset) -> None:
    values = {"batch": 9, "lr": 0.01, "optimizer": "sgd"}
    one = train(Experiment(FedIIR(gamma=0.0, **values), tiny, "c", rounds=2), None, watch=Silent())  # type: ignore[arg-type]
    two = train(Experiment(FedAvg(aggregation=Uniform(), **values), tiny, "c", rounds=2), None, watch=Silent())  # type: ignore[arg-type]
    assert same_bits(one.state, two.state)
    assert {row["field"] for record in one.records for row in record["travelled"] if row["direction"] == "sent"} == {"model"}


def test_step_one_leaves_the_models_statistics_alone(tiny: DomainDataset) -> None:
    """With nothing learned (lr = 0, one batch), batch norm has seen one pass: that of training."""
    method = FedIIR(gamma=1.0, lr=0.0, batch=64)
    one, two = (train(Experiment(m, tiny, "c", rounds=1), None, watch=Silent()).state for m in (method, replace(method, gamma=0.0)))
    assert int(one["bn1.num_batches_tracked"]) == 1 and torch.allclose(one["bn1.running_mean"], two["bn1.running_mean"], atol=1e-6)


def test_an_average_that_stays_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="ema is 1"):
        FedIIR(ema=1.0)


def test_a_sites_policy_keeps_the_gradient_home_unless_it_says_otherwise(tmp_path: Path) -> None:
    data = tiny_classification((24, 20, 16, 12))
    federation = FederationInMemory(tmp_path, data, "d", {"a": Policy(**FEW)})
    federation.federate(Experiment(TINY["fediir"].build(), data.name, "d", rounds=1))
    assert any("a does not take part: refused by the site: kinds: gradient is a gradient" in said for said in federation.said)
