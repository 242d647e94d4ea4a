"""A curious server against a site: SHA's perturbed model minus the model is a gradient, and must not be that of a few images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from one_client import LinearNet, batch_of, client_of, images
from unseen import Experiment, FedAvg
from unseen.data.domain import UNIT, Domain, DomainDataset
from unseen.engines.tasks import Place, TaskRunner
from unseen.errors import BadInput
from unseen.parts.aggregation import SHA
from unseen.parts.combining import Down, Up
from unseen.runs.memory import MemoryStore
from unseen.task import Classification
from unseen.world import World, build_world

CLASSES, FEW = 10, 4  # images behind a difference that are too few


@pytest.fixture(scope="module")
def digits() -> DomainDataset:
    """Ten classes, so that a gradient of two images is told by its rank; 63 images train."""
    domains = []
    for name, number in (("a", 70), ("b", 40), ("c", 40)):
        rng = np.random.default_rng(number)
        labels = np.arange(number) % CLASSES
        images = rng.integers(0, 100, (number, 3, 12, 12)).astype(np.uint8)
        images[np.arange(number), :, labels] += np.uint8(120)
        domains.append(Domain(name, images, labels.astype(np.int64)))
    return DomainDataset("digits", Classification(tuple("0123456789")), tuple(domains), pixels=UNIT, network="small_cnn:width=8")


def asked(data: DomainDataset, tmp_path: Any, batch: int, **sha: Any) -> tuple[World, Up]:
    """What the site a answers when the server has chosen the batch."""
    method = FedAvg(batch=batch, lr=1e-3, aggregation=SHA(rho=0.05, float64=True, **sha))
    world = build_world(Experiment(method, data, "c"))
    up, _ = TaskRunner(world).run(method.train, Down(model=world.fresh("task")), "a", Place(1, 1), MemoryStore(tmp_path))
    assert isinstance(up, Up)
    return world, up


def rank(up: Up) -> int:
    assert up.perturbed is not None
    values = torch.linalg.svdvals(up.perturbed["fc.weight"] - up.model["fc.weight"].double())
    return int((values > 1e-5 * values[0]).sum())


@pytest.mark.parametrize("batch", [61, 2, 20, 30])  # the last batch of a pass over 63 images holds two, or three
def test_the_difference_is_no_gradient_of_a_few_images(batch: int, digits: DomainDataset, tmp_path: Any) -> None:
    _, honest = asked(digits, tmp_path / "sample", batch)
    assert rank(honest) > FEW
    _, shown = asked(digits, tmp_path / "last", batch, direction="last-batch")
    assert rank(shown) <= FEW, "the attack itself works where the paper's reading is asked for"


def test_the_direction_is_the_gradient_over_all_images_at_the_model(digits: DomainDataset, tmp_path: Any) -> None:
    world, up = asked(digits, tmp_path, batch=16)
    images, y = world.holdings["a"].train.take(torch.arange(63))
    net: Any = world.builders["task"]().train()
    net.load_state_dict(up.model)
    nn.functional.cross_entropy(net(images / 255), y).backward()
    gradient = {name: p.grad.double() for name, p in net.named_parameters()}
    norm = torch.sqrt(sum(g.square().sum() for g in gradient.values()))  # type: ignore[call-overload]
    assert up.perturbed is not None
    for name, value in up.model.items():
        wanted = 0.05 * gradient[name] / norm if name in gradient else torch.zeros_like(value)
        assert torch.allclose(up.perturbed[name] - value, wanted.to(up.perturbed[name].dtype), atol=1e-6), name


def test_a_sample_is_drawn_from_the_clients_generator_and_the_training_is_the_same(digits: DomainDataset, tmp_path: Any) -> None:
    ups = [asked(digits, tmp_path / str(n), 16, sample=sample)[1] for n, sample in enumerate((32, 32, 63, 256))]
    for up in ups[1:]:
        assert all(torch.equal(up.model[name], value) for name, value in ups[0].model.items())
    first, again, all_of_them, more = (up.perturbed for up in ups)
    assert first is not None and again is not None and all_of_them is not None and more is not None
    assert torch.equal(first["fc.weight"], again["fc.weight"]) and not torch.equal(first["fc.weight"], all_of_them["fc.weight"])
    assert torch.allclose(all_of_them["fc.weight"], more["fc.weight"], atol=1e-9)
    assert rank(ups[0]) > FEW


def test_the_gradient_of_many_batches_is_that_of_all_images_together() -> None:
    domain = images(samples=150, side=8)
    client, net = client_of(domain, lambda: LinearNet(64, 3)), LinearNet(64, 3)
    x, y = batch_of(domain)
    wanted = torch.autograd.grad(nn.functional.cross_entropy(net(x), y), [*net.parameters()])
    got = SHA().sampled_gradient(client, net)
    for (name, _), gradient in zip(net.named_parameters(), wanted, strict=True):
        assert torch.allclose(got[name], gradient, atol=1e-6), name
    batches = [len(y) for _, y in client.drawn(130, 64)]
    assert batches == [44, 43, 43] and len(torch.cat([x.flatten(1) for x, _ in client.drawn(500, 64)]).unique(dim=0)) == 150


def test_a_server_cannot_ask_for_a_sample_of_a_few_and_a_policy_sees_how_many() -> None:
    for sample in (1, 2, 31):
        with pytest.raises(BadInput, match="sample is"):
            SHA(sample=sample)
    assert FedAvg(aggregation=SHA(sample=64)).exposures() == {"images_per_direction": 64.0}
    assert FedAvg(aggregation=SHA(direction="last-batch", sample=64)).exposures() == {"images_per_direction": 1.0}
    assert FedAvg().exposures() == {}
