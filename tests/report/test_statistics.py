"""Intervals and paired tests against scipy and against values worked out by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unseen.report.statistics import bootstrap, compare, holm, interval, paired

SOME = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=2, max_size=6)


@given(SOME)
def test_paired_tests_are_scipys(rows: list[tuple[int, int]]) -> None:
    first, second = ([row[i] / 10 for row in rows] for i in (0, 1))
    t, wilcoxon = paired(first, second)
    difference = np.subtract(first, second)
    if not difference.any():
        assert (t, wilcoxon) == (1.0, 1.0)
        return
    assert wilcoxon == pytest.approx(stats.wilcoxon(difference).pvalue)
    if np.ptp(difference) > 1e-9:
        assert t == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-6)
    else:
        assert t == 0.0  # no spread: the statistic is infinite


def test_the_t_test_by_hand() -> None:
    # differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 2 sqrt(3); with 2 degrees of freedom p = 1 - t / sqrt(2 + t^2)
    t = 2 * math.sqrt(3)
    assert paired([2, 4, 6], [1, 2, 3])[0] == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_too_few_pairs_have_no_p_value() -> None:
    assert paired([1.0], [2.0]) == (None, None) == paired([], [])
    assert interval([3.0]) is None and bootstrap(lambda drawn: {}, 1) == {}


@given(st.lists(st.floats(0, 100), min_size=2, max_size=10).filter(lambda v: np.std(v) > 1e-6))
def test_the_interval_is_scipys(values: list[float]) -> None:
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert interval(values) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_never_smaller_and_keeps_the_order(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(a is not None and p <= a <= 1 for p, a in zip(values, adjusted, strict=True))
    order = np.argsort(values, kind="stable")
    assert all(adjusted[a] <= adjusted[b] for a, b in pairwise(order))  # type: ignore[operator]


def test_methods_are_paired_by_domain_and_seed() -> None:
    a = {("x", 0): 80.0, ("x", 1): 82.0, ("y", 0): 60.0}
    b = {("x", 0): 79.0, ("y", 0): 58.0, ("y", 1): 0.0}
    c = {("z", 0): 1.0}
    rows = compare({"A": a, "B": b, "C": c})
    assert [(r.first, r.second, r.n) for r in rows] == [("A", "B", 2), ("A", "C", 0), ("B", "C", 0)]
    assert rows[0].difference == pytest.approx(1.5) and rows[1].difference is None
    assert rows[0].t == pytest.approx(stats.ttest_rel([80, 60], [79, 58]).pvalue) == rows[0].adjusted
    assert [(r.first, r.second) for r in compare({"A": a, "B": b, "C": c}, against="B")] == [("B", "A"), ("B", "C")]


def test_the_bootstrap_covers_the_mean_and_draws_whole_groups() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(10, 2, 60)
    low, high = bootstrap(lambda drawn: {"mean": float(values[drawn].mean())}, 60, draws=4000)["mean"]
    scipys = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=4000, random_state=1).confidence_interval
    assert (low, high) == pytest.approx((scipys.low, scipys.high), abs=0.1)
    copies, patients = np.repeat(values, 5), np.repeat(np.arange(60), 5).astype(str).tolist()
    grouped = bootstrap(lambda drawn: {"mean": float(copies[drawn].mean())}, 300, patients, draws=4000)["mean"]
    assert grouped[1] - grouped[0] == pytest.approx(high - low, rel=0.1)  # copies of a case say nothing new
