"""Clipping and noise on what leaves a site, against independent values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.federation.site import privacy as module
from unseen.federation.site.policy import Privacy, Rejected
from unseen.federation.site.privacy import privatised
from unseen.methods import feddag
from unseen.payload import Payload, State, carries
from unseen.scoring import Model, Scores

QUIET = 1e-6  # the least noise that there is: what is clipped can be seen
METRICS = ("loss", "accuracy", "weighted_auc")


class Down(Payload):
    model: State = carries("model")


class Up(Payload):
    model: State = carries("model")


def left(up: State, down: State, clip: float = 1.0, noise: float = QUIET) -> State:
    private = privatised(Up(model=up), Down(model=down), Privacy(on=True, clip=clip, noise=noise))
    assert isinstance(private, Up)
    return private.model


def test_an_update_is_clipped_and_noised_as_a_whole() -> None:
    base = {"w": torch.ones(60, 50), "b": torch.zeros(10), "n": torch.tensor(3)}
    trained = {"w": base["w"] + 3, "b": base["b"] - 4, "n": torch.tensor(9)}
    clipped = left(trained, base, clip=0.5)
    change = torch.cat([(clipped[k] - base[k]).reshape(-1).double() for k in "wb"])
    assert float(change.norm()) == pytest.approx(0.5, rel=1e-3) and clipped["n"] == 3
    assert float(clipped["w"][0, 0] - 1) / float(clipped["b"][0]) == pytest.approx(-3 / 4, rel=1e-3)
    noisy, again = (left(base, base, clip=0.5, noise=2.0) for _ in range(2))
    drawn = (noisy["w"] - base["w"]).numpy().reshape(-1)
    assert abs(drawn.mean()) < 0.1 and np.std(drawn) == pytest.approx(1.0, rel=0.1)
    assert not torch.equal(again["w"], noisy["w"])  # not from the run's seed


@given(
    numbers=st.lists(st.floats(-1e307, 1e307), min_size=1, max_size=12),
    clip=st.sampled_from([1e-30, 1e-3, 1.0, 7.3, 1e30]),
    scale=st.sampled_from([1e-300, 1e-5, 1.0]),
)
def test_whatever_is_finite_is_clipped(numbers: list[float], clip: float, scale: float) -> None:
    """The norm before the noise, in exact arithmetic, whatever the sizes; the direction stays, and what is short enough is left alone."""
    values = np.array(numbers) * scale
    clipped = module._clip(lambda: iter([values]), clip)(values)
    assert np.isfinite(clipped).all() and math.hypot(*(clipped / clip)) <= 1
    if np.abs(values).max() > 0 and math.hypot(*(values / np.abs(values).max())) * np.abs(values).max() < 0.99 * clip:
        assert np.array_equal(clipped, values)
    elif np.abs(values).max() > clip:
        cosine = np.dot(values / np.abs(values).max(), clipped / clip) / math.hypot(*(values / np.abs(values).max()))
        assert cosine == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_norm_is_not_a_number(bad: float) -> None:
    """Clipping does not rely on the checks before it."""
    for order in ([1.0, bad], [bad, 1.0]):
        with pytest.raises(Rejected, match="not finite"):
            module._clip(lambda order=order: (np.array([number]) for number in order), 1.0)


def test_a_norm_over_several_parts_and_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are worked on in parts; here of 7 numbers. 3, 4 and 12 have the norm 13."""
    monkeypatch.setattr(module, "_AT_ONCE", 7)
    change = {"a": torch.zeros(4, 5), "b": torch.zeros(20), "c": torch.tensor(12.0)}
    change["a"][3, 3], change["b"][19] = 3.0, -4.0
    zeros = {key: torch.zeros_like(value) for key, value in change.items()}
    private = left(change, zeros, clip=1.3)
    for key, value in change.items():
        torch.testing.assert_close(private[key], value / 10, atol=2e-5, rtol=0)
    private = left({k: v + 5 for k, v in change.items()}, {k: torch.full_like(v, 5.0) for k, v in change.items()}, clip=1.3)
    for key, value in change.items():
        torch.testing.assert_close(private[key], value / 10 + 5, atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_leaves_lies_on_the_grid(dtype: torch.dtype) -> None:
    """Noise of 1.5 is 1.5 * 2^32 steps. A number of any precision that left is a whole number of steps, whatever it was before."""
    change = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype) / 100
    private = left({"w": change}, {"w": torch.zeros(1000, dtype=dtype)}, noise=1.5)["w"]
    steps = private.double() * 2**32
    assert private.dtype == dtype and torch.equal(steps, steps.round()) and private.unique().numel() > 100
    inexact = change.double() + torch.randn(1000, dtype=torch.float64)
    assert not torch.equal(inexact * 2**32, (inexact * 2**32).round())


