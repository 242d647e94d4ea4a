"""FedSB against its equations and the checks that tell it from a look-alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from cases import Case
from one_client import Fixed
from unseen import Classification, Experiment, FedAvg, FedSB
from unseen.data.domain import Domain, DomainDataset
from unseen.engines.tasks import Place, TaskRunner
from unseen.methods.fedsb import Down, Up
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.mixstyle import MixStyle
from unseen.parts.views import task_loss
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.state import State
from unseen.training import train
from unseen.world import World, build_world

TINY = {
    "fedsb": Case("fedsb", {"lr": 0.02, "batch": 8, "budget": 5}, leaves="train.model"),
    "fedsb-released": Case(
        "fedsb",
        {"smoothing": 0.01, "lr": 0.02, "batch": 8, "budget": 5, "resample": False, "mixstyle": MixStyle()},
        leaves="train.model",
    ),
}


@given(st.integers(2, 8), st.floats(0, 1), st.integers(0, 50))
def test_the_loss_is_equation_2_and_equation_3(classes: int, epsilon: float, seed: int) -> None:
    logits = torch.randn(1, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = seed % classes
    log_p = [float(logits[0, c]) - math.log(sum(math.exp(float(v)) for v in logits[0])) for c in range(classes)]
    others = sum(epsilon / classes * log_p[c] for c in range(classes) if c != y)
    second = -((1 - epsilon + epsilon / classes) * log_p[y] + others)
    third = (1 - epsilon) * -log_p[y] + epsilon * -sum(log_p) / classes
    got = float(task_loss(Classification(tuple("abcdefgh"[:classes])), logits, torch.tensor([y]), smoothing=epsilon))
    assert got == pytest.approx(second, abs=1e-6) and got == pytest.approx(third, abs=1e-6)
    assert got == pytest.approx(float(F.cross_entropy(logits, torch.tensor([y]), label_smoothing=epsilon)), abs=1e-6)


def one_step(world: World, client: str) -> tuple[State, State]:
    before = world.fresh("task")
    up, _ = TaskRunner(world).run(world.experiment.method.train, Down(model=before), client, Place(1, 1), MemoryStore(Path("unused")))  # type: ignore[attr-defined]
    return before, up.model  # type: ignore[attr-defined]


def test_one_local_step_is_adam_on_the_smoothed_loss(tiny: DomainDataset) -> None:
    """The client's first step against Adam worked out by hand from the gradient of Eq. 2."""
    world = build_world(Experiment(FedSB(smoothing=0.3, budget=1, batch=36, lr=0.01), tiny, "c"))
    before, after = one_step(world, "a")
    net = world.builders["task"]()
    net.load_state_dict(before)
    holding = world.holdings["a"]
    images, labels = holding.train.take(torch.arange(36))
    p = net(images.float() / 255).log_softmax(1)
    smooth = torch.full_like(p, 0.3 / 3).scatter_(1, labels[:, None], 1 - 0.3 + 0.3 / 3)  # Eq. 1
    loss = -(smooth * p).sum(1).mean()
    grads = torch.autograd.grad(loss, [*net.parameters()])
    for (name, w), g in zip(net.named_parameters(), grads, strict=True):
        adam = w - 0.01 * g / (g.abs() + 1e-8)  # the first step of Adam: m/(sqrt v) = g/|g|
        clear = g.abs() > 1e-5  # where the gradient is all rounding its sign means nothing
        assert torch.allclose(after[name][clear], adam[clear], atol=2e-4), name


class Seen:
    """Which samples a client's training touched: the labels count, since every sample has its own."""

    def __init__(self, world: World, client: str) -> None:
        self.world, self.client = world, client

    def in_round(self, number: int) -> list[int]:
        seen: list[int] = []
        original = F.cross_entropy

        def spy(logits: torch.Tensor, labels: torch.Tensor, **kwargs: float) -> torch.Tensor:
            seen.extend(labels.tolist())
            return original(logits, labels % 3, **kwargs)

        F.cross_entropy = spy  # type: ignore[assignment]
        try:
            task = self.world.experiment.method.train  # type: ignore[attr-defined]
            TaskRunner(self.world).run(
                task, Down(model=self.world.fresh("task")), self.client, Place(number, 1), MemoryStore(Path("unused"))
            )
        finally:
            F.cross_entropy = original  # type: ignore[assignment]
        return seen


