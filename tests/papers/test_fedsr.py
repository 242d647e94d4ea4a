"""FedSR: its loss from torch's distributions, its prediction, where the reference stays, and FedAvg as its limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from cases import Case
from one_client import LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, run
from unseen.client import Client
from unseen.data.domain import Domain, DomainDataset
from unseen.methods.fedavg import FedAvg
from unseen.methods.fedsr import Down, FedSR, Kept
from unseen.networks.headed import TwoLayerHead
from unseen.networks.reference import ClassReference
from unseen.parts.combining import Down as Plain
from unseen.runs.watch import Silent
from unseen.state import state_of
from unseen.training import train
from unseen.world import build_world

VALUES: dict[str, Any] = {"z": None, "lr": 0.05, "batch": 8, "steps": None, "weight_decay": 0.0}
TINY = {
    "fedsr": Case("fedsr", VALUES, leaves="train.model train.spread train.reference"),
    "fedsr-released": Case(
        "fedsr",
        {**VALUES, "z": 6, "length": "norm", "reference": "local", "scaled": True},
        leaves="train.model train.spread",
    ),
}
ROLES = {"spread": lambda: nn.Linear(4, 2), "reference": lambda: ClassReference(3, 2)}


class Bottleneck(LinearNet):
    """Four pixels, z of two dimensions, three classes."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.fc = TwoLayerHead(4, 2, 3)  # type: ignore[assignment]


def start(domain: Domain, kept: Kept | None = None) -> tuple[Client, Down]:
    torch.manual_seed(1)
    client = client_of(domain, Bottleneck, recall=lambda kind: kept, **ROLES)
    states = [state_of(make()) for make in (Bottleneck, *ROLES.values())]
    for name in ("mu", "rho"):
        states[2][name] += 0.3 * torch.randn_like(states[2][name])
    states[2]["scale"] += 0.5
    return client, Down(model=states[0], spread=states[1], reference=states[2])


@pytest.mark.parametrize("length", ["squared", "norm"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_descends_the_papers_loss(length: str, scaled: bool) -> None:
    """CE + a |z|^2 + b KL(N(mu, sigma) || r_y) written with torch's distributions, differentiated by all three networks."""
    domain, lr, a, b = images(), 0.1, 0.7, 0.4
    client, down = start(domain)
    assert down.reference is not None
    generator = torch.Generator()
    generator.set_state(client.rng.get_state())
    order = torch.randperm(12, generator=generator)
    noise = torch.randn(12, 2, generator=generator)
    method = FedSR(z=2, l2r=a, cmi=b, length=length, scaled=scaled, lr=lr, steps=1, batch=12, optimizer="sgd", weight_decay=0.0)  # type: ignore[arg-type]
    up = method.train(down, client)

    x, y = batch_of(domain)
    x, y = x[order].flatten(1), y[order]
    w, s, r = ({k: v.clone().requires_grad_() for k, v in state.items()} for state in (down.model, down.spread, down.reference))
    mu = F.linear(x, w["fc.inner.weight"], w["fc.inner.bias"])
    sigma = F.softplus(F.linear(x, s["weight"], s["bias"]))
    z = mu + sigma * noise
    scale = r["scale"] if scaled else 1.0
    posterior = Independent(Normal(scale * mu, scale * sigma), 1)
    kl = kl_divergence(posterior, Independent(Normal(r["mu"][y], F.softplus(r["rho"])[y]), 1)).mean()
    size = (z**2).sum(1) if length == "squared" else (z**2).sum(1).sqrt()
    (F.cross_entropy(F.linear(z, w["fc.output.weight"], w["fc.output.bias"]), y) + a * size.mean() + b * kl).backward()  # type: ignore[no-untyped-call]
    for found, leaf in ((up.model, w), (up.spread, s), (up.reference, r)):
        assert found is not None
        for name, value in leaf.items():
            moved = torch.zeros_like(value) if value.grad is None else value.grad
            assert torch.allclose(found[name], value.detach() - lr * moved, atol=2e-6), name
    assert up.reference is not None and (not torch.equal(up.reference["scale"], down.reference["scale"])) == scaled


def test_without_spread_and_weights_it_is_fedavg_with_a_wider_head() -> None:
    domain = images()
    client, down = start(domain)
    down.spread["bias"].fill_(-1e4)  # sigma = 1e-6
    values: dict[str, Any] = {"lr": 0.2, "steps": 4, "batch": 12, "optimizer": "sgd"}
    found = FedSR(z=2, l2r=0.0, cmi=0.0, weight_decay=0.0, **values).train(down, client).model
    wanted = FedAvg(**values).train(Plain(model=down.model), client_of(domain, Bottleneck)).model
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) and not torch.equal(wanted[name], w) for name, w in down.model.items())


def test_what_is_deployed_predicts_from_the_mean(tiny: DomainDataset) -> None:
    result = run(FedSR(**{**VALUES, "z": 6}), tiny, "c", rounds=1)
    net, x = result.model, torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        seen = net(x, full=True)
        mu = F.linear(seen.features, result.state["fc.inner.weight"], result.state["fc.inner.bias"])
        expected = F.linear(mu, result.state["fc.output.weight"], result.state["fc.output.bias"])
        assert mu.shape == (5, 6) and torch.allclose(seen.logits, expected, atol=1e-6) and torch.equal(net(x), net(x))


def test_a_local_reference_stays_and_goes_on_from_what_was_kept() -> None:
    domain = images()
    client, down = start(domain)
    local = Down(model=down.model, spread=down.spread, reference=None)
    method = FedSR(z=2, reference="local", cmi=1.0, steps=1, batch=12, lr=0.1)
    up = method.train(local, client)
    first = client.recall(Kept)
    assert up.reference is None and first is not None and not torch.equal(first.reference["mu"], torch.zeros(3, 2))
    again, _ = start(domain, first)
    method.train(local, again)
    second = again.recall(Kept)
    assert second is not None and (second.reference["mu"] - first.reference["mu"]).abs().max() > 1e-4
    fresh = ClassReference(3, 2)
    assert not fresh.mu.any() and (fresh.rho == 1).all() and fresh.scale == 1


def test_a_missing_client_keeps_its_reference_and_the_others_go_on(tiny: DomainDataset) -> None:
    method = FedSR(**{**VALUES, "reference": "local"})
    result = train(Experiment(method, tiny, "c", rounds=3, participation=0.5), None, watch=Silent())
    assert all(torch.isfinite(v).all() for v in result.state.values())


def test_a_network_of_ones_own_needs_z_none(tiny: DomainDataset) -> None:
    def own(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, outputs))

    with pytest.raises(BadInput, match="z is 512, but the head"):
        build_world(Experiment(FedSR(), tiny, "c", network=own))
    with pytest.raises(BadInput, match="a ReLU, which would be left out"):
        build_world(Experiment(FedSR(z=4), tiny, "c", network="small_cnn:width=4,hidden=4,relu=true"))
    world = build_world(Experiment(FedSR(z=None), tiny, "c", network=own))
    spread: Any = world.builders["spread"]()
    assert isinstance(spread.weight, Tensor) and spread.weight.shape == (5, 5)
