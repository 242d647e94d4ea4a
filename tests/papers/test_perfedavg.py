"""Per-FedAvg: both forms on a quadratic with a closed result and against second derivatives, a client's own model, and SGD inside it."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.methods.perfedavg import PerFedAvg
from unseen.ops.meta import meta_step
from unseen.parts.aggregation import Aggregate
from unseen.parts.combining import Down, Up
from unseen.runs.watch import Silent
from unseen.state import State
from unseen.training import train

SETTINGS: dict[str, Any] = {"lr": 0.05, "batch": 8, "iterations": 4, "optimizer": "momentum"}
TINY = {
    "perfedavg": Case("perfedavg", SETTINGS, leaves="train.model"),
    "perfedavg-masks": Case(
        "perfedavg",
        {"lr": 0.02, "batch": 4, "iterations": 2, "optimizer": "adam", "form": "hf"},
        task="segmentation",
        rounds=8,
        reaches=0.5,
        leaves="train.model",
    ),
}


class Vector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(1, dtype=torch.float64), requires_grad=False)


def quadratic(seed: int) -> tuple[Tensor, Tensor]:
    root, b = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(seed)).double()
    return root @ root.T, b[0]


@pytest.mark.parametrize("form", ["fo", "hf"])
def test_on_quadratics_both_forms_have_a_closed_result(form: str) -> None:
    """f_i = w A_i w / 2 - b_i w for D, D' and D'': g = A'(w - alpha (A w - b)) - b'; HF takes off alpha A'' g."""
    net, alpha, beta = Vector(), 0.1, 0.3
    parts = [quadratic(seed) for seed in range(3 if form == "hf" else 2)]

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return net.w @ a @ net.w / 2 - b @ net.w

    start = net.w.detach().clone()
    (a, b), (a2, b2) = parts[:2]
    g = a2 @ (start - alpha * (a @ start - b)) - b2
    wanted = start - beta * (g - alpha * parts[2][0] @ g if form == "hf" else g)
    meta_step(net, torch.optim.SGD(net.parameters(), lr=beta), [partial(loss, *part) for part in parts], alpha, delta=1e-3)
    assert torch.allclose(net.w, wanted, atol=1e-9) and net.frozen.item() == 1.0


def test_the_differences_are_the_derivative_through_the_inner_step() -> None:
    """With one batch for all three, HF is the gradient of f(w - alpha grad f(w)) up to where the Hessian is taken: at w, as printed."""
    x, y = (t.double() if t.is_floating_point() else t for t in batch_of(images()))
    torch.manual_seed(0)
    net, alpha = nn.Linear(4, 3).double(), 0.4
    state = {name: w.detach().clone().requires_grad_() for name, w in net.named_parameters()}

    def loss(weights: State) -> Tensor:
        return F.cross_entropy(x.flatten(1) @ weights["weight"].T + weights["bias"], y)

    first = torch.autograd.grad(loss(state), [*state.values()], create_graph=True)
    after = {name: w - alpha * g for (name, w), g in zip(state.items(), first, strict=True)}
    exact = torch.autograd.grad(loss(after), [*state.values()])
    live = partial(lambda: loss(dict(net.named_parameters())))
    meta_step(net, torch.optim.SGD(net.parameters(), lr=1.0), [live] * 3, alpha, delta=1e-4)
    for (name, w), g in zip(net.named_parameters(), exact, strict=True):
        assert torch.allclose(state[name] - w, g, atol=1e-8), name


@pytest.mark.parametrize("what", ["bf16", "dropout"])
def test_the_differences_are_lost_neither_in_16_bits_nor_in_dropout(what: str) -> None:
    """alpha h, as what HF takes off FO's step, is the Hessian at w, without dropout, times g."""
    x, y = batch_of(images())
    steps, alpha = {}, 0.4
    for form in (2, 3):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5 if what == "dropout" else 0.0), nn.Linear(8, 3))
        start = [w.detach().clone().requires_grad_() for w in net.parameters()]
        with torch.autocast("cpu", torch.bfloat16, enabled=what == "bf16"):
            live = partial(lambda net: F.cross_entropy(net(x), y), net)
            meta_step(net, torch.optim.SGD(net.parameters(), lr=1.0), [live] * form, alpha, delta=1e-3)
        steps[form] = [w.detach() - after.detach() for w, after in zip(start, net.parameters(), strict=True)]
    weights = dict(zip((name for name, _ in net.named_parameters()), start, strict=True))
    assert all(module.training for module in net.modules())
    loss = F.cross_entropy(torch.func.functional_call(net.eval(), weights, (x,)), y)
    slope = torch.autograd.grad(loss, start, create_graph=True)
    wanted = torch.autograd.grad(slope, start, steps[2])  # H g
    found = [(fo - hf) / alpha for fo, hf in zip(steps[2], steps[3], strict=True)]
    wrong = (
        torch.cat([(a - b).flatten() for a, b in zip(found, wanted, strict=True)]).norm() / torch.cat([b.flatten() for b in wanted]).norm()
    )
    assert wrong < 0.01


