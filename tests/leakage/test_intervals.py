"""The figures against scipy, against counting by hand, and against what pure chance does."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unseen.leakage.attempts import membership_attempt
from unseen.leakage.intervals import alike_by_chance, area_under_curve, clopper_pearson, few_by_chance, separation

SCORES = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=8)


@given(SCORES, SCORES)
def test_the_area_is_the_share_of_pairs_in_the_right_order(inside: list[float], outside: list[float]) -> None:
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside]
    assert area_under_curve(np.array(inside), np.array(outside)) == pytest.approx(sum(pairs) / len(pairs))


@given(st.integers(1, 60), st.data())
def test_the_exact_interval_is_scipys(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    theirs = stats.binomtest(successes, trials).proportion_ci(0.99, "exact")
    assert clopper_pearson(successes, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize("mistaken", [0, 1])
def test_chance_counts_every_order(mistaken: int) -> None:
    orders = set(permutations("iiiooo"))  # three members among three others

    def before(order: tuple[str, ...]) -> int:
        limit = [place for place, who in enumerate(order) if who == "o"][mistaken]
        return order[:limit].count("i")

    for found in (1, 2, 3):
        assert few_by_chance(found, 3, 3, mistaken) == pytest.approx(np.mean([before(order) >= found for order in orders]))


def test_equal_scores_are_guessing_and_clear_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    same = separation(rng.normal(size=150), rng.normal(size=150))
    assert same.low is not None and same.high is not None and same.low < 0.5 < same.high
    assert membership_attempt("w", "a", same, 1.0, "").outcome == "guessing"
    assert membership_attempt("w", "a", same, 0.7, "").outcome == "silent"  # the control failed: nothing can be said
    apart = separation(rng.normal(3, 1, 150), rng.normal(size=150))
    assert apart.low is not None and apart.low > 0.9 and membership_attempt("w", "a", apart, None, "").outcome == "better"
    turned = separation(rng.normal(-3, 1, 150), rng.normal(size=150))
    assert membership_attempt("w", "a", turned, None, "").outcome == "better"


def test_a_few_sure_ones_count_though_the_rest_is_chance() -> None:
    rng = np.random.default_rng(1)
    inside = np.concatenate([np.full(20, 10.0), rng.normal(size=130)])
    found = separation(inside, rng.normal(size=150))
    assert found.found >= 20 / 150 and found.by_chance < 0.001
    assert membership_attempt("w", "a", found, None, "").outcome == "better"


def test_images_of_one_patient_are_drawn_together() -> None:
    rng = np.random.default_rng(2)
    inside, outside = (np.repeat(rng.normal(size=10), 20) for _ in range(2))
    alone = separation(inside, outside)
    groups = [f"{side}/{n // 20}" for side in "io" for n in range(200)]
    whole = separation(inside, outside, groups)
    assert alone.low is not None and alone.high is not None and whole.low is not None and whole.high is not None
    assert whole.high - whole.low > 2 * (alone.high - alone.low)


def test_a_broken_model_is_no_member() -> None:
    assert separation([float("nan"), 1.0], [0.0, 0.5]).auc == 0.5


def test_found_images_that_are_all_alike_are_no_evidence() -> None:
    rng = np.random.default_rng(3)
    one = rng.random(40)
    one[5] = 2.0  # likest to one that trained: half of all would be
    assert 0.4 < alike_by_chance(np.stack([one] * 8), 20) < 0.6
    each = np.eye(8, 40) + 0.1 * rng.random((8, 40))
    assert alike_by_chance(each, 20) < 0.005
    assert alike_by_chance(each[:, ::-1], 20) > 0.99
