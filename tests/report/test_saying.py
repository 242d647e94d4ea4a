"""What is said of runs in one sentence: who is ahead, and whether these runs can tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unseen.report.saying import what_was_found
from unseen.report.statistics import interval_of, interval_within
from unseen.report.tables import Cell, Stat
from unseen.report.telling import best_of


def runs(method: str, **scores: list[float]) -> list[Cell]:
    """By unseen domain, a score for each seed."""
    return [
        Cell(method, fold, seed, [{"round": 1, "metric": "accuracy", "source_mean": {"accuracy": 0.5}, "target": {fold: {"accuracy": s}}}])  # type: ignore[list-item,typeddict-item]
        for fold, row in scores.items()
        for seed, s in enumerate(row)
    ]


AHEAD = runs("FedSB", x=[0.80, 0.82, 0.84], y=[0.60, 0.62, 0.64])
BEHIND = runs("FedAvg", x=[0.70, 0.71, 0.75], y=[0.50, 0.53, 0.52])
LEVEL = runs("FedDyn", x=[0.90, 0.72, 0.84], y=[0.50, 0.63, 0.66])


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([], ""),
        (runs("A", x=[0.5]), "A reaches 50.0 % accuracy on x, one seed. How much of that is chance, one seed cannot tell."),
        (AHEAD, "FedSB reaches 72.0 % accuracy on average over 2 unseen domains, 3 seeds."),
        (
            [*AHEAD, *BEHIND],
            "FedSB has the highest accuracy on average over 2 unseen domains: 72.0 %, 10.2 points more than the next, FedAvg. "
            "These runs tell the two apart (paired t-test, p < 0.05).",
        ),
        (
            [*AHEAD, *LEVEL],
            "FedSB has the highest accuracy on average over 2 unseen domains: 72.0 %, 1.2 points more than the next, FedDyn "
            "(95 % interval -6.9 to +9.3). These runs cannot tell the two apart.",
        ),
        (
            [*AHEAD, *BEHIND, *LEVEL, *runs("Other", x=[0.60, 0.82, 0.74], y=[0.70, 0.52, 0.64])],
            "FedSB has the highest accuracy on average over 2 unseen domains: 72.0 %, 1.2 points more than the next, FedDyn "
            "(95 % interval -6.9 to +9.3). These runs cannot tell it from FedDyn and Other.",
        ),
        (
            [*runs("A", x=[0.5]), *runs("B", x=[0.4])],
            "A has the highest accuracy on x: 50.0 %, 10.0 points more than the next, B. One seed cannot tell the two apart: run more.",
        ),
        (
            [cell for name, lift in (("A", 0.5), ("B", 0.4), ("C", 0.3)) for cell in runs(name, w=[lift], x=[lift + 0.1], y=[lift + 0.2])],
            "A has the highest accuracy on average over 3 unseen domains: 60.0 %, 10.0 points more than the next, B. "
            "One seed cannot tell them apart: run more.",
        ),
        (
            [*AHEAD, *runs("A", x=[0.9, 0.9, 0.9])],  # best on x, but it has no y: it is not compared
            "FedSB reaches 72.0 % accuracy on average over 2 unseen domains, 3 seeds.",
        ),
        (
            [*runs("A", x=[0.5, 0.52, 0.53, 0.99, 0.99, 0.99]), *runs("B", x=[0.6, 0.62, 0.63])],  # ahead by seeds that B does not have
            "A has the highest accuracy on x: 75.3 %. Over the unseen domains and seeds that both have, it is 10.0 points below the next, "
            "B: run the two on the same.",
        ),
        (
            [*runs("A", x=[0.5, 0.99]), *runs("B", x=[0.6])],
            "A has the highest accuracy on x: 74.5 %. Over the unseen domains and seeds that both have, it is 10.0 points below the next, "
            "B: run the two on the same.",
        ),
        (
            [*runs("A", x=[0.80, 0.81, 0.82]), *runs("B", x=[0.70, 0.71, 0.72])],
            "A has the highest accuracy on x: 81.0 %, 10.0 points more than the next, B. "
            "These runs tell the two apart (paired t-test, p < 0.05).",
        ),
        (
            [*runs("A", x=[0.80, 0.81, 0.82]), *runs("B", x=[0.80, 0.81, 0.82])],
            "A has the highest accuracy on x: 81.0 %, 0.0 points more than the next, B (95 % interval +0.0 to +0.0). "
            "These runs cannot tell the two apart.",
        ),
    ],
)
def test_the_sentence(cells: list[Cell], said: str) -> None:
    assert what_was_found(cells, "last") == said


def test_the_interval_said_is_students() -> None:
    differences = [a.scores("last")[a.fold] - b.scores("last")[b.fold] for a, b in zip(AHEAD, LEVEL, strict=True)]
    low, high = stats.t.interval(0.95, 5, loc=sum(differences) / 6, scale=stats.sem(differences))
    assert f"{low:+.1f} to {high:+.1f}" in what_was_found([*AHEAD, *LEVEL], "last")


def test_a_best_that_is_clear_of_one_alone_is_not_clear() -> None:
    scores = {"a": {0: 80.0, 1: 82.0, 2: 84.0}, "b": {0: 70.0, 1: 71.0, 2: 75.0}, "c": {0: 90.0, 1: 72.0, 2: 83.0}}
    best = best_of(scores)
    assert best is not None and best.name == "a" and best.behind == ("c", "b") and best.told == {"b"} and not best.clear


def test_ahead_is_only_who_is_ahead_over_what_both_have() -> None:
    a = {0: 50.0, 1: 52.0, 2: 53.0, 3: 99.0, 4: 99.0, 5: 99.0}
    best = best_of({"a": a, "b": {0: 60.0, 1: 62.0, 2: 64.0}})
    assert best is not None and best.name == "a" and not best.told
    best = best_of({"a": a, "b": {0: 40.0, 1: 42.0, 2: 44.0}})
    assert best is not None and best.told == {"b"}


@pytest.mark.parametrize(("lead", "told"), [(10.0, {"b"}), (1e-9, {"b"}), (0.0, set())])
def test_equal_differences_are_certain_but_where_they_are_zero(lead: float, told: set[str]) -> None:
    behind = {0: 70.0, 1: 71.1, 2: 72.3}
    best = best_of({"a": {key: value + lead for key, value in behind.items()}, "b": behind})
    assert best is not None and best.name == "a" and best.told == told


def test_two_equal_differences_are_too_few() -> None:
    best = best_of({"a": {0: 80.0, 1: 81.0}, "b": {0: 70.0, 1: 71.0}})
    assert best is not None and not best.told


@given(st.floats(0.1, 99.9), st.floats(0.01, 50), st.integers(2, 10))
def test_an_interval_stays_within_the_range_and_around_the_mean(mean: float, std: float, n: int) -> None:
    low, high = interval_within(Stat(mean, std, n)) or (0.0, 0.0)
    assert 0 <= low <= mean <= high <= 100
    low, high = interval_within(Stat(mean, std, n), 0.0, float("inf")) or (0.0, 0.0)
    assert 0 <= low <= mean <= high


def test_for_small_deviations_it_is_students_interval() -> None:
    stat = Stat(70.0, 0.01, 3)
    assert interval_within(stat) == pytest.approx(interval_of(stat), abs=1e-4)
    assert interval_within(stat, 0.0, float("inf")) == pytest.approx(interval_of(stat), abs=1e-4)
    assert interval_within(Stat(120.0, 5.0, 3)) == interval_of(Stat(120.0, 5.0, 3))  # a metric of one's own, outside
    assert interval_within(Stat(100.0, 0.0, 3)) == (100.0, 100.0) and interval_within(Stat(70.0, None, 1)) is None
