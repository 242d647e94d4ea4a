"""Each attack where the truth is known: it succeeds where it must, and finds nothing where there is nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from one_client import LinearNet
from unseen.data.domain import UNIT, Domain
from unseen.leakage.intervals import area_under_curve, separation
from unseen.leakage.inversion import Inverter, images_attempt, likeness
from unseen.leakage.labels import few_images_behind, frequencies, labels_by_frequency, overlap, pushed_up
from unseen.leakage.membership import Prober, calibrated, candidates, overfitted
from unseen.leakage.spectra import likeness_of_shapes, nearest_window, retrieved, whole_spectrum, window_of
from unseen.networks import build_network
from unseen.ops.fourier import low_amplitudes
from unseen.task import Classification

CPU, EVER = torch.device("cpu"), float("inf")


def images(number: int, side: int = 8, channels: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.rand(number, channels, side, side, generator=torch.Generator().manual_seed(seed))


def linear(side: int = 8, classes: int = 4) -> Inverter:
    torch.manual_seed(0)
    return Inverter(LinearNet(side * side, classes), Classification(tuple("abcd"[:classes])), UNIT, (1, side, side), CPU)


def state(inverter: Inverter) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in inverter._net.state_dict().items()}


def test_one_image_comes_back_from_a_linear_first_layer_to_the_last_digit() -> None:
    inverter, x = linear(), images(1)
    change = inverter.gradient(state(inverter), x, torch.tensor([2]))
    found = inverter.images(state(inverter), change, 1, None, 0, 0, EVER)
    assert torch.allclose(found, x, atol=1e-5)
    alike = likeness(found, x, images(40, seed=9))
    assert alike.found == 1 and alike.hits == 1 and 1 / 60 < alike.by_chance < 1 / 30  # 1 of 41
    assert images_attempt("w", alike, alike, "").outcome == "images"


def test_a_change_that_is_noise_gives_no_image_back() -> None:
    inverter, x = linear(), images(8)
    noise = {name: torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for name, v in state(inverter).items()}
    found = inverter.images(state(inverter), noise, 8, None, 0, 0, EVER)
    alike = likeness(found, x, images(40, seed=9))
    control = likeness(x[:1], x[:1], images(40, seed=9))
    assert alike.found == 0 and images_attempt("w", alike, control, "").outcome == "guessing"
    assert images_attempt("w", alike, likeness(images(1, seed=5), x[:1], images(40, seed=9)), "").outcome == "silent"


def test_an_image_is_searched_where_it_cannot_be_read_off() -> None:
    torch.manual_seed(0)
    net = build_network("small_cnn", outputs=4, channels=1, size=(16, 16))
    inverter = Inverter(net, Classification(tuple("abcd")), UNIT, (1, 16, 16), CPU)
    x = torch.zeros(1, 1, 16, 16)
    x[..., 4:12, 2:8] = 1
    change = inverter.gradient(state(inverter), x, torch.tensor([3]))
    labels = labels_by_frequency(frequencies(change["fc.bias"], 1.0), 1)
    found = inverter.images(state(inverter), change, 1, labels, 100, 0, EVER)
    assert labels.tolist() == [3]
    elsewhere = torch.stack([x[0].roll((a, b), (1, 2)) for a in range(0, 16, 2) for b in range(0, 16, 2) if a or b])
    alike = likeness(found, x, elsewhere)
    assert alike.inside[0] > 0.6 and alike.hits == 1


def tiny_domain(number: int, seed: int) -> Domain:
    rng = np.random.default_rng(seed)
    return Domain(str(seed), rng.integers(0, 255, (number, 1, 8, 8)).astype(np.uint8), rng.integers(0, 3, number).astype(np.int64))


def test_members_of_an_overfitted_model_are_known_and_those_of_an_untrained_one_are_not() -> None:
    task = Classification(tuple("abc"))
    some = candidates((tiny_domain(60, 1), np.arange(60)), (tiny_domain(60, 2), np.arange(60)), UNIT, 60, np.random.default_rng(0))

    def build() -> torch.nn.Module:
        return build_network("small_cnn:width=4", outputs=3, channels=1, size=(8, 8))

    torch.manual_seed(0)
    fresh = {name: value.clone() for name, value in build().state_dict().items()}
    knows = overfitted(build, fresh, task, some.images[:60], some.labels[:60], CPU)
    prober = Prober(build(), task, CPU)
    before, after = (prober.losses(s, some.images, some.labels) for s in (fresh, knows))
    untrained = separation(*some.apart(-before))
    assert untrained.low is not None and untrained.high is not None and untrained.low < 0.5 < untrained.high
    assert area_under_curve(*some.apart(-after)) > 0.9 and area_under_curve(*some.apart(before - after)) > 0.9
    assert prober.losses(fresh, some.images[:1], some.labels[:1])[0] == pytest.approx(before[0])


def test_a_step_lies_along_the_gradients_of_its_own_images() -> None:
    inverter, x, y = linear(), images(40) - 0.5, torch.arange(40) % 4
    change = inverter.gradient(state(inverter), x[:10], y[:10])
    prober = Prober(LinearNet(64, 4), Classification(tuple("abcd")), CPU)
    along = prober.alignments(state(inverter), change, x, y, [*range(10), *range(20, 40)], EVER)
    assert sorted(along) == [*range(10), *range(20, 40)]
    assert area_under_curve(np.array([along[n] for n in range(10)]), np.array([along[n] for n in range(20, 40)])) > 0.8
    single = inverter.gradient(state(inverter), x[:1], y[:1])
    assert prober.alignments(state(inverter), single, x, y, [0], EVER)[0] == pytest.approx(1, abs=1e-5)


def test_calibration_takes_off_what_makes_an_image_easy() -> None:
    rng = np.random.default_rng(0)
    ease, member = rng.normal(0, 5, 200), np.arange(200) < 100
    losses = ease - member  # members are a little lower; single images differ far more
    shadows = [(ease - seen + rng.normal(0, 0.2, 200), seen) for seen in rng.random((8, 200)) < 0.5]
    plain = area_under_curve(-losses[:100], -losses[100:])
    scores = calibrated(losses, shadows)
    assert area_under_curve(scores[:100], scores[100:]) > 0.95 > plain + 0.2
    blind = calibrated(losses, [(ease, np.ones(200, dtype=bool))])  # every shadow saw every image
    assert not blind.any()


def test_an_exact_window_of_each_image_is_a_fingerprint() -> None:
    x = images(120, side=32, channels=3)
    bank = low_amplitudes(x[:60], 0.04)  # as ELCFS sends it
    assert torch.allclose(window_of(x[:60], tuple(bank.shape)).float(), bank, rtol=1e-4, atol=1e-3)
    scores = nearest_window(x, bank)
    assert area_under_curve(scores[:60], scores[60:]) == 1.0
    together = bank.reshape(4, 15, *bank.shape[1:]).mean(1)  # of groups of images
    scores = nearest_window(x, together)
    assert 0.3 < area_under_curve(scores[:60], scores[60:]) < 0.7


def test_phases_are_found_from_all_amplitudes_and_not_from_few() -> None:
    true = np.zeros((20, 20))
    true[5:13, 6:9] = 1
    true[10:13, 6:14] = 0.6
    amplitudes = window_of(torch.from_numpy(true), (19, 10)).numpy()
    rng = np.random.default_rng(0)
    found = retrieved(whole_spectrum(amplitudes, (20, 20)), rng, EVER)
    assert likeness_of_shapes(found, true) > 0.9
    assert likeness_of_shapes(np.roll(true[::-1, ::-1], (3, 5), (0, 1)), true) == pytest.approx(1)
    few = retrieved(whole_spectrum(amplitudes[9:10, :1], (20, 20)), rng, EVER, starts=1, steps=200)
    assert likeness_of_shapes(few, true) < 0.8


def test_time_that_is_over_ends_the_searches() -> None:
    began = time.monotonic()
    retrieved(np.ones((64, 64)), np.random.default_rng(0), began, steps=10**9)
    inverter = Inverter(build_network("small_cnn", outputs=4, channels=1, size=(8, 8)), Classification(tuple("abcd")), UNIT, (1, 8, 8), CPU)
    inverter.images(state(inverter), inverter.gradient(state(inverter), images(1), torch.tensor([0])), 1, None, 10**9, 0, began)


def test_labels_are_read_from_one_step() -> None:
    inverter = linear(classes=4)
    y = torch.tensor([1, 1, 1, 3])
    change = inverter.gradient(state(inverter), 0.1 * images(4), y)
    shares = frequencies(change["fc.bias"], 1.0)
    assert overlap(shares, np.array([0, 0.75, 0, 0.25])) > 0.9
    assert labels_by_frequency(shares, 4).tolist() == [1, 1, 1, 3]
    one = inverter.gradient(state(inverter), images(1), torch.tensor([2]))
    assert pushed_up(one["fc.bias"]) == {2} and few_images_behind(one["fc.weight"]) == (1, 4)
    assert frequencies(3.7 * one["fc.bias"], None).argmax() == 2  # the scale need not be known
    assert few_images_behind(torch.zeros(4, 9)) == (0, 4) and pushed_up(torch.zeros(4)) == set()
