"""MOON: its contrastive term by hand, what a client keeps, and FedAvg inside it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from one_client import batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.method import Shapes, Surroundings
from unseen.methods.moon import MOON, Earlier
from unseen.networks.base import Outputs, TaskNet
from unseen.ops.contrast import model_contrast
from unseen.parts.combining import Down
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.training import train
from unseen.world import build_world

TINY = {
    "moon": Case("moon", {"lr": 0.1, "batch": 8, "epochs": 1}, reaches=None, leaves="train.model train.samples"),
    "moon+projection": Case("moon", {"lr": 0.1, "batch": 8, "epochs": 1, "projection": 8}, leaves="train.model train.samples"),
    "moon-masks": Case(
        "moon",
        {"lr": 0.02, "batch": 4, "epochs": 1, "optimizer": "adam"},
        task="segmentation",
        rounds=8,
        reaches=0.5,
        leaves="train.model train.samples",
    ),
}


def slow(z: Tensor, towards: Tensor, away: list[Tensor], tau: float) -> Tensor:
    """Eq. 3 with a loop over the images."""
    values = []
    for row in range(len(z)):
        near, *far = (torch.exp(z[row] @ o[row] / (z[row].norm() * o[row].norm()) / tau) for o in (towards, *away))
        values.append(-torch.log(near / (near + sum(far))))
    return torch.stack(values).mean()


def test_the_contrastive_term_is_equation_3() -> None:
    rng = torch.Generator().manual_seed(0)
    z, near, one, two = torch.randn(4, 5, 3, generator=rng)
    for away in ([], [one], [one, two]):
        assert model_contrast(z, near, away, 0.7).item() == pytest.approx(slow(z, near, away, 0.7).item(), abs=1e-6)
    across = torch.stack([-z[:, 1], z[:, 0], torch.zeros(5)], 1)  # at right angles once the third entry is gone
    flat = z * torch.tensor([1.0, 1.0, 0.0])
    assert model_contrast(flat, 3 * flat, [across], 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)), abs=1e-6)
    same = z.clone().requires_grad_()
    model_contrast(same, near, [near], 0.5).backward()
    assert same.grad is not None and float(same.grad.abs().max()) < 1e-6  # log 2, and no direction


class TwoLinear(TaskNet):
    """Features by one linear layer, logits by another."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_size = 5
        self.look, self.fc = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        features = self.look(x.flatten(1))
        logits: Tensor = self.fc(features)
        return Outputs(logits, features, (x,)) if full else logits

    def head(self) -> nn.Module:
        return self.fc


def fresh(seed: int) -> State:
    torch.manual_seed(seed)
    return state_of(TwoLinear())


def test_a_step_descends_both_terms_and_the_buffer_moves_on() -> None:
    """Against autograd over an independent forward pass, with a buffer of two earlier models."""
    domain, mu, tau, lr = images(), 3.0, 0.5, 0.2
    x, y = batch_of(domain)
    start, newer, older = fresh(0), fresh(1), fresh(2)
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}

    def features(state: State) -> Tensor:
        return x.flatten(1) @ state["look.weight"].T + state["look.bias"]

    z = features(weights)
    contrast = slow(z, features(start).detach(), [features(newer), features(older)], tau)
    loss = F.cross_entropy(z @ weights["fc.weight"].T + weights["fc.bias"], y) + mu * contrast
    gradients = torch.autograd.grad(loss, [*weights.values()])
    wanted = {name: w.detach() - lr * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    method = MOON(mu=mu, tau=tau, lr=lr, steps=1, batch=12, optimizer="sgd", weight_decay=0.0, buffer=2)
    kept = Earlier(models={"000001": newer, "000002": older})
    client = client_of(domain, TwoLinear, recall=lambda kind: kept)
    up = method.train(Down(model=start), client)
    for name, value in wanted.items():
        assert torch.allclose(up.model[name], value, atol=1e-6), name
    now = client.remembered["Earlier"]
    assert isinstance(now, Earlier) and [*now.models] == ["000001", "000002"]
    assert same_bits(now.models["000001"], up.model) and same_bits(now.models["000002"], newer)


def final(method: Any, data: DomainDataset, rounds: int, **around: Any) -> State:
    return dict(train(Experiment(method, data, "c", rounds=rounds, **around), None, watch=Silent()).state)


def test_round_1_and_mu_0_are_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    settings = {"lr": 0.02, "batch": 9, "epochs": 1, "optimizer": "momentum", "weight_decay": 1e-3}
    assert same_bits(final(MOON(**settings), tiny, 1), final(FedAvg(**settings), tiny, 1))
    plain = final(FedAvg(**settings), tiny, 3)
    assert same_bits(final(MOON(mu=0.0, **settings), tiny, 3), plain)
    assert not same_bits(final(MOON(**settings), tiny, 3), plain)


def test_a_projection_is_in_the_network_or_refused(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    world = build_world(Experiment(MOON(projection=6), tiny, "c"))
    assert world.network == "small_cnn:width=4,projection=6" and "fc.inner.2.weight" in world.fresh("task")
    with pytest.raises(BadInput, match="no field 'projection'"):
        build_world(Experiment(MOON(projection=6), tiny_masks, "c"))
    assert build_world(Experiment(MOON(), tiny_masks, "c")).network == tiny_masks.network
    own = Surroundings("classification", Shapes(3, 1, (2, 2), 5), TwoLinear(), {"a": 12}, {"a": 0})
    assert [*MOON(projection=6).obstacles(own)] == ["projection is 6, but TwoLinear has no projection head; set projection = 0"]
    assert not [*MOON().obstacles(own)]
