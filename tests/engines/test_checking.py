"""What counts as an answer: ranges by what a field is, the shapes of a rehearsal, and noise that is put back into its range."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tiny_settings import SETTINGS
from unseen import ELCFS, Experiment, FedAvg
from unseen.data.domain import IMAGENET, DomainDataset
from unseen.engines.checking import Checker, outline_from_plain, outline_of, outline_to_plain
from unseen.engines.local import LocalEngine
from unseen.errors import BadInput, RefusedReply
from unseen.methods.ccst import ClientStyle
from unseen.methods.elcfs import Spectra
from unseen.methods.fedccrl import ColourStatistics
from unseen.metrics import OF_CLASSES, OF_MASKS, ClassMeter, own_score
from unseen.ops.fourier import low_amplitudes
from unseen.own_code import of_memory
from unseen.parts.aggregation import Candidates, Losses
from unseen.parts.combining import Down, Up
from unseen.payload import Nothing, Payload, State, carries
from unseen.scoring import Model, Scores
from unseen.task import Classification, Segmentation
from unseen.world import World, build_world


@pytest.fixture(scope="module")
def world(tiny: DomainDataset) -> World:
    return build_world(Experiment(SETTINGS["fedavg"].build(), tiny, "c"))


@pytest.fixture(scope="module")
def checker(world: World) -> Checker:
    return Checker(world)


def scores(**metrics: float) -> Scores:
    return Scores(metrics=metrics, samples=4, own=None)


def refused(checker: Checker, answer: Payload, question: Payload, samples: int = 40, **more: Any) -> str:
    """Why the answer does not count; '' if it does."""
    try:
        checker.refuse_misfit(answer, question, samples, **more)
    except RefusedReply as refusal:
        return str(refusal)
    return ""


def test_every_metric_has_a_range() -> None:
    classes = Classification(("x", "y")).ranges((3, 4), 5)
    assert set(classes) == set(OF_CLASSES) and classes["loss"][1] == 1e9 and classes["weighted_auc"] == classes["ece"]
    masks = Segmentation(("disc", "cup")).ranges((3, 4), 5)
    assert set(masks) == set(Segmentation(("disc", "cup")).metrics) and {name.partition("_")[0] for name in masks} == set(OF_MASKS)
    assert masks["hd95_cup"] == (0.0, 5000.0) and masks["unmatched"] == masks["unmatched_disc"] == (0.0, 10.0)
    assert masks["dice_disc"][1] == pytest.approx(1)
    own = Classification(("x", "y")).going_by(of_memory(_own)).ranges((3, 4), 5)
    assert own["_own"] == (-1e9, 1e9)


def _own(probabilities: Tensor, labels: Tensor) -> float:
    return 0.5


@pytest.mark.parametrize("metric", [name for name in OF_CLASSES if name != "loss"])
def test_shares_lie_between_0_and_1(metric: str, checker: Checker, world: World) -> None:
    question = Model(model=world.fresh("task"))
    for fine in (0.0, 0.5, 1.0, 1.0 + 1e-7):
        assert refused(checker, scores(**{metric: fine}), question) == ""
    for wrong in (-0.01, 1.01, 50.0, 1e308):
        assert refused(checker, scores(**{metric: wrong}), question).startswith(f"metrics.{metric} is")


def test_a_site_adds_no_metric_and_leaves_out_what_is_undefined(checker: Checker, world: World) -> None:
    question = Model(model=world.fresh("task"))
    assert refused(checker, scores(), question) == ""
    assert "no metric of this task" in refused(checker, scores(dice=0.5), question)
    assert "gives none" in refused(checker, dataclasses.replace(scores(), own={"accuracy": 1.0}), question)  # type: ignore[type-var]


def test_a_loss_beyond_all_bounds_is_told_as_the_bound_and_taken(checker: Checker, world: World) -> None:
    meter = ClassMeter(torch.nn.functional.cross_entropy)
    meter.update(torch.tensor([[1e30, 0.0, 0.0]]), torch.tensor([1]))
    told = meter.compute()
    assert told["loss"] == 1e9 and refused(checker, scores(**told), Model(model=world.fresh("task"))) == ""
    with pytest.raises(BadInput, match="1e\\+09 either way"):
        own_score(of_memory(lambda probabilities, labels: 2e9), torch.zeros(1, 2), torch.zeros(1))


def test_losses_of_others_lie_between_none_and_the_worst(checker: Checker, world: World) -> None:
    question = Candidates(models={"b": world.fresh("task")})
    for fine in (0.0, 2.5, 1e9):
        assert refused(checker, Losses(losses={"b": fine}), question) == ""
    for wrong in (-1e-9, 1.1e9, 1e308):
        assert refused(checker, Losses(losses={"b": wrong}), question).startswith("losses.b is")


def test_weights_and_buffers_have_bounds_of_their_own(checker: Checker, world: World) -> None:
    fresh = world.fresh("task")
    norm = next(name for name in fresh if name.endswith("running_var"))
    weight = next(name for name in fresh if name.endswith("weight"))
    counter = next(name for name in fresh if name.endswith("num_batches_tracked"))

    def with_value(name: str, value: float) -> str:
        model = {**fresh, name: torch.full_like(fresh[name], value)}
        return refused(checker, Up(model=model, samples=1, perturbed=None), Down(model=fresh))

    assert not any([with_value(weight, 1e6), with_value(weight, -1e6), with_value(norm, 1e12), with_value(counter, 10**9)])
    assert with_value(weight, 1.1e6) and with_value(weight, -1.1e6) and with_value(norm, 1.1e12) and with_value(counter, 2**62)


@pytest.mark.parametrize("pixels", ["unit", "imagenet"])
def test_the_brightest_image_has_the_largest_spectrum_and_it_is_taken(pixels: str, tiny: DomainDataset) -> None:
    data = tiny if pixels == "unit" else dataclasses.replace(tiny, pixels=IMAGENET)
    checker = Checker(build_world(Experiment(ELCFS(alpha=0.2), data, "c")))
    rng = np.random.default_rng(0)
    images = torch.from_numpy(np.concatenate([np.zeros((1, 3, 8, 8)), np.ones((1, 3, 8, 8)), rng.integers(0, 2, (20, 3, 8, 8))])).float()
    low = low_amplitudes(data.pixels.normalised(images), 0.49)
    assert refused(checker, Spectra(low=low), Nothing()) == ""
    assert "expected 0 to" in refused(checker, Spectra(low=low * 1.01), Nothing())
    assert "expected 0 to" in refused(checker, Spectra(low=-low), Nothing())
    for wrong in (low[:0], low.repeat(2, 1, 1, 1)[:41], low.sum(), low.long(), low.half()):
        assert refused(checker, Spectra(low=wrong), Nothing()).startswith("low")


def test_statistics_of_images_are_at_least_one_and_no_more_than_the_images(checker: Checker) -> None:
    """Others draw from them: with none to draw, they would take on what lies in memory."""
    for rows, fits in ((1, True), (40, True), (0, False), (41, False)):
        for answer in (ColourStatistics(moments=torch.ones(rows, 2, 3)), ClientStyle(overall=None, single=torch.ones(rows, 2, 3))):
            assert (refused(checker, answer, Nothing()) == "") == fits, rows
    assert refused(checker, ColourStatistics(moments=torch.tensor(1.0)), Nothing()) == "moments holds no rows; the site holds 40 samples"


class Beside(Payload):
    model: State = carries("model")
    style: Tensor = carries("statistic")
    low: State = carries("spectrum", grows_with_data=True)
    note: Tensor | None = carries("statistic")


def beside(world: World, **changes: Any) -> Beside:
    low = {"x": torch.ones(5, 3, 2), "y": torch.ones(7, 3, 2)}
    values = {"model": world.fresh("task"), "style": torch.ones(4, 2), "low": low, "note": None}
    return Beside(**{**values, **changes})


def test_a_rehearsal_says_which_shapes_are_right_whoever_else_answers(checker: Checker, world: World) -> None:
    question, honest = Down(model=world.fresh("task")), beside(world)
    expected = outline_from_plain(json.loads(json.dumps(outline_to_plain(outline_of(honest)))))
    assert expected == outline_of(honest)
    fine = [
        honest,
        beside(world, low={"x": torch.ones(1, 3, 2)}),  # fewer spectra, by other names: it grows with the data
        beside(world, low={"z": torch.ones(40, 3, 2)}),
    ]
    assert [refused(checker, answer, question, expected=expected) for answer in fine] == [""] * 3
    for changes in (
        {"style": torch.ones(5, 2)},
        {"style": torch.ones(4, 2, dtype=torch.float64)},
        {"style": torch.ones(4, 2, 1)},
        {"low": {"x": torch.ones(5, 3, 3)}},
        {"low": {"x": torch.ones(5, 3, 2, dtype=torch.float64)}},
        {"model": {k: v.double() if v.is_floating_point() else v for k, v in world.fresh("task").items()}},
        {"note": torch.ones(2)},  # not asked for
    ):
        assert refused(checker, beside(world, **changes), question) == "", "without a rehearsal nothing says so"
        (name,) = changes
        assert refused(checker, beside(world, **changes), question, expected=expected).startswith(f"{name} has not the shapes")
    with_note = outline_of(beside(world, note=torch.ones(2)))
    assert refused(checker, honest, question, expected=with_note) == "", "what may be None may be left out"


ANYTHING = st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=9)
FORM = st.tuples(st.text(max_size=2), st.sampled_from(["float32", "bool", "x"]), st.lists(st.integers(), max_size=3))


@given(ANYTHING | st.dictionaries(st.text(max_size=3), st.lists(FORM | ANYTHING, max_size=2)))
def test_an_outline_is_read_or_a_mistake_of_its_sender(plain: Any) -> None:
    try:
        outline = outline_from_plain(plain)
    except ValueError:
        return
    again = outline_to_plain(outline)
    assert outline_from_plain(again) == outline


def test_noise_beyond_a_range_is_put_back_into_it(checker: Checker, world: World) -> None:
    question = Model(model=world.fresh("task"))
    noisy = Scores(metrics={"accuracy": 1.3, "loss": -0.4, "ece": 0.2}, samples=4, own=None)
    assert refused(checker, noisy, question)
    inside: Any = checker.clamped(noisy, 40)
    assert refused(checker, inside, question) == "" and inside.metrics == {"accuracy": 1.000001, "loss": -1e-6, "ece": 0.2}
    spectra: Any = checker.clamped(Spectra(low=torch.tensor([[-1.0, 3.0, 1e9]])), 40)
    assert spectra.low.tolist() == [[0.0, 3.0, pytest.approx(64 * 1.001)]]
    losses: Any = checker.clamped(Losses(losses={"b": -2.0, "c": 1.0}), 40)
    assert losses.losses == {"b": 0.0, "c": 1.0}
    fresh = world.fresh("task")
    same: Any = checker.clamped(Up(model=fresh, samples=3, perturbed=None), 40)
    assert same.samples == 3 and same.perturbed is None and all(torch.equal(same.model[k], v) for k, v in fresh.items())


def test_what_nobody_thought_of_is_a_refusal_too(checker: Checker, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = world.fresh("task")
    payload = Up(model=fresh, samples=3, perturbed=None).to_bytes()
    checker.refuse_bytes(Up, payload, Down(model=fresh), 40)
    with pytest.raises(RefusedReply, match="the site holds 2 samples"):
        checker.refuse_bytes(Up, payload, Down(model=fresh), 2)
    monkeypatch.setattr(checker, "_refuse_other_entries", lambda *_: 1 / 0)
    with pytest.raises(RefusedReply, match="cannot be checked: ZeroDivisionError"):
        checker.refuse_bytes(Up, payload, Down(model=fresh), 40)


def test_a_run_that_diverges_leaves_the_client_out_and_is_no_mistake_of_the_method(tiny: DomainDataset, tmp_path: Path) -> None:
    method = FedAvg(batch=8, lr=1e8, optimizer="sgd")
    engine = LocalEngine(build_world(Experiment(method, tiny, "c")), tmp_path)
    replies = engine.cohort(1).ask(method.train, Down(model=engine.world.fresh("task")))
    assert replies.all() == {} and all("expected" in reason or "finite" in reason for reason in replies.missing.values())


def test_a_mean_is_declared_where_it_makes_sense() -> None:
    class Counted(Payload):
        model: State = carries("model", mean=True)
        samples: int = carries("count")

    with pytest.raises(TypeError, match="with mean"):
        carries("score", mean=True)
    with pytest.raises(TypeError, match="with mean"):
        carries("statistic", mean=True, grows_with_data=True)
    with pytest.raises(TypeError, match="with low or high"):
        carries("model", low=0.0)
    with pytest.raises(TypeError, match="a mean is of one State or Tensor"):
        type("Many", (Payload,), {"__annotations__": {"models": dict[str, State]}, "models": carries("model", mean=True)})
    with pytest.raises(TypeError, match="several counts"):
        type("Twice", (Counted,), {"__annotations__": {"images": int}, "images": carries("count")})


@pytest.mark.parametrize("number", [-(2**63), 2**62])
def test_a_counter_at_the_edge_of_its_type_is_outside(number: int) -> None:
    """The size of the least int64 is itself: taking it would let it through."""
    from unseen.engines.ranges import _perhaps_outside

    inside, outside = torch.tensor(3), torch.tensor(number)
    rest = [(torch.tensor([1.0, -1e7]), (-1e6, 1e6)), (torch.tensor([float("nan")]), (-1e6, 1e6)), (torch.tensor([0.5]), (-1e6, 1e6))]
    assert _perhaps_outside([(inside, (-1e12, 1e12)), (outside, (-1e12, 1e12)), *rest]) == [1, 2, 3]
