"""Robust parts in a method: the same numbers as by hand, in every method, with what a record and a secure sum need to know."""

from __future__ import annotations

import pytest
import torch

from tiny_settings import SETTINGS
from unseen import BadInput, Experiment, FedAvg, FedSB
from unseen.data.domain import DomainDataset
from unseen.experiment import read_experiment
from unseen.method import Replies
from unseen.methods import METHODS
from unseen.parts.aggregation import CEA, SHA, Aggregate, Mean, Uniform
from unseen.parts.agreement import GMA
from unseen.parts.combining import Combining, Up
from unseen.parts.robust import Median, NormBound, Trimmed
from unseen.runs.watch import Silent
from unseen.state import State, same_bits
from unseen.training import train

START = {"w": torch.tensor([1.0, 1.0]), "running_mean": torch.tensor([0.0])}


class Clients:
    """A cohort of which only the names and the entries are asked."""

    names = list("abcde")

    def entries(self, part: str = "whole", role: str = "task") -> list[str]:
        return ["w"] if part == "parameters" else ["w", "running_mean"]


def up(*w: float, buffer: float = 0.0, samples: int | None = None) -> Up:
    return Up(model={"w": torch.tensor(w), "running_mean": torch.tensor([buffer])}, samples=samples, perturbed=None)


def combined(combining: Combining, **ups: Up) -> Aggregate:
    return combining.combine(Clients(), Replies(iter(ups.items())), Aggregate(dict(START)))  # type: ignore[arg-type]


def test_the_median_and_the_trimmed_mean_by_hand() -> None:
    ups = {"a": up(0.0, 5.0, samples=1), "b": up(1.0, 7.0, samples=1), "c": up(-900.0, 900.0, buffer=900.0, samples=10**6)}
    assert combined(Combining(Median()), **ups).model["w"].tolist() == [0.0, 7.0]
    assert combined(Combining(Median()), **ups).model["running_mean"].tolist() == [0.0]
    assert combined(Combining(Trimmed()), **ups).model["w"].tolist() == [0.0, 7.0]
    five = {**ups, "d": up(3.0, 8.0), "e": up(2.0, 6.0)}
    assert combined(Combining(Trimmed(trim=0.2)), **five).model["w"].tolist() == [1.0, 7.0]
    assert combined(Combining(Trimmed(trim=0.0)), **ups).model["w"].tolist() == combined(Combining(Uniform()), **ups).model["w"].tolist()


def test_how_many_are_cut_and_a_trim_that_cuts_nobody() -> None:
    assert [Trimmed(trim=0.29).cut(100), Trimmed().cut(3), Trimmed(trim=0.49).cut(2), Trimmed(trim=0.49).cut(101)] == [29, 1, 0, 49]
    two = combined(Combining(Trimmed()), a=up(0.0, 0.0), b=up(2.0, 2.0))
    assert "leaves nobody out" in Trimmed().notes(two)["warning"] and two.model["w"].tolist() == [1.0, 1.0]
    assert Trimmed().notes(combined(Combining(Trimmed()), a=up(0.0, 0.0), b=up(2.0, 2.0), c=up(3.0, 3.0))) == {"trimmed": 1}
    for wrong in (0.5, -0.1):
        with pytest.raises(BadInput, match="trim is"):
            Trimmed(trim=wrong)


@pytest.mark.parametrize("bound", [NormBound(largest=2.0), NormBound(times=1.0)])
def test_a_long_change_is_cut_to_the_bound(bound: NormBound) -> None:
    ups = {"a": up(1.0, 2.0, buffer=1.0), "b": up(3.0, 1.0), "c": up(1.0, 1001.0, buffer=500.0)}  # changes of 1, 2 and 1000
    after = combined(Combining(Uniform(), bound=bound), **ups)  # both bounds are 2
    assert after.model["w"].tolist() == pytest.approx([(1 + 3 + 1) / 3, (2 + 1 + 3) / 3], rel=1e-6)
    assert float(after.model["running_mean"]) == pytest.approx((1 + 0 + 500 * 2 / 1000) / 3, rel=1e-6)
    assert bound.notes(after) == {"norms": {"a": 1.0, "b": 2.0, "c": 1000.0}, "bounded": 1}


def test_a_bound_goes_with_every_aggregation_and_counts_nothing_where_nothing_is_long() -> None:
    ups = {"a": up(1.0, 2.0, samples=1), "b": up(3.0, 1.0, samples=3)}
    plain, bounded = combined(Combining(Mean()), **ups), combined(Combining(Mean(), bound=NormBound(largest=2.0)), **ups)
    assert same_bits(plain.model, bounded.model) and plain.weights == bounded.weights
    assert NormBound(largest=2.0).notes(bounded)["bounded"] == 0
    far = combined(Combining(Median(), bound=NormBound(largest=1.0)), a=up(1.0, 4.0), b=up(1.0, 9.0), c=up(1.0, 1.0))
    assert far.model["w"].tolist() == pytest.approx([1.0, 2.0])


def test_a_bound_of_nothing_is_refused() -> None:
    for fields in ({"largest": 0.0}, {"times": 0.0}):
        with pytest.raises(BadInput, match="no model would ever change"):
            NormBound(**fields)


def test_networks_beside_the_model_are_aggregated_in_the_same_way() -> None:
    sent: dict[str, State] = {name: {"g": torch.tensor([value])} for name, value in (("a", 1.0), ("b", 2.0), ("c", 10**6))}
    for aggregation, wanted in ((Median(), 2.0), (Trimmed(), 2.0), (Uniform(), (3 + 10**6) / 3)):
        assert float(aggregation.merged(sent, dict.fromkeys(sent, 1.0))["g"]) == pytest.approx(wanted)
    assert float(Mean().merged(sent, {"a": 1.0, "b": 3.0})["g"]) == pytest.approx(7 / 4)


def test_what_needs_single_models_says_so() -> None:
    for part in (Mean(), Uniform()):
        assert not list(FedAvg(aggregation=part).needs_each())
    for part, word in ((Median(), "median"), (Trimmed(), "trimmed"), (CEA(), "cea"), (SHA(), "sha"), (GMA(), "gma")):
        (sentence,) = FedAvg(aggregation=part).needs_each()
        assert word in sentence
    (sentence,) = FedSB(bound=NormBound()).needs_each()
    assert sentence.startswith("bound")


@pytest.mark.parametrize("name", ["fedavg", "feddag"])
def test_a_bound_in_a_run(name: str, tiny: DomainDataset) -> None:
    values = {"aggregation": "trimmed", "bound": {"name": "norm", "largest": 0.5}}
    parts = read_experiment({"method": name, "set": values}).method
    method = METHODS[name](**{**SETTINGS[name].values, **{key: getattr(parts, key) for key in values}})
    (record,) = train(Experiment(method, tiny, "c", rounds=1), None, watch=Silent()).records
    norms = record["notes"]["norms"]
    assert not record["missing"] and set(norms) == {"a", "b"}
    assert record["notes"]["bounded"] == sum(norm > 0.5 for norm in norms.values()) and "leaves nobody out" in record["notes"]["warning"]
