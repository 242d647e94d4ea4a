"""Clipping, noise and what they spend, against independent values."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from unseen.errors import BadInput
from unseen.federation.site.policy import Privacy, Rejected
from unseen.federation.site.privacy import Accountant, epsilon, privatised
from unseen.methods import feddag
from unseen.payload import Payload, State, carries
from unseen.scoring import Scores


class Down(Payload):
    model: State = carries("model")


class Up(Payload):
    model: State = carries("model")


def closed_form(answers: int, noise: float, delta: float) -> float:
    """Mironov, "Renyi differential privacy", 2017: T answers have divergence T a / (2 z^2) of order a (Corollary 3), and so
    epsilon <= min over a of T a / (2 z^2) + log(1 / delta) / (a - 1) (Proposition 3)."""
    rate = answers / (2 * noise**2)
    return rate + 2 * math.sqrt(rate * math.log(1 / delta))


@given(answers=st.integers(1, 500), noise=st.floats(0.3, 20), delta=st.floats(1e-9, 1e-2))
def test_epsilon_against_the_closed_form_and_the_exact_curve(answers: int, noise: float, delta: float) -> None:
    """Between the exact trade-off of the Gaussian mechanism (Balle and Wang, 2018, Theorem 8) and Mironov's bound, and near both."""
    spent = epsilon([(noise, answers)], delta)
    sigma = noise / math.sqrt(answers)  # so many answers are one with this noise

    def delta_at(eps: float) -> float:
        near, far = 1 / (2 * sigma) - eps * sigma, -1 / (2 * sigma) - eps * sigma
        return float(norm.cdf(near) - math.exp(eps + norm.logcdf(far)))

    exact = brentq(lambda eps: delta_at(eps) - delta, 0, 2 * closed_form(answers, noise, delta)) if delta_at(0) > delta else 0.0
    assert exact <= spent * (1 + 1e-9) and spent <= closed_form(answers, noise, delta) * (1 + 1e-3)


@given(history=st.lists(st.tuples(st.floats(0.5, 10), st.integers(1, 50)), min_size=1, max_size=5))
def test_answers_with_different_noise_add_up(history: list[tuple[float, int]]) -> None:
    """Gaussian divergences add up as 1 / z^2, so a mixed history is one of a single noise."""
    total = sum(number / noise**2 for noise, number in history)
    assert epsilon(history, 1e-5) == pytest.approx(epsilon([(total**-0.5, 1)], 1e-5), rel=1e-6)


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
    scores = Scores(metrics={"accuracy": 0.5, "loss": 0.25}, samples=7, own={"accuracy": 0.5})
    assert privatised(scores, scores, Privacy(on=True, clip=1.0, noise=0.0)) == scores
    noisy = privatised(scores, scores, Privacy(on=True, clip=1.0, noise=1.0))
    assert isinstance(noisy, Scores) and noisy.metrics != scores.metrics and noisy.own != scores.own and noisy.samples == 7


def test_the_accountant_remembers_and_refuses(tmp_path: Path) -> None:
    privacy, file = Privacy(on=True, noise=4.0, most_epsilon=3.0), tmp_path / "privacy.json"
    spent = []
    with pytest.raises(Rejected, match="privacy: epsilon would be"):
        for _ in range(100):
            accountant = Accountant(privacy, file)  # a restart in between
            accountant.refuse_overspent()
            spent.append(accountant.spend())
    assert spent == sorted(spent) and spent[-1] <= 3.0 < epsilon([(4.0, len(spent) + 1)], 1e-5)
    less_noise = Accountant(dataclasses.replace(privacy, noise=8.0, most_epsilon=100.0), file)  # what was spent stays spent
    assert less_noise.spend() == epsilon([(4.0, len(spent)), (8.0, 1)], 1e-5)


@pytest.mark.parametrize("content", ["", "[]", '{"answers": [{"noise": -1, "number": 1}]}', '{"answers": [{"noise": 1}]}'])
def test_a_site_that_cannot_tell_what_it_spent_stops(content: str, tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text(content)
    with pytest.raises(BadInput, match="privacy was spent"):
        Accountant(Privacy(on=True), tmp_path / "privacy.json")


def test_opacus_is_imported_only_with_privacy_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    Accountant(Privacy(), tmp_path / "privacy.json")
    with pytest.raises(BadInput, match=r"pip install 'unseen\[privacy\]'"):
        Accountant(Privacy(on=True), tmp_path / "privacy.json")


def test_a_student_that_did_not_change_leaves_as_it_came() -> None:
    """FedDAG's global student is compared with the student of the question, not with the teacher that has the same names."""
    teacher, student = {"w": torch.zeros(4)}, {"w": torch.full((4,), 5.0)}
    down = feddag.Down(model=teacher, generator=None, student=student)
    up = feddag.Up(teacher=teacher, generator=None, perturbed=None, student=student, samples=None)
    private = privatised(up, down, Privacy(on=True, clip=1e-3, noise=1e-3))
    assert isinstance(private, feddag.Up) and private.student is not None
    torch.testing.assert_close(private.student["w"], student["w"], atol=1e-4, rtol=0)
    torch.testing.assert_close(private.teacher["w"], teacher["w"], atol=1e-4, rtol=0)


class Models(Payload):
    models: dict[str, State] = carries("model")


def test_each_of_several_models_is_compared_with_its_own() -> None:
    base = {"a": {"w": torch.zeros(3)}, "b": {"w": torch.full((3,), 7.0)}}
    private = privatised(Models(models=base), Models(models=base), Privacy(on=True, clip=1e-3, noise=1e-3))
    assert isinstance(private, Models)
    for name, state in base.items():
        torch.testing.assert_close(private.models[name]["w"], state["w"], atol=1e-4, rtol=0)


def test_text_cannot_be_noised_and_does_not_leave() -> None:
    class Note(Payload):
        note: str | None = carries("text")

    privacy = Privacy(on=True)
    assert privatised(Note(note=None), Note(note=None), privacy) == Note(note=None)
    with pytest.raises(Rejected, match="privacy: note is text"):
        privatised(Note(note="patient 7"), Note(note=None), privacy)
