"""FedSAM: a client's step by hand, and what it has in common with FedAvg."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cases import Case
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import Experiment, FedAvg, FedSAM
from unseen.data.domain import DomainDataset
from unseen.methods.fedsam import Down, Up
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.sam import SAM
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import train

TINY = {
    "fedsam": Case("fedsam", {"lr": 0.05, "batch": 8, "optimizer": "momentum"}, leaves="train.model"),
    "fedsam-masks": Case(
        "fedsam", {"lr": 0.02, "batch": 4, "optimizer": "adam"}, task="segmentation", rounds=8, reaches=0.5, leaves="train.model"
    ),
}


def test_a_local_step_climbs_before_it_descends() -> None:
    """w' = w - eta g(w + rho g(w) / |g(w)|), with the closed form of a linear net's gradient."""
    domain, rho, lr = images(), 0.3, 0.2
    x, y = (t.double() if t.is_floating_point() else t for t in batch_of(domain))
    torch.manual_seed(0)
    state = {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}

    def gradient(weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        error = (x.flatten(1) @ weight.T + bias).softmax(1) - F.one_hot(y, 3)
        return error.T @ x.flatten(1) / len(y), error.mean(0)

    weight, bias = state["fc.weight"].double(), state["fc.bias"].double()
    for _ in range(2):
        up_w, up_b = gradient(weight, bias)
        norm = (up_w.square().sum() + up_b.square().sum()).sqrt()
        down_w, down_b = gradient(weight + rho * up_w / norm, bias + rho * up_b / norm)
        weight, bias = weight - lr * down_w, bias - lr * down_b
    method = FedSAM(rho=rho, lr=lr, steps=2, batch=12)
    up = method.train(Down(model=state), client_of(domain, lambda: LinearNet(4, 3)))
    assert torch.allclose(up.model["fc.weight"].double(), weight, atol=1e-6)
    assert torch.allclose(up.model["fc.bias"].double(), bias, atol=1e-6)


def test_it_is_uniform_fedavg_with_the_part_sam(tiny: DomainDataset) -> None:
    settings = {"lr": 0.05, "batch": 9, "optimizer": "momentum"}
    whole = train(Experiment(FedSAM(rho=0.2, **settings), tiny, "c", rounds=2), None, watch=Silent())
    part = train(Experiment(FedAvg(sam=SAM(rho=0.2), aggregation=Uniform(), **settings), tiny, "c", rounds=2), None, watch=Silent())
    plain = train(Experiment(FedAvg(aggregation=Uniform(), **settings), tiny, "c", rounds=2), None, watch=Silent())
    flat = train(Experiment(FedSAM(rho=0.0, **settings), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(whole.state, part.state) and not same_bits(whole.state, plain.state)
    assert same_bits(flat.state, plain.state)  # no climb: FedAvg


def test_a_missing_client_has_no_part_in_the_mean() -> None:
    one, four = (Up(model={"w": torch.tensor([w])}, samples=None, perturbed=None) for w in (1.0, 4.0))
    after = FedSAM().round(Aggregate({"w": torch.zeros(1)}), Fixed({"a": one, "b": "gone", "c": four}))
    assert after.model["w"].item() == pytest.approx(2.5)
