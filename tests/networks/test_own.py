"""A user's own module in its wrapper: the same logits, and the features, maps and head that methods ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import own_code_for_tests as mine
from one_client import LinearNet
from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.networks.base import TaskNet, network_entries
from unseen.networks.own import build_own_network
from unseen.own_code import Own
from unseen.parts.mixstyle import MixStyle
from unseen.task import Classification
from unseen.world import build_world

TASK, X = Classification(("x", "y", "z")), torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def built(thing: Any, **options: Any) -> TaskNet:
    return build_own_network(Own("memory:net", thing, options), task=TASK, channels=3, size=(8, 8))


class Shared(nn.Module):
    """One activation at every place, a frozen layer, and a linear layer that is not the head."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.act, self.gate = nn.ReLU(), nn.Linear(5, 5)
        self.classify = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, outputs))
        self.frozen = nn.BatchNorm2d(4).eval()

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.two(self.act(self.frozen(self.one(x)))))
        pooled = h.mean((2, 3))
        logits: Tensor = self.classify(pooled * self.gate(pooled).sigmoid())
        return logits


def test_features_maps_and_head_are_those_of_the_forward_pass() -> None:
    net = built(Shared)
    seen = net(X, full=True)
    assert torch.equal(seen.logits, net(X)) and torch.equal(net.head()(seen.features), seen.logits)
    assert net.feature_size == 6 == seen.features.shape[1] and seen.maps[-1].shape == (4, 5, 4, 4) and bool((seen.maps[-1] >= 0).all())
    assert network_entries(net).names("head") == ["net.classify.2.weight", "net.classify.2.bias"]
    (slope,) = torch.autograd.grad(seen.logits.sum(), seen.maps[-1])
    assert slope.abs().sum() > 0


def test_another_head_by_name() -> None:
    net = built(Shared, head="classify")
    seen = net(X, full=True)
    assert net.feature_size == 5 and torch.equal(net.head()(seen.features), seen.logits)
    with pytest.raises(BadInput, match="did you mean 'classify'"):
        built(Shared, head="clasify")


def test_functional_calls_reach_it() -> None:
    net = built(mine.Tiny)
    other = {name: value * 2 for name, value in net.state_dict().items()}
    seen = functional_call(net, other, (X,), {"full": True})
    assert not torch.equal(seen.logits, net(X)) and seen.features.shape == (4, 8)
    net.load_state_dict(other)
    assert torch.equal(seen.logits, net(X))


def test_looking_leaves_modes_and_statistics_as_they_were() -> None:
    net: Any = built(Shared)
    assert net.training and net.net.one.training and not net.net.frozen.training
    assert int(net.net.frozen.num_batches_tracked) == 0 and not net.net.frozen._forward_hooks


def test_a_network_without_maps_has_the_images() -> None:
    net = built(lambda outputs: nn.Sequential(nn.Flatten(), nn.Linear(192, outputs)))
    assert torch.equal(net(X, full=True).maps[-1], X) and net.feature_size == 192


def test_a_task_network_is_taken_as_it_is() -> None:
    net = built(lambda outputs: LinearNet(192, outputs))
    assert type(net) is LinearNet
    with pytest.raises(BadInput, match=r"gives \[2, 4\]"):
        built(lambda outputs: LinearNet(192, outputs + 1))


def test_a_head_that_reads_tokens_is_refused_with_how_to_name_another() -> None:
    class Tokens(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.fc = nn.Linear(64, outputs)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.fc(x.flatten(2)).mean(1)
            return logits

    with pytest.raises(BadInput, match=r"head 'fc' reads \[2, 3, 64\]; expected \[n, features\]. Name the module .*:head=MODULE"):
        built(Tokens)


def test_weights_from_a_file(tmp_path: Path) -> None:
    trained = mine.Tiny(3)
    torch.save(trained.state_dict(), tmp_path / "w.pth")
    own = Own("memory:Tiny", mine.Tiny)
    net: Any = build_own_network(own, task=TASK, channels=3, size=(8, 8), weights=tmp_path / "w.pth")
    assert torch.equal(net.net.head.weight, trained.head.weight)
    for weights, says in (("imagenet", "no ImageNet weights"), (tmp_path / "w.pth", "does not fit")):
        with pytest.raises(BadInput, match=says):
            build_own_network(Own("memory:Tiny", mine.Tiny, {"width": 9}), task=TASK, channels=3, size=(8, 8), weights=weights)


def test_mixstyle_says_that_it_knows_no_stages(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="mixstyle acts after 2 stages of the network, and OwnNet names 0"):
        build_world(Experiment(FedAvg(mixstyle=MixStyle()), tiny, "c", network=mine.Tiny))