def numbered(samples: int) -> DomainDataset:
    from dataclasses import replace

    from conftest import tiny_classification

    tiny = tiny_classification()
    _, b, c = tiny.domains
    images = np.zeros((samples, 3, 8, 8), dtype=np.uint8)
    split = np.array(["train"] * (samples - 2) + ["val"] * 2)
    return replace(tiny, domains=(Domain("a", images, np.arange(samples), split=split), b, c))


@pytest.mark.parametrize(("resample", "grows"), [(True, True), (False, False)])
def test_a_small_budget_sees_more_of_the_data_every_round_unless_released(resample: bool, grows: bool) -> None:
    method = FedSB(budget=2, batch=4, resample=resample)
    seen = Seen(build_world(Experiment(method, numbered(52), "c")), "a")
    rounds = [set(seen.in_round(n)) for n in range(1, 6)]
    assert all(len(samples) == 8 for samples in rounds)  # without replacement
    assert (len(set.union(*rounds)) > 20) == grows
    assert (rounds[0] == rounds[1]) == (not grows)


def test_a_large_budget_oversamples_evenly() -> None:
    seen = Seen(build_world(Experiment(FedSB(budget=5, batch=7), numbered(12), "c")), "a")
    counts = np.bincount(seen.in_round(1), minlength=10)
    assert counts.sum() == 35 and counts.min() == 35 // 10 and counts.max() == 4


def test_without_a_budget_the_last_incomplete_batch_is_dropped() -> None:
    seen = Seen(build_world(Experiment(FedSB(budget=None, batch=7), numbered(25), "c")), "a")
    assert len(seen.in_round(1)) == 21  # floor(23 / 7) batches, Eq. 4


def test_doubling_a_clients_data_does_not_change_its_steps() -> None:
    for samples in (22, 42):
        seen = Seen(build_world(Experiment(FedSB(budget=3, batch=5), numbered(samples), "c")), "a")
        assert len(seen.in_round(1)) == 15


def test_every_client_weighs_the_same_and_a_missing_one_nothing() -> None:
    """Eq. 5: 1/K of those who answered, whatever the sizes, which the server is not even told."""
    one, four = (Up(model={"w": torch.tensor([w])}, samples=None, perturbed=None) for w in (1.0, 4.0))
    state = FedSB().round(Aggregate({"w": torch.zeros(1)}), Fixed({"a": one, "b": "gone", "c": four}))
    assert state.model["w"].item() == 2.5


def test_only_weights_leave(tiny: DomainDataset) -> None:
    result = train(Experiment(FedSB(budget=1, batch=4), tiny, "c", rounds=1), None, watch=Silent())
    sent = [row for row in result.records[0]["travelled"] if row["direction"] == "sent"]
    size = sum(v.numel() * v.element_size() for v in result.state.values())
    assert [(r["field"], r["kind"], r["bytes"], r["grows"]) for r in sent] == [("model", "model", size, False)]


def test_smoothing_zero_and_full_passes_is_uniform_fedavg(tiny: DomainDataset) -> None:
    """Both ablations off: FedAvg with the plain mean, to the bit (36 and 27 samples in whole batches of 9)."""
    one = train(Experiment(FedSB(smoothing=0.0, budget=None, batch=9), tiny, "c", rounds=2), None, watch=Silent())
    two = train(Experiment(FedAvg(aggregation=Uniform(), batch=9), tiny, "c", rounds=2), None, watch=Silent())
    assert all(torch.equal(one.state[k], two.state[k]) for k in one.state)


def test_presets_are_the_papers_and_the_released_numbers() -> None:
    from unseen.experiment import read_experiment

    paper = read_experiment({"method": "fedsb", "preset": "paper"})
    released = read_experiment({"method": "fedsb", "preset": "released", "rounds": 7})
    assert (paper.method.smoothing, paper.method.budget, paper.method.lr, paper.rounds) == (0.1, 30, 1e-4, 100)  # type: ignore[attr-defined]
    assert (released.method.smoothing, released.method.budget, released.method.lr) == (0.01, 45, 5e-5)  # type: ignore[attr-defined]
    assert not released.method.resample and released.rounds == 7  # type: ignore[attr-defined]
