"""FedAvg and FedProx against rounds that can be worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unseen import Experiment, FedAvg, FedProx
from unseen.data.domain import DomainDataset
from unseen.engines.tasks import Place, TaskRunner
from unseen.parts.aggregation import Mean, Uniform
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import build_world


def test_a_round_of_fedavg_is_sgd_at_each_client_and_the_weighted_mean(tiny: DomainDataset) -> None:
    """Full-batch SGD for one step at each client, by autograd alone, then n_k / n."""
    method = FedAvg(optimizer="sgd", lr=0.1, batch=64)
    experiment = Experiment(method, tiny, "c", rounds=1)
    world = build_world(experiment)
    expected, total = {}, sum(len(h.train) for h in world.holdings.values())
    for name, holding in world.holdings.items():
        net = world.builders["task"]()
        net.load_state_dict(world.fresh("task"))
        images, labels = holding.train.take(torch.arange(len(holding.train)))
        loss = -(net(images.float() / 255).log_softmax(1)[torch.arange(len(labels)), labels]).mean()
        grads = torch.autograd.grad(loss, [*net.parameters()])
        for (key, w), g in zip(net.named_parameters(), grads, strict=True):
            expected[key] = expected.get(key, 0) + len(holding.train) / total * (w - 0.1 * g).detach()
        assert len(holding.train) == {"a": 36, "b": 27}[name]
    state = train(experiment, None, watch=Silent()).state
    for key, value in expected.items():
        assert torch.allclose(state[key], value, atol=1e-5), key
    assert int(state["bn1.num_batches_tracked"]) == 1


def test_the_uniform_mean_sends_no_count(tiny: DomainDataset) -> None:
    for aggregation, sizes in ((Mean(), [8]), (Uniform(), [])):
        result = train(Experiment(FedAvg(aggregation=aggregation), tiny, "c", rounds=1), None, watch=Silent())
        rows = [r for r in result.records[0]["travelled"] if r["field"] == "samples"]
        assert [r["bytes"] for r in rows] == sizes


def test_fedprox_with_mu_zero_is_fedavg(tiny: DomainDataset) -> None:
    one = train(Experiment(FedProx(mu=0.0, batch=8, lr=0.01), tiny, "c", rounds=2), None, watch=Silent())
    two = train(Experiment(FedAvg(batch=8, lr=0.01), tiny, "c", rounds=2), None, watch=Silent())
    assert all(torch.equal(one.state[k], two.state[k]) for k in one.state)


def test_the_proximal_term_pulls_back_by_its_gradient(tiny: DomainDataset) -> None:
    """Two full-batch SGD steps: the second differs from FedAvg's by -lr mu (w_1 - w_0), worked out here."""
    lr, mu = 0.05, 0.7
    world = build_world(Experiment(FedProx(mu=mu, optimizer="sgd", lr=lr, batch=64, epochs=2), tiny, "c"))
    start = world.fresh("task")

    def local(method: FedAvg | FedProx) -> dict[str, torch.Tensor]:
        from unseen.methods import fedavg, fedprox

        down = (fedprox if isinstance(method, FedProx) else fedavg).Down(model=start)
        runner = TaskRunner(replace(world, experiment=replace(world.experiment, method=method)))
        up, _ = runner.run(method.train, down, "a", Place(1, 1), MemoryStore(Path("unused")))
        return up.model  # type: ignore[attr-defined, no-any-return]

    settings = {"optimizer": "sgd", "lr": lr, "batch": 64}
    first = local(FedAvg(epochs=1, **settings))  # type: ignore[arg-type]
    plain = local(FedAvg(epochs=2, **settings))  # type: ignore[arg-type]
    pulled = local(FedProx(mu=mu, epochs=2, **settings))  # type: ignore[arg-type]
    for key in ("conv1.weight", "fc.weight", "fc.bias"):
        difference = -lr * mu * (first[key] - start[key])
        assert difference.abs().max() > 1e-6
        assert torch.allclose(pulled[key] - plain[key], difference, atol=1e-6), key


@pytest.mark.parametrize("method", [FedAvg(steps=3, batch=4), FedProx(steps=3, batch=4)])
def test_steps_replace_passes(tiny: DomainDataset, method: FedAvg | FedProx) -> None:
    state = train(Experiment(method, tiny, "c", rounds=1), None, watch=Silent()).state
    assert int(state["bn1.num_batches_tracked"]) == 3