def test_statistics_are_taken_in_the_first_pass_alone_and_weights_come_back() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), torch.randn(3, 5, 2)
    hidden, before = net[0](x[0]).detach(), [p.detach().clone() for p in net.parameters()]
    losses = [partial(lambda x: net(x).square().mean(), batch) for batch in x]
    meta_step(net, torch.optim.SGD(net.parameters(), lr=0.0), losses, 0.5, 0.1)
    assert torch.allclose(net[1].running_mean, 0.1 * hidden.mean(0), atol=1e-6) and net[1].num_batches_tracked == 1
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def linear() -> State:
    torch.manual_seed(0)
    return {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}


def gradient(state: State, x: Tensor, y: Tensor) -> State:
    error = (x.flatten(1) @ state["fc.weight"].T + state["fc.bias"]).softmax(1) - F.one_hot(y, 3)
    return {"fc.weight": error.T @ x.flatten(1) / len(y), "fc.bias": error.mean(0)}


def test_a_round_of_a_client_by_hand() -> None:
    """Three iterations on full batches, where D, D' and all images are the same."""
    domain, alpha, beta, state = images(), 0.5, 0.2, linear()
    x, y = batch_of(domain)
    up = PerFedAvg(alpha=alpha, lr=beta, iterations=3, batch=12).train(Down(model=state), client_of(domain, lambda: LinearNet(4, 3)))
    for _ in range(3):
        inner = {n: state[n] - alpha * g for n, g in gradient(state, x, y).items()}
        state = {n: state[n] - beta * g for n, g in gradient(inner, x, y).items()}
    assert all(torch.allclose(up.model[n], state[n], atol=1e-6) for n in state)


def test_a_clients_own_model_is_one_inner_step_away() -> None:
    domain, state = images(), linear()
    own = PerFedAvg(alpha=0.5, batch=12).local_model(state, client_of(domain, lambda: LinearNet(4, 3)))
    assert own is not None
    for name, g in gradient(state, *batch_of(domain)).items():
        assert torch.allclose(own[name], state[name] - 0.5 * g, atol=1e-6)


def test_without_an_inner_step_it_is_sgd_on_every_second_batch() -> None:
    """alpha = 0: the batches D' in their order, with rate beta."""
    domain, state = images(), linear()
    seen = [*client_of(domain, lambda: LinearNet(4, 3)).batches(size=5, steps=6)][1::2]
    assert not any(torch.equal(a, b) for (a, _), (b, _) in pairwise(seen))
    up = PerFedAvg(alpha=0.0, lr=0.2, iterations=3, batch=5).train(Down(model=state), client_of(domain, lambda: LinearNet(4, 3)))
    for x, y in seen:
        state = {n: state[n] - 0.2 * g for n, g in gradient(state, x, y).items()}
    assert all(torch.allclose(up.model[n], state[n], atol=1e-6) for n in state)


def test_own_models_are_scored_and_a_missing_client_has_no_part(tiny: DomainDataset) -> None:
    (record,) = train(Experiment(PerFedAvg(**{**SETTINGS, "alpha": 0.2}), tiny, "c", rounds=1), None, watch=Silent()).records
    assert set(record["own"]) == {"a", "b"} and record["own"]["a"]["loss"] != record["source"]["a"]["loss"]
    one, four = (Up(model={"w": torch.tensor([w])}, samples=None, perturbed=None) for w in (1.0, 4.0))
    after = PerFedAvg().round(Aggregate({"w": torch.zeros(1)}), Fixed({"a": one, "b": "gone", "c": four}))
    assert after.model["w"].item() == pytest.approx(2.5)
