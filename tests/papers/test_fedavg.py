"""FedAvg against rounds that can be worked out on paper."""

from __future__ import annotations

import torch

from cases import Case
from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.parts.adjusting import GA
from unseen.parts.aggregation import CEA, SHA, Mean, Uniform
from unseen.parts.jigen import JiGen
from unseen.parts.mixstyle import MixStyle
from unseen.parts.rsc import RSC
from unseen.parts.sam import SAM
from unseen.parts.views import RandConv
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import build_world

TINY = {
    "fedavg": Case("fedavg", {"lr": 0.02, "batch": 8}, leaves="train.model train.samples"),
    "fedavg-masks": Case(
        "fedavg", {"lr": 0.02, "batch": 4}, task="segmentation", rounds=8, reaches=0.6, leaves="train.model train.samples"
    ),
    "fedavg-cea": Case("fedavg", {"lr": 0.02, "batch": 8, "aggregation": CEA()}, leaves="assess.losses train.model"),
    "fedavg-sha": Case(
        "fedavg",
        {"lr": 0.02, "batch": 8, "aggregation": SHA(rho=0.01, k=1)},
        leaves="assess.losses train.model train.perturbed",
    ),
    "fedavg-sha-masks": Case(
        "fedavg",
        {"lr": 0.02, "batch": 4, "aggregation": SHA(float64=True)},
        task="segmentation",
        rounds=8,
        reaches=0.6,
        leaves="assess.losses train.model train.perturbed",
    ),
    "fedavg-ga": Case("fedavg", {"lr": 0.02, "batch": 8, "aggregation": GA()}, leaves="compare.scores train.model"),
    "fedavg+rsc+jigen": Case(
        "fedavg", {"lr": 0.02, "batch": 8, "rsc": RSC(), "jigen": JiGen()}, rounds=8, reaches=0.6, leaves="train.model train.samples"
    ),
    "fedavg+rc+mixstyle+sam": Case(
        "fedavg",
        {"lr": 0.02, "batch": 8, "views": RandConv(copies=1), "mixstyle": MixStyle(), "sam": SAM(), "smoothing": 0.1},
        leaves="train.model train.samples",
    ),
    "fedavg+rc+mixstyle+sam-masks": Case(
        "fedavg",
        {"lr": 0.02, "batch": 4, "views": RandConv(copies=1), "mixstyle": MixStyle(), "sam": SAM()},
        task="segmentation",
        rounds=8,
        reaches=0.5,
        leaves="train.model train.samples",
    ),
}


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


def test_steps_replace_passes(tiny: DomainDataset) -> None:
    state = train(Experiment(FedAvg(steps=3, batch=4), tiny, "c", rounds=1), None, watch=Silent()).state
    assert int(state["bn1.num_batches_tracked"]) == 3
