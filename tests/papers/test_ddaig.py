"""DDAIG: each of its three steps against an independent one, FedAvg inside it, and the domain net's classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import Case
from one_client import LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.federation.sums.summable import refusals
from unseen.methods.ddaig import DDAIG, Down, domain_loss
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.training import train
from unseen.world import build_world

FAST = {"lr": 0.05, "batch": 8, "optimizer": "sgd", "width": 4, "warmup": 1, "domains": 2}
TINY = {
    "ddaig": Case("ddaig", FAST, leaves="train.model train.generator train.domain train.samples"),
    "ddaig-masks": Case(
        "ddaig",
        {**FAST, "lr": 0.02, "batch": 4, "optimizer": "adam"},
        "segmentation",
        5,
        0.5,
        leaves="train.model train.generator train.domain train.samples",
    ),
}


class Shift(nn.Module):
    """A generator that can be differentiated on paper: the same perturbation for every image."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(1, 1, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.by.expand_as(x)


def drawn(net: nn.Module, seed: int) -> State:
    torch.manual_seed(seed)
    return {name: torch.randn_like(value) for name, value in state_of(net).items()}


@pytest.mark.parametrize("domain_net", ["shared", "none"])
def test_the_three_steps_by_hand(domain_net: str) -> None:
    """Errors of linear nets are (softmax - one-hot) / n. D has room for four clients, and there are three: b is the second."""
    domain, lr, lam, a = images(name="b"), 0.1, 0.4, 0.3
    x, y = batch_of(domain)
    flat, n = x.flatten(1), len(y)
    label, who, shift = drawn(LinearNet(4, 3), 0), drawn(LinearNet(4, 4), 1), drawn(Shift(), 2)
    d = torch.full((n,), 1)

    def error(state: State, images: torch.Tensor, target: torch.Tensor, classes: int) -> torch.Tensor:
        logits = (images @ state["fc.weight"].T + state["fc.bias"])[:, :classes]
        return (logits.softmax(1) - F.one_hot(target, classes)) / n

    made = flat + lam * shift["by"].flatten()
    pull = error(label, made, y, 3) @ label["fc.weight"]
    if domain_net == "shared":
        pull = pull - error(who, made, d, 3) @ who["fc.weight"][:3]
    by = shift["by"].flatten() - lr * lam * pull.sum(0)  # x' = x + lambda G(x)
    after = flat + lam * by  # of the new G
    weight = label["fc.weight"] - lr * ((1 - a) * error(label, flat, y, 3).T @ flat + a * error(label, after, y, 3).T @ after)
    told = F.pad(error(who, flat, d, 3), (0, 1))  # the fourth class is nobody's
    method = DDAIG(strength=lam, alpha=a, lr=lr, optimizer="sgd", weight_decay=0.0, steps=1, batch=12, domain_net=domain_net)  # type: ignore[arg-type]
    roles: Any = {"generator": Shift, "domain": lambda: LinearNet(4, 4)}
    down = Down(model=label, generator=shift, domain=who if domain_net == "shared" else None, names="a\nb\nc", round=3)
    up = method.train(down, client_of(domain, lambda: LinearNet(4, 3), **roles))
    assert torch.allclose(up.generator["by"].flatten(), by, atol=1e-6)
    assert torch.allclose(up.model["fc.weight"], weight, atol=1e-6)
    if domain_net == "shared":
        assert up.domain is not None and torch.allclose(up.domain["fc.weight"], who["fc.weight"] - lr * told.T @ flat, atol=1e-6)
    else:
        assert up.domain is None


@pytest.mark.parametrize("changed", [{"alpha": 0.0, "warmup": 0}, {"alpha": 0.5, "warmup": 2}])
def test_without_perturbed_images_it_is_fedavg_to_the_bit(changed: dict[str, Any], tiny: DomainDataset) -> None:
    values: dict[str, Any] = {"batch": 9, "lr": 0.01, "optimizer": "sgd", "weight_decay": 0.0}
    ours, plain = DDAIG(width=4, domains=2, **changed, **values), FedAvg(**values)
    one, two = (train(Experiment(method, tiny, "c", rounds=2), None, watch=Silent()).state for method in (ours, plain))
    assert same_bits(one, two)
    assert not same_bits(train(Experiment(ours, tiny, "c", rounds=3), None, watch=Silent()).state, two)


def test_of_one_domain_there_is_nothing_to_tell() -> None:
    x = torch.randn(5, 1, 2, 2, requires_grad=True)
    loss = domain_loss(LinearNet(4, 4), x, torch.zeros(5, dtype=torch.long), 1)
    (slope,) = torch.autograd.grad(loss, x)
    assert float(loss.detach()) == 0 and not slope.any()


def test_on_masks_the_domain_net_answers_for_the_whole_image(tiny_masks: DomainDataset) -> None:
    world = build_world(Experiment(DDAIG(domains=3, width=4), tiny_masks, "c"))
    net, x = world.builders["domain"](), torch.rand(2, 3, 16, 16)
    logits = net(x)
    assert logits.shape == (2, 3, 16, 16)
    want = F.cross_entropy(torch.stack([logits[:, c].flatten(1).mean(1) for c in (0, 1)], 1), torch.tensor([1, 0]))
    torch.testing.assert_close(domain_loss(net, x, torch.tensor([1, 0]), 2), want)


def test_what_does_not_fit_is_told_before_round_1(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="a single client is one domain"):
        build_world(Experiment(DDAIG(), tiny, "c", sources="a"))
    with pytest.raises(BadInput, match="3 clients and room for 2 classes at D; set domains = 3"):
        build_world(Experiment(DDAIG(domains=2), tiny, "c", partition="split", clients=3))
    with pytest.raises(
        BadInput, match="D is another such network, with 8 outputs, and this one has 3 whatever is asked; let its function take"
    ):
        build_world(Experiment(DDAIG(), tiny, "c", network=lambda: LinearNet(192, 3)))
    build_world(Experiment(DDAIG(domain_net="none"), tiny, "c", network=lambda: LinearNet(192, 3)))
    assert not [*refusals(DDAIG(), 3)], "nothing but means is needed"
