"""DANN: its two steps against a plain loop, what it does without the adversary, and where it is refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from one_client import Fixed, batch_of, images
from unseen import BadInput, Experiment
from unseen.client import Client, Pool
from unseen.data.augment import RECIPES
from unseen.data.domain import UNIT, DomainDataset, Holding, Samples
from unseen.device.resident import SampleReader
from unseen.errors import NoReplies
from unseen.experiment import read_experiment
from unseen.methods.dann import DANN, Down, Opposed, Up
from unseen.networks.adversarial import domain_classifier
from unseen.networks.base import Outputs, TaskNet
from unseen.runs.watch import Silent
from unseen.state import same_bits, state_of
from unseen.task import Classification
from unseen.training import train
from unseen.world import build_world

TINY = {"dann": Case("dann", {"lr": 0.01, "batch": 8, "width": 8, "lam": 0.1}, leaves="train.model train.discriminator train.samples")}


class TwoLayers(TaskNet):
    def __init__(self) -> None:
        super().__init__()
        self.feature_size = 5
        self.inner, self.fc = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        features = self.inner(x.flatten(1)).relu()
        return Outputs(self.fc(features), features, ()) if full else self.fc(features)

    def head(self) -> nn.Module:
        return self.fc


def make_critic() -> nn.Module:
    return domain_classifier(5, 2, 6, 3)


def pooled_client() -> tuple[Client, Tensor, Tensor, Tensor]:
    """Two domains of twelve images, and all of them as one batch."""
    a, b = images(seed=0, name="a"), images(seed=1, name="b")
    both = Samples(((a, np.arange(12)), (b, np.arange(12))))
    client = Client(
        Holding("pooled", "a+b", both, Samples(((a, np.empty(0, dtype=np.int64)),))), Classification(tuple("xyz")),
        Pool({"task": TwoLayers, "discriminator": make_critic}, torch.device("cpu")), SampleReader((a, b), torch.device("cpu")),
        torch.Generator().manual_seed(0), UNIT, RECIPES["none"],
    )  # fmt: skip
    (xa, ya), (xb, yb) = batch_of(a), batch_of(b)
    return client, torch.cat([xa, xb]), torch.cat([ya, yb]), torch.tensor([0] * 12 + [1] * 12)


def test_the_discriminator_steps_first_and_the_network_against_it() -> None:
    client, x, y, d = pooled_client()
    torch.manual_seed(0)
    net, critic = TwoLayers(), make_critic()
    start = Down(model=state_of(net), discriminator=state_of(critic))
    for_net = torch.optim.Adam(net.parameters(), lr=0.05, betas=(0.5, 0.9), weight_decay=0.01)
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.02, betas=(0.5, 0.9), weight_decay=0.01)
    for _ in range(3):
        loss_d = F.cross_entropy(critic(net.inner(x.flatten(1)).relu().detach()), d)
        for_critic.zero_grad()
        loss_d.backward()
        for_critic.step()
        features = net.inner(x.flatten(1)).relu()
        fixed = deepcopy(critic)
        loss = F.cross_entropy(net.fc(features), y) - 0.7 * F.cross_entropy(fixed(features), d)
        for_net.zero_grad()
        loss.backward()
        for_net.step()
    method = DANN(lam=0.7, lr=0.05, discriminator_lr=0.02, weight_decay=0.01, batch=24, steps=3, width=6)
    up = method.train(start, client)
    assert all(torch.allclose(up.model[k], v, atol=1e-5) for k, v in net.state_dict().items())
    assert all(torch.allclose(up.discriminator[k], v, atol=1e-5) for k, v in critic.state_dict().items())
    assert up.samples == 24


def test_without_lambda_the_discriminator_only_watches(tiny: DomainDataset) -> None:
    def run(**changes: Any) -> Any:
        method = DANN(**{"batch": 8, "lr": 0.01, "width": 8, "lam": 0.0, **changes})
        return train(Experiment(method, tiny, "c", rounds=1, partition="pooled"), None, watch=Silent()).state

    plain = run()
    assert same_bits(plain, run(discriminator_lr=0.5)) and not same_bits(plain, run(lam=1.0))


def test_the_discriminator_has_an_output_for_every_source(tiny: DomainDataset) -> None:
    world = build_world(Experiment(DANN(width=7, depth=4), tiny, "c", partition="pooled"))
    layers = [m for m in world.builders["discriminator"]().modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(16, 7), (7, 7), (7, 7), (7, 2)]


def test_it_is_refused_where_a_client_holds_one_domain(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    with pytest.raises(BadInput, match="a, b would hold one domain, and D nothing to tell apart; use --partition pooled"):
        build_world(Experiment(DANN(), tiny, "c"))
    with pytest.raises(BadInput, match="a would hold one domain"):
        build_world(Experiment(DANN(), tiny, "c", sources="a", partition="pooled"))
    with pytest.raises(BadInput, match="does classification"):
        build_world(Experiment(DANN(), tiny_masks, "c", partition="pooled"))
    assert read_experiment({"method": "dann", "preset": "paper"}).partition == "pooled"
    mixed = train(Experiment(DANN(batch=8, width=8), tiny, "c", rounds=1, partition="dial:1", clients=2), None, watch=Silent())
    assert mixed.world.clients == ["mixed-00", "mixed-01"]  # several clients, each with both domains


def test_both_networks_are_averaged_by_samples_and_who_is_missing_is_left_out() -> None:
    def up(value: float, samples: int) -> Up:
        return Up(model={"w": torch.tensor([value])}, discriminator={"v": torch.tensor([10 * value])}, samples=samples)

    before = Opposed({"w": torch.zeros(1)}, {"v": torch.zeros(1)})
    after = DANN().round(before, Fixed({"a": up(1.0, 1), "b": "gone", "c": up(4.0, 2)}))
    assert after.model["w"].item() == 3.0 and after.discriminator["v"].item() == 30.0
    with pytest.raises(NoReplies):
        DANN().round(before, Fixed({"a": "gone"}))
