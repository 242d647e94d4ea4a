"""Medians, trimmed means and bounded changes against numpy and scipy, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from unseen.errors import NoReplies
from unseen.ops.robust import change_norm, coordinate_median, scaled_change, trimmed_mean
from unseen.state import State


def models(number: int, seed: int = 0) -> list[State]:
    rng = np.random.default_rng(seed)
    return [
        {
            "w": torch.from_numpy(rng.normal(size=(3, 4)).astype(np.float32)),
            "running_var": torch.from_numpy(rng.uniform(size=5)),
            "num_batches_tracked": torch.tensor(int(rng.integers(100))),
        }
        for _ in range(number)
    ]


def column(states: list[State], name: str) -> np.ndarray:
    return np.stack([state[name].double().numpy() for state in states])


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7])
def test_the_median_is_numpys(number: int) -> None:
    states = models(number)
    got = coordinate_median(states)
    for name in ("w", "running_var"):
        assert got[name].dtype is states[0][name].dtype
        np.testing.assert_allclose(got[name].double(), np.median(column(states, name), axis=0), rtol=1e-6)
    assert int(got["num_batches_tracked"]) == max(int(s["num_batches_tracked"]) for s in states)


@pytest.mark.parametrize(("number", "cut"), [(1, 0), (3, 0), (3, 1), (4, 1), (9, 2), (9, 4)])
def test_the_trimmed_mean_is_scipys(number: int, cut: int) -> None:
    states = models(number, seed=1)
    got = trimmed_mean(states, cut)
    for name in ("w", "running_var"):
        np.testing.assert_allclose(got[name].double(), trim_mean(column(states, name), (cut + 0.5) / number, axis=0), rtol=1e-5, atol=1e-7)
    assert int(got["num_batches_tracked"]) == max(int(s["num_batches_tracked"]) for s in states)


def test_a_few_strange_models_stay_within_the_others() -> None:
    honest = models(5)
    strange = [{name: torch.full_like(value, 10**6) for name, value in honest[0].items()} for _ in range(2)]
    low, high = column(honest, "w").min(0), column(honest, "w").max(0)
    for got in (coordinate_median([*strange, *honest]), trimmed_mean([*strange, *honest], 2)):
        assert (got["w"].numpy() >= low).all() and (got["w"].numpy() <= high).all()


def test_of_no_model_there_is_no_median() -> None:
    for average in (coordinate_median, lambda none: trimmed_mean(none, 0)):
        with pytest.raises(NoReplies):
            average([])


def test_a_change_is_measured_over_the_named_entries_and_scaled_everywhere() -> None:
    start, reached = models(2)
    wanted = np.linalg.norm((reached["w"].double() - start["w"].double()).numpy())
    assert change_norm(reached, start, ["w"]) == pytest.approx(wanted, rel=1e-12) and change_norm(reached, start, []) == 0.0
    half = scaled_change(reached, start, 0.5)
    assert change_norm(half, start, ["w"]) == pytest.approx(wanted / 2, rel=1e-6)
    assert torch.allclose(half["running_var"], (reached["running_var"] + start["running_var"]) / 2)
    assert torch.equal(half["num_batches_tracked"], reached["num_batches_tracked"])
