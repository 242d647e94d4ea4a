"""Every metric against scikit-learn, or against a loop that shares no line with the library."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss, roc_auc_score
from torch import Tensor

from unseen.errors import BadInput
from unseen.metrics import calibration_error, hausdorff, surface_distances
from unseen.task import Classification, Segmentation


def classified(logits: Any, labels: Any, quick: bool = False) -> dict[str, float]:
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    meter = Classification(tuple(f"c{i}" for i in range(logits.shape[1]))).meter(quick)
    for x, y in zip(logits.split(3), labels.split(3), strict=True):
        meter.update(x, y)
    return meter.compute()


@st.composite
def predictions(draw: st.DrawFn, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Logits on a coarse grid, so that ties are common, and labels from some of the classes, so that others are absent."""
    classes, n = draw(st.integers(2, 5)), draw(st.integers(1, most))
    logits = draw(hnp.arrays(np.int64, (n, classes), elements=st.integers(-4, 4))) / 2
    among = draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=classes, unique=True))
    return logits, draw(hnp.arrays(np.int64, n, elements=st.sampled_from(among)))


def softmax(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).softmax(1).numpy()  # the same last bit as the library's, or ties are no ties


@settings(max_examples=150)
@given(predictions())
def test_classification_against_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = case
    got, predicted = classified(logits, labels), logits.argmax(1)
    assert got["accuracy"] == got["weighted_accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert got["weighted_f1"] == pytest.approx(f1_score(labels, predicted, average="weighted", zero_division=0))
    assert got["loss"] == pytest.approx(log_loss(labels, softmax(logits), labels=range(logits.shape[1])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of classes that are predicted but do not occur
        assert got["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    shares = [(labels == c).mean() * accuracy_score(labels[labels == c], predicted[labels == c]) for c in np.unique(labels)]
    assert got["weighted_accuracy"] == pytest.approx(sum(shares))


@settings(max_examples=150)
@given(predictions())
def test_auc_against_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = case
    got, p, occurring = classified(logits, labels).get("weighted_auc"), softmax(logits), np.unique(labels)
    if len(occurring) == 1:
        assert got is None
    elif logits.shape[1] == 2:
        assert got == pytest.approx(roc_auc_score(labels, p[:, 1]))
    elif len(occurring) == logits.shape[1]:
        assert got == pytest.approx(roc_auc_score(labels, p, multi_class="ovr", average="weighted"))
    else:
        each = [(labels == c).mean() * roc_auc_score(labels == c, p[:, c]) for c in occurring]
        assert got == pytest.approx(sum(each))


def ece_by_loop(confidence: list[float], correct: list[bool]) -> float:
    error = 0.0
    for number in range(15):
        inside = [i for i, c in enumerate(confidence) if number / 15 < c <= (number + 1) / 15]
        if inside:
            error += abs(sum(correct[i] for i in inside) - sum(confidence[i] for i in inside)) / len(confidence)
    return error


@given(st.lists(st.tuples(st.floats(1e-3, 1.0) | st.sampled_from([1 / 3, 0.2, 1.0]), st.booleans()), min_size=1, max_size=60))
def test_calibration_error_against_a_loop(samples: list[tuple[float, bool]]) -> None:
    confidence, correct = [c for c, _ in samples], [right for _, right in samples]
    got = calibration_error(torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct))
    assert got == pytest.approx(ece_by_loop(confidence, correct))


@settings(max_examples=30)
@given(predictions())
def test_ece_is_of_the_largest_probability(case: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = case
    expected = ece_by_loop(softmax(logits).max(1).tolist(), (logits.argmax(1) == labels).tolist())
    assert classified(logits, labels)["ece"] == pytest.approx(expected, abs=1e-9)


def test_one_class_for_all_gives_the_numbers_of_feddag() -> None:
    """Table IV, site MSK: ACC 27.8 and F1 12.1 for three methods, what answering the largest class for all gives."""
    labels = torch.tensor([0] * 278 + [1] * 250 + [2] * 240 + [3] * 232)
    got = classified(torch.tensor([[1.0, 0, 0, 0]]).repeat(1000, 1), labels)
    assert (round(100 * got["weighted_accuracy"], 1), round(100 * got["weighted_f1"], 1)) == (27.8, 12.1)
    assert got["balanced_accuracy"] == 0.25
    assert got["weighted_auc"] == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_leave_metrics_out(bad: float) -> None:
    got = classified([[bad, 0.0], [1.0, 0.0], [0.0, 1.0]], [0, 1, 1])
    assert set(got) == {"accuracy", "weighted_accuracy", "balanced_accuracy", "weighted_f1"}
    assert all(map(math.isfinite, got.values()))


def test_huge_logits_have_a_finite_loss() -> None:
    assert math.isfinite(classified(torch.tensor([[3e38, -3e38]]), torch.tensor([1]))["loss"])


def test_quick_is_loss_and_accuracy() -> None:
    assert set(classified([[1.0, 0.0]], [0], quick=True)) == {"loss", "accuracy"}


def test_a_meter_keeps_no_view_of_the_batch() -> None:
    meter, logits, labels = Classification(("a", "b")).meter(), torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    meter.update(logits, labels)
    logits.zero_().sub_(torch.tensor([[1.0, 0.0]]))
    labels.fill_(1)
    assert meter.compute()["loss"] == pytest.approx(math.log(1 + math.exp(-1)))


def test_without_samples_there_is_nothing() -> None:
    classes, masks = Classification(("a", "b")).meter(), Segmentation(("disc",)).meter()
    assert classes.compute() == masks.compute() == {}
    classes.update(torch.empty(0, 2), torch.empty(0, dtype=torch.long))
    masks.update(torch.empty(0, 1, 4, 4), torch.empty(0, 1, 4, 4))
    assert classes.compute() == masks.compute() == {}
    assert masks.cases() == []


def test_bad_labels_are_named() -> None:
    with pytest.raises(BadInput, match="labels run from 0 to 7; a network of 2 outputs knows 0 to 1"):
        classified([[1.0, 0.0]] * 2, [0, 7])
    with pytest.raises(BadInput, match=r"expected \[n, classes\] and \[n\]"):
        Classification(("a", "b")).meter().update(torch.zeros(2, 2), torch.zeros(2, 1))


def test_importing_a_task_stays_cheap() -> None:
    heavy = "{'torchmetrics', 'scipy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import sys, unseen.task; assert not {heavy}, {heavy}"], check=True)


def border_pixels(mask: np.ndarray) -> list[tuple[int, int]]:
    pixels = {(int(r), int(c)) for r, c in np.argwhere(mask)}
    return [(r, c) for r, c in pixels if not {(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)} <= pixels]


def distances_by_loop(a: np.ndarray, b: np.ndarray, spacing: tuple[float, float]) -> list[float]:
    def far(p: tuple[int, int], q: tuple[int, int]) -> float:
        return math.sqrt(((p[0] - q[0]) * spacing[0]) ** 2 + ((p[1] - q[1]) * spacing[1]) ** 2)

    one, other = border_pixels(a), border_pixels(b)
    return sorted([min(far(p, q) for q in other) for p in one] + [min(far(p, q) for p in one) for q in other])


def percentile_by_hand(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


@st.composite
def mask_pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8))
    masks = hnp.arrays(bool, shape) | st.just(np.ones(shape, dtype=bool)) | st.just(np.zeros(shape, dtype=bool))
    return draw(masks), draw(masks)


@settings(max_examples=300)
@given(mask_pairs(), st.tuples(st.floats(0.1, 4), st.floats(0.1, 4)))
def test_hausdorff_against_a_loop_over_border_pixels(pair: tuple[np.ndarray, np.ndarray], spacing: tuple[float, float]) -> None:
    a, b = pair
    if a.any() and b.any():
        ordered = distances_by_loop(a, b, spacing)
        expected = ordered[-1], percentile_by_hand(ordered, 0.95)
        assert np.sort(surface_distances(a, b, spacing)) == pytest.approx(ordered, abs=1e-9)
    else:
        expected = (0.0 if a.any() == b.any() else math.hypot(a.shape[0] * spacing[0], a.shape[1] * spacing[1]),) * 2
    assert hausdorff(a, b, spacing) == pytest.approx(expected, abs=1e-9)
    assert hausdorff(b, a, spacing) == pytest.approx(expected, abs=1e-9)


def square(size: int, top: int, left: int, side: int) -> np.ndarray:
    mask = np.zeros((size, size), dtype=bool)
    mask[top : top + side, left : left + side] = True
    return mask


def test_squares_with_known_distances() -> None:
    inner, outer = square(32, 10, 10, 5), square(32, 8, 8, 9)
    # From the inner square's 16 border pixels 2 each; from the outer's 32: 2 to the 20 opposite it, sqrt(5) and sqrt(8) around corners.
    counts = {2.0: 16 + 4 * 5, math.sqrt(5): 4 * 2, math.sqrt(8): 4}
    got = surface_distances(inner, outer)
    assert {far: int(np.isclose(got, far).sum()) for far in counts} == counts
    assert hausdorff(inner, outer) == pytest.approx((math.sqrt(8), math.sqrt(8)))
    shifted = square(32, 10, 13, 5)
    assert hausdorff(inner, shifted, (2.0, 0.5)) == pytest.approx((1.5, 1.5))
    assert hausdorff(inner.T, shifted.T, (2.0, 0.5)) == pytest.approx((6.0, 6.0))


def test_hd95_is_the_percentile_of_both_directions_together() -> None:
    """A line of 39 pixels against itself and three more, 10 below: of 39 + 42 distances three are 10, and the rest 0."""
    line = np.zeros((12, 39), dtype=bool)
    line[0] = True
    more = line.copy()
    more[10, [5, 20, 35]] = True
    assert hausdorff(line, more) == (10, 0)
    assert np.percentile([0] * 39 + [10] * 3, 95) > 9  # what the other convention, each direction by itself, would report


def as_logits(masks: np.ndarray) -> Tensor:
    return torch.from_numpy(masks).float() * 8 - 4


def cups_and_discs() -> tuple[np.ndarray, np.ndarray]:
    """Four cases of a disc and a cup: found exactly, moved by 2, the cup missed, the cup absent and not found."""
    disc, cup, none = square(20, 2, 2, 10), square(20, 4, 4, 4), square(20, 0, 0, 0)
    truth = np.stack([[disc, cup], [disc, cup], [disc, cup], [disc, none]])
    found = np.stack([[disc, cup], [np.roll(disc, 2, 1), cup], [disc, none], [disc, none]])
    return found, truth


def test_segmentation_by_hand() -> None:
    found, truth = cups_and_discs()
    meter = Segmentation(("disc", "cup")).meter()
    for x, y in zip(as_logits(found).split(3), torch.from_numpy(truth).byte().split(3), strict=True):
        meter.update(x, y)
    got, diagonal = meter.compute(), math.hypot(20, 20)
    assert got["dice_disc"] == pytest.approx((1 + 0.8 + 1 + 1) / 4)
    assert got["dice_cup"] == pytest.approx((1 + 1 + 0 + 1) / 4)
    assert got["dice"] == pytest.approx((got["dice_disc"] + got["dice_cup"]) / 2)
    assert got["hd_disc"] == pytest.approx(2 / 4)
    assert got["hd_cup"] == got["hd95_cup"] == pytest.approx(diagonal / 4)
    assert (got["unmatched"], got["unmatched_disc"], got["unmatched_cup"]) == (1, 0, 1)
    rows = meter.cases()
    assert [row["dice_cup"] for row in rows] == [1, 1, 0, 1]
    assert [row["unmatched"] for row in rows] == [0, 0, 1, 0]
    assert all(np.mean([row[name] for row in rows]) == pytest.approx(got[name]) for name in rows[0] if not name.startswith("unmatched"))
    assert meter.compute() == got  # asking for the cases changes nothing


def test_spacing_makes_millimetres_case_by_case() -> None:
    truth = np.stack([[square(20, 2, 2, 10)]] * 2)
    meter = Segmentation(("disc",)).meter()
    meter.update(as_logits(np.roll(truth, 3, axis=3)), torch.from_numpy(truth), torch.tensor([[2.0, 0.5], [0.5, 1.0]]))
    assert [row["hd"] for row in meter.cases()] == pytest.approx([1.5, 3.0])


def test_quick_leaves_the_distances_out() -> None:
    found, truth = cups_and_discs()
    results = []
    for quick in (True, False):
        meter = Segmentation(("disc", "cup")).meter(quick)
        meter.update(as_logits(found), torch.from_numpy(truth))
        results.append(meter.compute())
    assert results[0] == {name: value for name, value in results[1].items() if not name.startswith("hd")}


def test_masks_that_are_not_finite_have_no_loss() -> None:
    meter = Segmentation(("disc",)).meter()
    meter.update(torch.full((1, 1, 4, 4), math.nan), torch.ones(1, 1, 4, 4))
    got = meter.compute()
    assert "loss" not in got
    assert (got["dice"], got["hd"], got["unmatched"]) == (0, math.hypot(4, 4), 1)


def test_bad_masks_and_spacings_are_named() -> None:
    x, task = torch.zeros(2, 1, 4, 4), Segmentation(("disc",))
    with pytest.raises(BadInput, match=r"expected both \[n, 1, height, width\]: disc"):
        task.meter().update(x, torch.zeros(2, 1, 4, 5))
    with pytest.raises(BadInput, match=r"spacing is \[2\] for 2 cases; expected \[2, 2\]"):
        task.meter().update(x, x, torch.ones(2))
    meter = task.meter()
    meter.update(x, x, torch.ones(2, 2))
    with pytest.raises(BadInput, match="some batches have a spacing and some have none"):
        meter.update(x, x)
    meter = task.meter()
    meter.update(x, x, torch.zeros(2, 2))
    with pytest.raises(BadInput, match="expected positive numbers"):
        meter.compute()
