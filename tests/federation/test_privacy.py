"""Clipping, noise and what they spend, against independent values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from unseen.federation.policy import Privacy, Rejected
from unseen.federation.privacy import Accountant, epsilon, privatised
from unseen.payload import Payload, State
from unseen.scoring import Scores


class Down(Payload):
    model: State


class Up(Payload):
    model: State


@given(answers=st.integers(1, 500), noise=st.floats(0.3, 20), delta=st.floats(1e-9, 1e-2))
def test_epsilon_is_the_smallest_over_all_orders(answers: int, noise: float, delta: float) -> None:
    def at(order: float) -> float:
        return answers * order / (2 * noise**2) + math.log(1 / delta) / (order - 1)

    best = minimize_scalar(lambda t: at(1 + math.exp(t)), bounds=(-15, 15), method="bounded", options={"xatol": 1e-10})
    assert epsilon(answers, noise, delta) == pytest.approx(best.fun, rel=1e-6)


def test_an_update_is_clipped_and_noised_as_a_whole() -> None:
    base = {"w": torch.ones(60, 50), "b": torch.zeros(10), "n": torch.tensor(3)}
    trained = {"w": base["w"] + 3, "b": base["b"] - 4, "n": torch.tensor(9)}
    clipped = privatised(Up(model=trained), Down(model=base), Privacy(on=True, clip=0.5, noise=0.0))
    assert isinstance(clipped, Up)
    change = torch.cat([(clipped.model[k] - base[k]).reshape(-1).double() for k in "wb"])
    assert float(change.norm()) == pytest.approx(0.5, rel=1e-4) and clipped.model["n"] == 3
    assert float(clipped.model["w"][0, 0] - 1) / float(clipped.model["b"][0]) == pytest.approx(-3 / 4, rel=1e-3)
    noisy = privatised(Up(model=base), Down(model=base), Privacy(on=True, clip=0.5, noise=2.0))
    assert isinstance(noisy, Up)
    drawn = (noisy.model["w"] - base["w"]).numpy().reshape(-1)
    assert abs(drawn.mean()) < 0.1 and np.std(drawn) == pytest.approx(1.0, rel=0.1)
    again = privatised(Up(model=base), Down(model=base), Privacy(on=True, clip=0.5, noise=2.0))
    assert isinstance(again, Up) and not torch.equal(again.model["w"], noisy.model["w"])  # not from the run's seed


def test_scores_are_noised_and_small_updates_left_alone() -> None:
    scores = Scores(metrics={"accuracy": 0.5, "loss": 0.25}, samples=7)
    assert privatised(scores, scores, Privacy(on=True, clip=1.0, noise=0.0)) == scores
    noisy = privatised(scores, scores, Privacy(on=True, clip=1.0, noise=1.0))
    assert isinstance(noisy, Scores) and noisy.metrics != scores.metrics and noisy.samples == 7


def test_the_accountant_remembers_and_refuses(tmp_path: Path) -> None:
    privacy = Privacy(on=True, noise=4.0, most_epsilon=3.0)
    spent = []
    with pytest.raises(Rejected, match="privacy: epsilon would be"):
        for _ in range(100):
            accountant = Accountant(privacy, tmp_path / "privacy.json")  # a restart in between
            accountant.refuse_overspent("run")
            spent.append(accountant.spend("run"))
    assert spent == sorted(spent) and spent[-1] <= 3.0 < epsilon(len(spent) + 1, 4.0, 1e-5)