def test_scores_are_noised_under_the_same_names() -> None:
    """Where a metric is missing, and how many samples there were, cannot be told: undefined metrics are noise around 0."""
    privacy = Privacy(on=True, noise=QUIET, announced_samples=250)
    whole = Scores(metrics={"accuracy": 0.5, "loss": 0.25, "weighted_auc": 0.75}, samples=7, own=None)
    odd = Scores(metrics={"loss": 0.25, "of one class alone": 0.5}, samples=0, own={})
    for scores in (whole, odd):
        private = privatised(scores, Model(model={}), privacy, METRICS)
        assert isinstance(private, Scores) and tuple(private.metrics) == METRICS and private.samples == 250
        assert all(abs(private.metrics[name] - scores.metrics.get(name, 0.0)) < 1e-4 for name in METRICS)
        assert private.own is None if scores.own is None else tuple(private.own) == METRICS
    noisy = privatised(whole, Model(model={}), Privacy(on=True), METRICS)
    assert isinstance(noisy, Scores) and all(noisy.metrics[name] != whole.metrics[name] for name in METRICS) and noisy.samples == 100
    with pytest.raises(Rejected, match="nobody fixed the names of the numbers in metrics"):
        privatised(whole, Model(model={}), privacy)


class Candidates(Payload):
    models: dict[str, State] = carries("model")


class Losses(Payload):
    losses: dict[str, float] = carries("score", of="models")
    steps: int = carries("number")
    each: list[float] = carries("statistic")
    samples: int | None = carries("count")


def test_scores_of_candidates_are_about_those_that_were_asked_for() -> None:
    down = Candidates(models={"a": {"w": torch.zeros(1)}, "b": {"w": torch.zeros(1)}})
    up = Losses(losses={"b": 0.5, "other": 0.1}, steps=0, each=[0.1, 0.2], samples=None)
    private = privatised(up, down, Privacy(on=True, noise=QUIET))
    assert isinstance(private, Losses) and [*private.losses] == ["a", "b"] and private.losses["b"] == pytest.approx(0.5, abs=1e-4)
    assert private.steps == 0 and private.each == pytest.approx([0.1, 0.2], abs=1e-4) and private.samples is None
    assert privatised(Losses(losses={}, steps=0, each=[], samples=None), Candidates(models={}), Privacy(on=True, noise=QUIET)).losses == {}
    whole = privatised(Losses(losses={}, steps=40, each=[], samples=3), down, Privacy(on=True, clip=50, noise=QUIET))
    assert isinstance(whole, Losses) and whole.steps == 40 and whole.each == [] and whole.samples == 100


def test_names_that_nobody_fixed_do_not_leave() -> None:
    class Statistics(Payload):
        means: dict[str, float] = carries("statistic")

    with pytest.raises(Rejected, match="nobody fixed the names"):
        privatised(Statistics(means={"patient 7": 1.0}), Model(model={}), Privacy(on=True), METRICS)


def test_fields_that_grow_with_the_data_do_not_leave() -> None:
    class Spectra(Payload):
        low: torch.Tensor | None = carries("spectrum", grows_with_data=True)

    assert privatised(Spectra(low=None), Model(model={}), Privacy(on=True)) == Spectra(low=None)
    with pytest.raises(Rejected, match="low grows with the data"):
        privatised(Spectra(low=torch.zeros(3, 2)), Model(model={}), Privacy(on=True))


