"""Aggregations against sums worked out here: who assesses whom, what the scores do, and what a missing client means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tiny_settings import SETTINGS
from unseen import BadInput, Experiment, FedAvg
from unseen.client import Client
from unseen.data.domain import DomainDataset
from unseen.engines.tasks import Place, TaskRunner, find_task, path_of
from unseen.errors import NoReplies
from unseen.experiment import read_experiment
from unseen.method import Refused, Replies
from unseen.methods import METHODS
from unseen.ops.contribution import Scored
from unseen.parts import parts_of
from unseen.parts.adjusting import GA, OMG
from unseen.parts.aggregation import CEA, SHA, Aggregate, Aggregation, Candidates, Losses, Mean, Uniform
from unseen.parts.agreement import GMA
from unseen.parts.robust import Median, Trimmed
from unseen.payload import Nothing
from unseen.randomness import generator
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.state import State, same_bits
from unseen.training import train
from unseen.world import build_world

Loss = Callable[[str, str, State], float]


class Contribution(NamedTuple):
    """What an aggregation reads of an upload."""

    model: State
    samples: int | None
    perturbed: State | None


class Fake:
    """Clients that assess by a formula; some do not answer."""

    def __init__(self, names: str, loss: Loss, silent: str = "", number: int = 1, seed: int = 0) -> None:
        self.names, self.loss, self.silent, self.number, self.seed = list(names), loss, silent, number, seed
        self.asked: dict[str, list[str]] = {}

    def ask(self, task: Any, down: Mapping[str, Candidates]) -> Replies[Any]:  # type: ignore[override]
        self.asked = {e: sorted(d.models) for e, d in down.items()}
        return Replies(iter([(e, self.answer(e, d)) for e, d in sorted(down.items())]))

    def entries(self, part: str = "whole", role: str = "task") -> list[str]:
        return ["w"]

    def rng(self, *where: str | int) -> torch.Generator:
        return generator(self.seed, "server", self.number, *where)

    def answer(self, evaluator: str, down: Candidates) -> Losses | Refused:
        if evaluator in self.silent:
            return Refused("gone")
        return Losses(losses={c: self.loss(evaluator, c, m) for c, m in down.models.items()})


def up(value: float, samples: int | None = None, moved: float = 0.5) -> Contribution:
    return Contribution({"w": torch.tensor([value])}, samples, {"w": torch.tensor([value + moved])})


def by_name(evaluator: str, candidate: str, model: State) -> float:
    return {"a": 0.2, "b": 0.4, "c": 0.8}[candidate]


START = Aggregate({"w": torch.zeros(1)})
UPS = {"a": up(1.0, 10), "b": up(2.0, 20), "c": up(4.0, 70)}


def value(aggregate: Aggregate) -> float:
    return float(aggregate.model["w"])


def test_mean_and_uniform_by_hand() -> None:
    nobody = Fake("abc", by_name)
    weighted = Mean().combine(nobody, UPS.items(), START)
    assert value(weighted) == pytest.approx((10 * 1 + 20 * 2 + 70 * 4) / 100) and weighted.round == 1
    assert value(Uniform().combine(nobody, UPS.items(), START)) == pytest.approx(7 / 3)
    assert not nobody.asked


@pytest.mark.parametrize("part", [CEA(beta=0.5), SHA(beta=0.5)])
def test_scores_and_weights_by_hand(part: Aggregation) -> None:
    clients = Fake("abc", by_name)
    result = part.combine(clients, UPS.items(), START)
    assert clients.asked == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}
    assert result.numbers["scores"] == pytest.approx({"a": 1 / 0.6, "b": 1 / 1.2, "c": 1 / 2.4})  # 1 / (3 clients x the loss)
    roots = [math.sqrt(1 / loss) for loss in (0.2, 0.4, 0.8)]
    assert value(result) == pytest.approx((roots[0] * 1 + roots[1] * 2 + roots[2] * 4) / sum(roots))
    assert sum(result.weights.values()) == pytest.approx(1)


def test_sha_assesses_the_perturbed_model_and_averages_the_model() -> None:
    seen: dict[str, float] = {}

    def loss(evaluator: str, candidate: str, model: State) -> float:
        seen[candidate] = float(model["w"])
        return 1.0

    for part, shift in ((SHA(), 0.5), (CEA(), 0.0)):
        assert value(part.combine(Fake("abc", loss), UPS.items(), START)) == pytest.approx(7 / 3)
        assert seen == {"a": 1.0 + shift, "b": 2.0 + shift, "c": 4.0 + shift}


def test_own_validation_is_included_on_request() -> None:
    clients = Fake("abc", lambda e, c, m: 0.9 if e == c else 0.3)
    result = CEA(own=True).combine(clients, UPS.items(), START)
    assert clients.asked == {e: ["a", "b", "c"] for e in "abc"}
    assert result.numbers["scores"] == pytest.approx(dict.fromkeys("abc", 1 / 1.5))  # Eq. 5 as printed: 0.9 + 0.3 + 0.3


def test_c_evaluators_are_drawn_anew_each_round_and_do_not_move_the_scale() -> None:
    ups = {name: up(1.0) for name in "abcdef"}
    drawn = []
    for number in range(12):
        clients = Fake("abcdef", lambda e, c, m: 0.5, number=number)
        result = CEA(evaluators=2).combine(clients, ups.items(), START)
        drawn.append(tuple(clients.asked))
        assert len(clients.asked) == 2
        assert result.numbers["scores"] == pytest.approx(dict.fromkeys("abcdef", 1 / (6 * 0.5)))
    assert len(set(drawn)) > 5 and {e for pair in drawn for e in pair} == set("abcdef")
    again = Fake("abcdef", lambda e, c, m: 0.5, number=3)
    CEA(evaluators=2).combine(again, ups.items(), START)
    assert tuple(again.asked) == drawn[3]


def test_another_seed_draws_other_evaluators() -> None:
    ups, drawn = {name: up(1.0) for name in "abcdef"}, set()
    for seed in range(8):
        clients = Fake("abcdef", lambda e, c, m: 0.5, seed=seed)
        SHA(evaluators=2).combine(clients, ups.items(), START)
        drawn.add(tuple(clients.asked))
    assert len(drawn) > 3


def test_a_lone_evaluators_own_model_gets_the_mean_score() -> None:
    (lone,) = "ab"[int(torch.randperm(2, generator=generator(0, "server", 1, "evaluators"))[0])]
    clients = Fake("ab", lambda e, c, m: 0.25)
    result = SHA(evaluators=1).combine(clients, {"a": up(1.0), "b": up(3.0)}.items(), START)
    assert list(clients.asked) == [lone] and lone not in result.numbers["scores"]
    assert value(result) == pytest.approx(2.0) and lone not in result.history


def test_history_joins_only_what_did_better_and_is_kept_before_averaging() -> None:
    past = {"a": [Scored({"w": torch.tensor([10.0])}, 9.0), Scored({"w": torch.tensor([20.0])}, 0.1)]}
    result = SHA(k=2, beta=1.0).combine(
        Fake("ab", lambda e, c, m: 0.5), {"a": up(1.0), "b": up(3.0)}.items(), Aggregate({}, 4, history=past)
    )
    # scores 1 / (2 x 0.5) = 1; a's becomes the mean of 1 and 9 over the models 1 and 10
    assert value(result) == pytest.approx((5 * 5.5 + 1 * 3.0) / 6)
    assert result.numbers["scores"] == pytest.approx({"a": 1.0, "b": 1.0})
    assert [(float(h.model["w"]), h.score) for h in result.history["a"]] == [(10.0, 9.0), (20.0, 0.1), (1.0, pytest.approx(1.0))]
    assert [(float(h.model["w"]), h.score) for h in result.history["b"]] == [(3.0, pytest.approx(1.0))]


def test_the_cap_is_four_k_unless_told() -> None:
    falling = [Scored({"w": torch.tensor([float(i)])}, 100.0 - i) for i in range(9)]  # every one is worth keeping
    for part, kept in ((SHA(k=2), 8), (SHA(k=2, cap=3), 3), (SHA(k=0), 0)):
        result = part.combine(
            Fake("ab", lambda e, c, m: 0.5), {"a": up(1.0), "b": up(1.0)}.items(), Aggregate({}, 9, history={"a": falling})
        )
        assert len(result.history["a"]) == kept


def test_a_client_that_is_missing_keeps_its_history_and_does_not_count() -> None:
    past = {"c": [Scored({"w": torch.tensor([10.0])}, 9.0)]}
    clients = Fake("abc", by_name)
    result = SHA().combine(clients, [("a", UPS["a"]), ("b", UPS["b"])], Aggregate({}, 4, history=past))
    assert clients.asked == {"a": ["b"], "b": ["a"]} and set(result.weights) == {"a", "b"}
    assert result.history["c"] == past["c"]
    assert result.numbers["scores"] == pytest.approx({"a": 1 / 0.6, "b": 1 / 1.2})  # as if all three had assessed


def test_what_a_client_left_out_of_its_answer_does_not_stop_the_round() -> None:
    """From another machine anything may come. Without a count a model weighs nothing, unperturbed it has no score."""
    bare = Contribution({"w": torch.tensor([9.0])}, None, None)
    assert value(Mean().combine(Fake("abc", by_name), {**UPS, "c": bare}.items(), START)) == pytest.approx((10 * 1 + 20 * 2) / 30)
    clients = Fake("abc", lambda e, c, m: 0.5)
    result = SHA().combine(clients, {**UPS, "c": bare}.items(), START)
    assert clients.asked == {"a": ["b"], "b": ["a"]} and set(result.numbers["scores"]) == set(result.history) == {"a", "b"}
    assert value(result) == pytest.approx((1 + 2 + 9) / 3)  # the mean of equal scores


def test_evaluators_that_fail_are_scaled_out_and_without_any_all_weigh_the_same() -> None:
    some = CEA().combine(Fake("abc", by_name, silent="b"), UPS.items(), START)
    assert some.numbers["scores"] == pytest.approx({"a": 1 / 0.6, "b": 1 / 1.2, "c": 1 / 2.4})
    for part in (CEA(), SHA()):
        none = part.combine(Fake("abc", by_name, silent="abc"), UPS.items(), START)
        assert value(none) == pytest.approx(7 / 3) and not none.numbers["scores"] and not none.history
        alone = part.combine(Fake("abc", by_name), [("b", UPS["b"])], START)
        assert value(alone) == 2.0
        with pytest.raises(NoReplies):
            part.combine(Fake("abc", by_name), [], START)


def client_of(data: DomainDataset, method: Any, name: str) -> tuple[Client, Any]:
    world = build_world(Experiment(method, data, "c"))
    caught: list[Client] = []

    def catch(down: Nothing, client: Client) -> Nothing:
        caught.append(client)
        return down

    TaskRunner(world).run(catch, Nothing(), name, Place(1, 1), MemoryStore(Path("unused")))
    return caught[0], world


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_assessment_is_the_mean_loss_over_the_validation_part(tiny: DomainDataset, dtype: torch.dtype) -> None:
    method = FedAvg(aggregation=SHA(float64=dtype is torch.float64))
    client, world = client_of(tiny, method, "b")
    fresh = world.fresh("task")
    models = {n: {k: v.to(dtype) * s if v.is_floating_point() else v for k, v in fresh.items()} for n, s in (("x", 1.0), ("y", 1.3))}
    assert isinstance(method.aggregation, SHA)
    losses = method.aggregation.assess(Candidates(models=models), client).losses
    images, labels = (t for t in world.holdings["b"].validation.take(torch.arange(3)))
    for name, state in models.items():
        net = world.builders["task"]().to(dtype).eval()
        net.load_state_dict(state)
        total = 0.0
        for image, label in zip(images, labels, strict=True):
            logits = net((image[None].float() / 255).to(dtype))[0].tolist()
            total += math.log(sum(math.exp(v) for v in logits)) - logits[int(label)]
        assert losses[name] == pytest.approx(total / 3, rel=1e-12 if dtype is torch.float64 else 1e-5)
    assert client.build("task", fresh).fc.weight.dtype is torch.float32  # the pool's networks stay as they were


def test_a_model_that_the_perturbation_broke_counts_as_bad_not_as_an_error(tiny: DomainDataset) -> None:
    method = FedAvg(aggregation=SHA())
    client, world = client_of(tiny, method, "b")
    good = world.fresh("task")
    broken = {k: v * 1e30 if v.is_floating_point() else v for k, v in good.items()}
    losses = method.aggregation.assess(Candidates(models={"good": good, "broken": broken}), client).losses  # type: ignore[attr-defined]
    assert losses["broken"] == 1e9 and losses["good"] < 3


def test_the_task_is_found_by_its_path() -> None:
    method = FedAvg(aggregation=CEA())
    assert isinstance(method.aggregation, CEA)
    assert path_of(method.aggregation.assess, method) == "aggregation.assess"
    assert find_task("aggregation.assess", method) == method.aggregation.assess


def test_sha_with_nothing_to_it_is_the_uniform_mean(tiny: DomainDataset) -> None:
    one = train(Experiment(FedAvg(batch=8, lr=0.01, aggregation=SHA(beta=0.0, k=0)), tiny, "c", rounds=2), None, watch=Silent())
    two = train(Experiment(FedAvg(batch=8, lr=0.01, aggregation=Uniform()), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(one.state, two.state)


class Listening(Silent):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def say(self, message: str) -> None:
        self.heard.append(message)


def test_the_record_says_what_share_of_the_weights_moved(tiny: DomainDataset) -> None:
    for part, warned in ((SHA(), True), (SHA(float64=True), False), (SHA(rho=0.0), False)):
        watch = Listening()
        records = train(Experiment(FedAvg(batch=8, aggregation=part), tiny, "c", rounds=2), None, watch=watch).records
        notes = records[0]["notes"]
        assert set(notes["perturbed_share"]) == {"a", "b"} and sum(notes["weights"].values()) == pytest.approx(1)
        assert [("warning" in r["notes"]) for r in records] == [warned] * 2
        assert len([m for m in watch.heard if "rho" in m]) == warned  # once, not every round
        low, high = (0.9, 1.0) if part.float64 else (0.0, 0.5)
        assert all(low <= share <= high for share in notes["perturbed_share"].values())
    plain = train(Experiment(FedAvg(batch=8), tiny, "c", rounds=1), None, watch=Silent())
    assert plain.records[0]["notes"] == {}


def test_what_stands_in_the_way_is_told_before_round_1(tiny: DomainDataset) -> None:
    for part in (SHA(), CEA()):
        with pytest.raises(BadInput, match="there is one client"):
            build_world(Experiment(FedAvg(aggregation=part), tiny, "c", sources="a"))
        with pytest.raises(BadInput, match="a, b would have none"):
            build_world(Experiment(FedAvg(aggregation=part), tiny, "c", validation=0.0))
    build_world(Experiment(FedAvg(), tiny, "c", validation=0.0))


def test_parts_are_read_from_configuration() -> None:
    values = {"method": "fedavg", "set": {"aggregation": {"name": "sha", "rho": 0.01, "eps": "sign"}}}
    assert read_experiment(values).method.aggregation == SHA(rho=0.01, eps="sign")  # type: ignore[attr-defined]
    assert read_experiment({"method": "fedavg", "set": {"aggregation": "cea"}}).method.aggregation == CEA()  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="did you mean 'mean'"):
        read_experiment({"method": "fedavg", "set": {"aggregation": "meen"}})
    with pytest.raises(BadInput, match="rho is 2"):
        SHA(rho=2.0)


# What each aggregation adds to what leaves a client.
ADDED: dict[Aggregation, set[tuple[str, str]]] = {
    Mean(): {("train", "samples")},
    Uniform(): set(),
    CEA(): {("assess", "losses")},
    SHA(rho=0.01): {("train", "perturbed"), ("assess", "losses")},
    Median(): set(),
    Trimmed(): set(),
    GA(): {("compare", "scores")},
    OMG(): set(),
    GMA(): {("train", "samples")},
}
_ADDED = {fields for part in ADDED.values() for fields in part}
# What leaves whatever the aggregation: what a method's own table says, less what its usual aggregation adds.
ALWAYS: dict[str, set[tuple[str, str]]] = {
    name: {(task, field) for task, _, field in (leaving.partition(".") for leaving in SETTINGS[name].leaves.split())} - _ADDED
    for name, cls in METHODS.items()
    if "aggregation" in parts_of(cls)
}


def test_every_method_that_takes_an_aggregation_takes_each() -> None:
    assert {name: parts_of(METHODS[name])["aggregation"] for name in ALWAYS} == {name: [part.name for part in ADDED] for name in ALWAYS}
    assert ALWAYS["elcfs"] == {("spectra", "low"), ("train", "model")} and ALWAYS["fedavg"] == {("train", "model")}
    assert ALWAYS["feddag"] == {("train", "teacher"), ("train", "generator")}


@pytest.mark.parametrize("part", ADDED, ids=lambda part: part.name)
@pytest.mark.parametrize("name", ALWAYS)
def test_every_method_runs_with_it_and_only_what_it_needs_leaves(name: str, part: Aggregation, few: DomainDataset) -> None:
    experiment = Experiment(METHODS[name](**{**SETTINGS[name].values, "aggregation": part}), few, "c", rounds=2)
    direct, bytewise = (train(experiment, None, watch=Silent(), through_bytes=b) for b in (False, True))
    assert same_bits(direct.state, bytewise.state) and direct.records == bytewise.records
    rows = [row for record in direct.records for row in record["travelled"] if row["direction"] == "sent"]
    assert {(row["task"], row["field"]) for row in rows} == ALWAYS[name] | ADDED[part]
    for record in direct.records:
        assert not record["missing"]
        assert set(record["notes"].get("scores", {})) == ({"a", "b"} if part.name in ("cea", "sha") else set())
        assert all(share > 0.5 for share in record["notes"].get("perturbed_share", {}).values())  # a gradient was there to climb


@pytest.mark.parametrize("name", ALWAYS)
def test_the_weights_reach_the_model_in_every_method(name: str, few: DomainDataset) -> None:
    """18 and 14 samples: the weighted and the plain mean differ."""
    values = SETTINGS[name].values
    one, two = (
        train(Experiment(METHODS[name](**{**values, "aggregation": part}), few, "c", rounds=1), None, watch=Silent()).state
        for part in (Mean(), Uniform())
    )
    assert not same_bits(one, two)


@pytest.mark.parametrize("name", ALWAYS)
def test_every_method_tells_what_stands_in_the_way_of_its_aggregation(name: str, tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="a, b would have none"):
        build_world(Experiment(METHODS[name](aggregation=CEA()), tiny, "c", validation=0.0))
