"""FedNova: how far steps go, the server's step by hand, and FedAvg where all clients take the same number of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import Case
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.method import Global, Shapes, Surroundings
from unseen.methods.fednova import FedNova, Normalised
from unseen.ops.normalised import accumulated_steps
from unseen.parts.combining import Down
from unseen.runs.watch import Silent
from unseen.training import train

LEAVES = "train.direction train.buffers train.reach train.samples"
TINY = {
    "fednova": Case("fednova", {"lr": 0.05, "batch": 8}, leaves=LEAVES),
    "fednova-masks": Case(
        "fednova",
        {"lr": 0.3, "batch": 4},
        task="segmentation",
        rounds=8,
        reaches=0.5,
        leaves="train.direction train.reach train.samples",  # its network keeps no buffers
    ),
}


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_how_far_steps_go_is_what_torchs_sgd_does(momentum: float, steps: int) -> None:
    """A constant gradient of 1 with learning rate 1: the way is |a|."""
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert accumulated_steps(steps, momentum) == pytest.approx(-weight.item())


def test_a_client_tells_its_change_per_step() -> None:
    domain = images()
    assert len(batch_of(domain)[0]) == 12
    torch.manual_seed(0)
    state = {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}
    for optimizer, reach in (("sgd", 6.0), ("momentum", accumulated_steps(6, 0.9))):
        settings: dict[str, Any] = {"lr": 0.2, "batch": 4, "epochs": 2, "optimizer": optimizer}  # two passes of three batches
        up = FedNova(**settings, weight_decay=0.0).train(Down(model=state), client_of(domain, lambda: LinearNet(4, 3)))
        plain = FedAvg(**settings).train(Down(model=state), client_of(domain, lambda: LinearNet(4, 3)))
        assert up.reach == pytest.approx(reach) and up.samples == 12 and up.buffers == {}
        for name, w in plain.model.items():
            assert torch.allclose(up.direction[name] * reach, w - state[name], atol=1e-6) and (w != state[name]).any()


def up(change: float, reach: float, samples: int, running: float = 0.0) -> Normalised:
    return Normalised(
        direction={"w": torch.tensor([change / reach])}, buffers={"running": torch.tensor([running])}, reach=reach, samples=samples
    )


def test_the_direction_is_the_gradient_however_many_steps() -> None:
    """1 and 10 steps of the same gradient g = 2 with rate 0.1, n = 30 and 10: x moves by -(0.75 * 1 + 0.25 * 10) * 0.1 * 2."""
    before = Global({"w": torch.tensor([5.0]), "running": torch.tensor([9.0])})
    ups = {"a": up(-0.2, 1.0, 30, 2.0), "b": "gone", "c": up(-2.0, 10.0, 10, 6.0)}
    after = FedNova().round(before, Fixed(ups)).model
    assert after["w"].item() == pytest.approx(5 - 3.25 * 0.2) and after["running"].item() == 3.0


def test_a_client_with_many_steps_pulls_no_harder() -> None:
    """Opposite gradients of one size, equal samples: the mean direction is zero, where FedAvg would go with the longer one."""
    after = FedNova().round(Global({"w": torch.tensor([5.0])}), Fixed({"a": up(-0.2, 1.0, 10), "b": up(2.0, 10.0, 10)})).model
    assert after["w"].item() == pytest.approx(5.0)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_equal_steps_are_fedavg(optimizer: Any, tiny: DomainDataset) -> None:
    settings: dict[str, Any] = {"lr": 0.02, "batch": 8, "steps": 3, "optimizer": optimizer, "weight_decay": 1e-3}
    one, two = (train(Experiment(cls(**settings), tiny, "c", rounds=2), None, watch=Silent()).state for cls in (FedNova, FedAvg))
    for name, value in two.items():
        assert torch.allclose(one[name].double(), value.double(), atol=1e-5), name


def test_unequal_steps_are_not(tiny: DomainDataset) -> None:
    settings: dict[str, Any] = {"lr": 0.1, "batch": 8, "epochs": 1, "optimizer": "sgd", "weight_decay": 0.0}
    one, two = (train(Experiment(cls(**settings), tiny, "c", rounds=1), None, watch=Silent()).state for cls in (FedNova, FedAvg))
    assert not torch.allclose(one["conv1.weight"], two["conv1.weight"], atol=1e-5)


def test_what_has_no_reach_is_refused() -> None:
    for optimizer in ("adam", torch.optim.RMSprop):
        with pytest.raises(BadInput, match='how far its steps go is not known; set optimizer = "sgd" or "momentum"'):
            FedNova(optimizer=optimizer)
    shapes = Shapes(3, 1, (2, 2), 4, lambda outputs: LinearNet(4, outputs))
    around = Surroundings("classification", shapes, LinearNet(4, 3), {"a": 0, "b": 5}, {"a": 0, "b": 0})
    assert [*FedNova().obstacles(around)] == ["client 'a' has no training image, so it takes no step to divide by; leave it out"]
