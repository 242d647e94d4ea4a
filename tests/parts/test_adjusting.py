"""GA and OMG against sums worked out here, a search over the simplex, and what a missing client means."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset, Samples
from unseen.engines.tasks import Place, TaskRunner
from unseen.errors import NoReplies
from unseen.method import Refused, Replies
from unseen.methods.fedavg import Up
from unseen.ops.adjustment import adjusted_weights
from unseen.ops.matching import least_agreed
from unseen.parts.adjusting import GA, OMG, Compared, MeanAndOwn
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import build_world


def up(*values: float, buffer: float = 0.0) -> Up:
    return Up(model={"w": torch.tensor(values), "mean": torch.tensor([buffer])}, samples=None, perturbed=None)


class Cohort:
    """Clients whose own models score 1, and whose gap is what is given; a client without one does not answer."""

    def __init__(self, gaps: Mapping[str, float | None]) -> None:
        self.names, self.gaps, self.taking_part, self.asked = sorted(gaps), gaps, sorted(gaps), {}  # type: ignore[var-annotated]

    def ask(self, task: Any, down: Mapping[str, MeanAndOwn]) -> Replies[Any]:
        self.asked = dict(down)
        told = {c: self.gaps[c] for c in down}
        return Replies(
            iter((c, Refused("gone") if g is None else Compared(scores={"mean": 1 + g, "own": 1.0})) for c, g in sorted(told.items()))
        )

    def entries(self, part: str = "whole", role: str = "task") -> list[str]:
        return ["w"]

    def rng(self, *where: str | int) -> torch.Generator:
        return torch.Generator()


START = Aggregate({"w": torch.zeros(1), "mean": torch.zeros(1)})


def test_weights_follow_the_gaps_as_worked_out_by_hand() -> None:
    thirds = dict.fromkeys("abc", 1 / 3)
    assert adjusted_weights(thirds, {"a": 0.1, "b": 0.0, "c": -0.1}, 0.2) == pytest.approx({"a": 8 / 15, "b": 1 / 3, "c": 2 / 15})
    assert adjusted_weights(thirds, dict.fromkeys("abc", 0.7), 0.2) == pytest.approx(thirds)  # equal gaps, and no 0 / 0
    gaps = {"a": 0.4, "b": 0.4, "c": 0.1}  # not centred: 1/3 + 0.2 G / 0.4, over their sum 1.45
    assert adjusted_weights(thirds, gaps, 0.2, centred=False) == pytest.approx({c: (1 / 3 + g / 2) / 1.45 for c, g in gaps.items()})
    cut = adjusted_weights({"a": 0.9, "b": 0.1}, {"a": 1.0, "b": 0.0}, 0.5)
    assert cut == {"a": 1.0, "b": 0.0}  # not below 0
    assert adjusted_weights({"a": 0.0, "b": 0.0}, {}, 0.2) == {"a": 0.5, "b": 0.5}


def test_ga_weighs_this_round_by_the_gaps_of_the_last() -> None:
    clients, ups = Cohort({"a": 0.1, "b": 0.0, "c": -0.1}), {"a": up(1.0), "b": up(2.0), "c": up(6.0)}
    first = GA().combine(clients, ups.items(), START)
    assert first.model["w"].item() == pytest.approx(3.0) and first.round == 1
    assert {c: sorted(q.models) for c, q in clients.asked.items()} == {c: ["mean", "own"] for c in "abc"}
    assert clients.asked["c"].models["own"]["w"].item() == 6.0 and clients.asked["c"].models["mean"]["w"].item() == pytest.approx(3.0)
    second = GA().combine(clients, ups.items(), first)
    assert second.model["w"].item() == pytest.approx((8 * 1 + 5 * 2 + 2 * 6) / 15)
    assert GA().notes(second)["weights"] == pytest.approx({"a": 0.6875, "b": 0.3125, "c": 0.0})  # 11/15, 5/15 and nothing below 0
    falling = GA(rounds=4).combine(clients, ups.items(), Aggregate(START.model, round=2))
    assert falling.numbers["next"]["a"] == pytest.approx(1 / 3 + 0.2 * 0.5)
    assert GA(rounds=4).combine(clients, ups.items(), Aggregate(START.model, round=9)).numbers["next"] == pytest.approx(
        dict.fromkeys("abc", 1 / 3)
    )


def test_who_is_missing_keeps_its_weight() -> None:
    before = Aggregate(START.model, 1, numbers={"next": {"a": 0.5, "b": 0.3, "c": 0.2}})
    clients = Cohort({"a": 0.2, "b": 0.0, "c": None})
    after = GA().combine(clients, {"a": up(1.0), "b": up(2.0)}.items(), before)
    assert after.model["w"].item() == pytest.approx((0.5 * 1 + 0.3 * 2) / 0.8)  # c sent no model
    assert after.numbers["next"] == pytest.approx({"a": 0.7, "b": 0.1, "c": 0.2})
    silent = GA().combine(Cohort(dict.fromkeys("abc")), {"a": up(1.0), "c": up(2.0)}.items(), before)
    assert silent.numbers["next"] == pytest.approx(before.numbers["next"])  # nobody scored
    worthless = Aggregate(START.model, 1, numbers={"next": {"a": 1.0, "b": 0.0, "c": 0.0}})
    assert GA().combine(clients, {"b": up(2.0), "c": up(4.0)}.items(), worthless).model["w"].item() == pytest.approx(3.0)
    with pytest.raises(NoReplies):
        GA().combine(clients, [], before)


def test_a_client_scores_the_mean_and_its_own_model_on_its_validation_part(tiny: DomainDataset) -> None:
    for score in ("loss", "metric"):
        part = GA(score=score)  # type: ignore[arg-type]
        world = build_world(Experiment(FedAvg(aggregation=part), tiny, "c"))
        fresh = world.fresh("task")
        other = {k: v * 1.5 if v.is_floating_point() else v for k, v in fresh.items()}
        broken = {k: v * 1e30 if v.is_floating_point() else v for k, v in fresh.items()}
        down = MeanAndOwn(models={"mean": fresh, "own": other, "broken": broken})
        told, _ = TaskRunner(world).run(part.compare, down, "b", Place(1, 1), MemoryStore(Path("unused")))
        images, labels = world.holdings["b"].validation.take(torch.arange(3))
        net = world.builders["task"]().eval()
        for name in ("mean", "own"):
            net.load_state_dict(down.models[name])
            logits = net(images.float() / 255).detach()
            loss, accuracy = torch.nn.functional.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()
            assert told.scores[name] == pytest.approx(float(loss if score == "loss" else -accuracy), rel=1e-4)  # type: ignore[attr-defined]
    assert np.isfinite(told.scores["broken"])  # type: ignore[attr-defined]


def test_what_stands_in_the_way_of_ga_is_told(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="there is one client"):
        build_world(Experiment(FedAvg(aggregation=GA()), tiny, "c", sources="a"))
    with pytest.raises(BadInput, match="a, b would have none"):
        build_world(Experiment(FedAvg(aggregation=GA()), tiny, "c", validation=0.0))


@pytest.mark.parametrize("seed", range(4))
def test_the_direction_is_the_best_on_a_fine_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    changes = rng.normal(size=(3, 5)) * [[1.0], [0.3], [2.0]] + 0.4
    d0 = changes.mean(0)

    def value(w: Any) -> float:
        return float(w @ changes @ d0 + 0.5 * np.linalg.norm(d0) * np.linalg.norm(w @ changes))

    w = least_agreed(changes @ changes.T, 0.5)
    assert w.min() >= 0 and w.sum() == pytest.approx(1)
    best = min(value(np.array([i, j, 100 - i - j]) / 100) for i, j in itertools.product(range(101), range(101)) if i + j <= 100)
    assert value(w) <= best + 1e-9
    assert np.allclose(least_agreed(1e-8 * changes @ changes.T, 0.5), w, atol=1e-4)  # small steps of clients are no other problem


def test_omg_moves_by_the_mean_and_the_least_agreed_direction() -> None:
    part, clients = OMG(kappa=0.5, rate=0.8), Cohort(dict.fromkeys("ab", 0.0))
    start = Aggregate({"w": torch.tensor([1.0, 1.0]), "mean": torch.zeros(1)})
    ups = {"a": up(2.0, 1.0, buffer=1.0), "b": up(1.0, 4.0, buffer=2.0)}  # changes (1, 0) and (0, 3)
    got = part.combine(clients, ups.items(), start)
    d, d0 = np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([0.5, 1.5])
    grid = np.linspace(0, 1, 100001)
    lengths = np.sqrt(grid**2 + 9 * (1 - grid) ** 2)
    w = grid[(grid * 0.5 + (1 - grid) * 4.5 + 0.5 * np.linalg.norm(d0) * lengths).argmin()]
    dw = w * d[0] + (1 - w) * d[1]
    want = 1 + 0.8 * (d0 + 0.5 * np.linalg.norm(d0) / np.linalg.norm(dw) * dw)
    assert np.allclose(got.model["w"].numpy(), want, atol=1e-4) and got.model["mean"].item() == 1.5
    assert part.notes(got)["directions"] == pytest.approx({"a": w, "b": 1 - w}, abs=1e-3)


def test_the_limits_of_omg(tiny: DomainDataset) -> None:
    clients, start = Cohort(dict.fromkeys("abc", 0.0)), Aggregate({"w": torch.tensor([1.0, 1.0]), "mean": torch.zeros(1)})
    alike = {c: up(3.0, 0.0) for c in "abc"}  # everybody moved by (2, -1): one and a half times that
    assert torch.allclose(OMG().combine(clients, alike.items(), start).model["w"], torch.tensor([4.0, -0.5]))
    still = {c: up(1.0, 1.0) for c in "abc"}
    assert torch.equal(OMG().combine(clients, still.items(), start).model["w"], torch.tensor([1.0, 1.0]))
    against = {"a": up(2.0, 1.0), "b": up(0.0, 1.0)}  # they cancel
    assert torch.allclose(OMG().combine(clients, against.items(), start).model["w"], torch.tensor([1.0, 1.0]), atol=1e-5)
    with pytest.raises(NoReplies):
        OMG().combine(clients, [], start)
    one, two = (
        train(Experiment(FedAvg(batch=8, lr=0.01, aggregation=part), tiny, "c", rounds=2), None, watch=Silent()).state
        for part in (OMG(kappa=0.0), Uniform())
    )
    assert all(torch.allclose(one[k].double(), two[k].double(), atol=1e-5) for k in two)


def test_a_server_that_would_never_move_is_refused() -> None:
    with pytest.raises(BadInput, match="rate = 0, so that the model would never change"):
        OMG(rate=0.0)


def test_a_client_whose_validation_says_nothing_keeps_its_weight(tmp_path: Path, tiny: DomainDataset) -> None:
    """Of samples of one class there is no area under the curve, of either model: that is no gap of 0."""
    world = build_world(Experiment(FedAvg(), tiny, "c", metric="weighted_auc"))
    holding = world.holdings["a"]
    ((domain, index),) = holding.validation.parts
    one_class = Samples(((domain, index[domain.labels[index] == 0]),))
    world = replace(world, holdings={**world.holdings, "a": replace(holding, validation=one_class)})
    model = world.fresh("task")
    ga = GA(score="metric")
    scores = TaskRunner(world).run(ga.compare, MeanAndOwn(models={"mean": model, "own": model}), "a", Place(1, 1), MemoryStore(tmp_path))[0]

    class Answering(Cohort):
        def ask(self, task: Any, down: Any) -> Replies[Any]:
            others = {"b": Compared(scores={"mean": 0.3, "own": 0.1}), "c": Compared(scores={"mean": 0.2, "own": 0.1})}
            return Replies(iter({"a": scores, **others}.items()))

    after = ga.combine(Answering(dict.fromkeys("abc", 0.0)), {c: up(1.0) for c in "abc"}.items(), START)
    assert after.numbers["gaps"] == pytest.approx({"b": 0.2, "c": 0.1})
    assert after.numbers["next"] == pytest.approx(adjusted_weights(dict.fromkeys("abc", 1 / 3), {"b": 0.2, "c": 0.1}, 0.2))