class Everything(Payload):
    model: State = carries("model")
    low: torch.Tensor = carries("statistic")
    losses: dict[str, float] = carries("score", of="models")
    each: list[float] = carries("statistic")
    number: float = carries("number")
    count: int = carries("number")


class Asked(Payload):
    model: State = carries("model")
    models: dict[str, State] = carries("model", role="other")
    number: float = carries("number")


def everything(where: str = "", bad: Any = None) -> tuple[Everything, Asked]:
    """An answer and its question, one number of which may be replaced."""
    value = dict.fromkeys(("model", "buffer", "low", "losses", "each", "number", "start", "asked"), 1.0)
    value[where] = bad
    up = Everything(
        model={"w": torch.tensor([0.0, value["model"]]), "b": torch.tensor([value["buffer"]], dtype=torch.float64)},
        low=torch.tensor([[value["low"]]], dtype=torch.float64),
        losses={"a": value["losses"], "b": 1.0},
        each=[1.0, value["each"]],
        number=value["number"],
        count=bad if where == "count" else 2,
    )
    start = {"w": torch.tensor([0.0, value["start"]]), "b": torch.zeros(1, dtype=torch.float64)}
    return up, Asked(model=start, models={"a": {}, "b": {}}, number=value["asked"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["model", "buffer", "low", "losses", "each", "number", "start", "asked"])
def test_a_number_that_is_not_finite_is_refused_wherever_it_is(where: str, bad: float) -> None:
    with pytest.raises(Rejected, match="not finite"):
        privatised(*everything(where, bad), Privacy(on=True))


@pytest.mark.parametrize("where", ["buffer", "low", "losses", "each", "number", "count"])
@pytest.mark.parametrize("bad", [1e308, -1e308, 1e200])
def test_huge_numbers_are_clipped_like_others(where: str, bad: float) -> None:
    private = privatised(*everything(where, int(bad) if where == "count" else bad), Privacy(on=True, noise=QUIET))
    assert isinstance(private, Everything)
    numbers = [*private.model["w"].tolist(), *private.model["b"].tolist(), float(private.low)]
    numbers += [*private.losses.values(), *private.each, private.number, float(private.count)]
    numbers[1] -= 1  # where it started
    assert math.hypot(*numbers) == pytest.approx(1, abs=1e-4)


def test_integers_beyond_all_floats_and_differences_that_run_over_are_refused() -> None:
    with pytest.raises(Rejected, match="count is larger"):
        privatised(*everything("count", 10**400), Privacy(on=True))
    huge = {"w": torch.tensor([1.7e308], dtype=torch.float64)}
    with pytest.raises(Rejected, match="difference from the question is not finite"):
        left(huge, {"w": -huge["w"]})


@pytest.mark.parametrize(
    "start",
    [
        {"w": torch.zeros(3)},
        {"w": torch.zeros(2, 1)},
        {"v": torch.zeros(2)},
        {"w": torch.zeros(2, dtype=torch.int64)},
        {"w": torch.zeros(2, dtype=torch.complex64)},
    ],
)
def test_a_question_of_another_form_is_refused(start: State) -> None:
    with pytest.raises(Rejected, match=r"of what it was trained from|which does not travel"):
        left({"w": torch.zeros(2)}, start)


@pytest.mark.parametrize(("clip", "noise"), [(1.0, 0.0), (1.0, math.nan), (math.nan, 1.0), (0.0, 1.0), (1.0, math.inf), (math.inf, 1.0)])
def test_nothing_leaves_without_noise(clip: float, noise: float) -> None:
    with pytest.raises(Rejected, match="out of range"):
        left({"w": torch.zeros(2)}, {"w": torch.zeros(2)}, clip, noise)


def test_a_student_that_did_not_change_leaves_as_it_came() -> None:
    """FedDAG's global student is compared with the student of the question, not with the teacher that has the same names."""
    teacher, student = {"w": torch.zeros(4)}, {"w": torch.full((4,), 5.0)}
    down = feddag.Down(model=teacher, generator=None, student=student, rate=None)
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
