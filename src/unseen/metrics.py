"""How well a network did on one domain. A meter collects batches; `compute` gives the numbers of the whole domain.

No result is ever NaN or infinite: a metric that is undefined for these samples is left out, and without samples nothing is in.

Classification, n samples of which n_c belong to class c:
  loss               cross entropy
  accuracy           share of samples whose largest logit is their class
  weighted_accuracy  each class's accuracy weighted by n_c / n, which equals `accuracy`. It is the ACC of FedDAG: in its Table IV methods
                     that answer one class for all have ACC p and weighted F1 2p^2 / (1 + p), p being its share (27.8 and 12.1 at MSK).
                     The name stays beside `accuracy` because the records of runs hold it
  balanced_accuracy  each class's accuracy, all classes that occur counting the same (scikit-learn's `balanced_accuracy_score`)
  weighted_f1        each class's F1 weighted by n_c / n
  weighted_auc       each class's area under the ROC curve, it against the rest, weighted by n_c / n. Classes without a sample weigh
                     nothing. Of two classes it is the usual AUC. Undefined if fewer than two classes occur
  ece                expected calibration error of the largest probability, 15 bins of equal width, (a, b], weighted by their samples (l1)
Where a logit is not finite, loss, weighted_auc and ece are left out. A loss beyond 1e9 is told as 1e9.

Segmentation, a case being one image, each also per structure as `<metric>_<structure>`; the mean over structures, then over cases:
  loss       the training loss, mean over batches weighted by their cases
  dice       2 |A and B| / (|A| + |B|)
  hd, hd95   largest and 95th percentile of the surface distances (see `surface_distances`), in millimetres if `update` was given the
             spacing, else in pixels
  unmatched  how many masks (cases times structures; a sum, not a mean) are empty in the truth or in the prediction, but not in both
Empty masks: if both are empty, Dice is 1 and the distances 0; if one is, Dice is 0 and the distances are the image's diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.errors import BadInput
from unseen.own_code import Own

__all__ = [
    "LARGEST", "OF_CLASSES", "OF_MASKS", "ClassMeter", "MaskMeter", "Meter", "calibration_error", "hausdorff", "higher_is_better",
    "own_score", "range_of", "surface_distances",
]  # fmt: skip

# The metrics above, and whether higher is better.
OF_CLASSES = {
    "loss": False, "accuracy": True, "weighted_accuracy": True, "balanced_accuracy": True, "weighted_f1": True, "weighted_auc": True,
    "ece": False,
}  # fmt: skip
OF_MASKS = {"loss": False, "dice": True, "hd": False, "hd95": False, "unmatched": False}
LARGEST = 1e9  # a loss beyond it is told as it; a user's own metric beyond it, either way, is refused
_COARSEST = 1000.0  # millimetres per pixel: no picture of a body is coarser
_ROUNDING = 1e-6  # by which a share may exceed 1, having been summed in single precision

Loss = Callable[[Tensor, Tensor], Tensor]
Mask = NDArray[np.bool_]


def range_of(metric: str, size: tuple[int, int], masks: int) -> tuple[float, float]:
    """The least and the most that a metric above can be, of images of this size and so many masks (cases times structures).

    >>> range_of("accuracy", (3, 4), 7), range_of("unmatched", (3, 4), 7)
    ((-1e-06, 1.000001), (0.0, 7.0))
    """
    if metric == "loss":
        return -_ROUNDING, LARGEST
    if metric in ("hd", "hd95"):
        return 0.0, _COARSEST * math.hypot(*size)
    if metric == "unmatched":
        return 0.0, float(masks)
    return -_ROUNDING, 1 + _ROUNDING


def higher_is_better(name: str) -> bool:
    """Of a metric above, or of one of its structures; a user's own metric is better where it is higher.

    >>> higher_is_better("accuracy"), higher_is_better("hd95_disc"), higher_is_better("loss_of_memory")
    (True, False, True)
    """
    known = {**OF_MASKS, **OF_CLASSES}
    base = name.partition("_")[0]
    return known.get(name, base == "loss" or known.get(base, True))


class Meter(Protocol):
    """Collects a domain's predictions batch by batch and says how good they were."""

    def update(self, logits: Tensor, labels: Tensor, spacing: Tensor | None = None) -> None:
        """Take a batch; `spacing` is millimetres per pixel, [batch, 2] (rows, columns). Nothing waits for the device here."""

    def compute(self) -> dict[str, float]: ...


def own_score(own: Own, probabilities: Tensor, labels: Tensor) -> float:
    """A user's own metric over a whole validation part or domain."""
    score = own(probabilities, labels)
    try:
        value = float(score)
    except (TypeError, ValueError):
        raise BadInput(f"metric {own} returned a {type(score).__name__}; expected a number") from None
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise BadInput(f"metric {own} returned {value} for {len(labels)} samples; expected a finite number, at most {LARGEST:g} either way")
    return value


class ClassMeter:
    """The metrics of a classification; `quick`: loss and accuracy alone. `own`: a user's own beside them."""

    def __init__(self, loss: Loss, quick: bool = False, own: Own | None = None) -> None:
        self._loss, self._quick, self._own = loss, quick, own
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, logits: Tensor, labels: Tensor, spacing: Tensor | None = None) -> None:
        if logits.ndim != 2 or labels.shape != logits.shape[:1]:
            raise BadInput(f"logits {list(logits.shape)} and labels {list(labels.shape)}; expected [n, classes] and [n]")
        self._logits.append(logits.detach().clone())  # the caller may write the next batch into the same memory
        self._labels.append(labels.detach().clone())

    def compute(self) -> dict[str, float]:
        if not self._labels:
            return {}
        logits, labels = torch.cat(self._logits).cpu().double(), torch.cat(self._labels).cpu().long()
        classes = logits.shape[1]
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise BadInput(f"labels run from {labels.min()} to {labels.max()}; a network of {classes} outputs knows 0 to {classes - 1}")
        if not len(labels):
            return {}
        metrics = _finite(_class_metrics(logits, labels, self._loss, self._quick))
        return metrics | ({self._own.name: own_score(self._own, logits.softmax(1), labels)} if self._own else {})


def _class_metrics(logits: Tensor, labels: Tensor, loss: Loss, quick: bool) -> dict[str, float]:
    predicted = logits.argmax(1)
    correct = predicted == labels
    accuracy = float(correct.double().mean())
    metrics = {"loss": float(loss(logits, labels)), "accuracy": accuracy}
    if quick:
        return metrics
    metrics |= {
        "weighted_accuracy": accuracy,
        "balanced_accuracy": _balanced_accuracy(correct, labels),
        "weighted_f1": _weighted_f1(predicted, labels, logits.shape[1]),
    }
    if bool(logits.isfinite().all()):
        probability = logits.softmax(1)
        metrics["ece"] = calibration_error(probability.amax(1), correct)
        occurring = labels.bincount().nonzero().flatten()
        if len(occurring) > 1:  # each class is ranked by its own column, so the columns of the others may go
            metrics["weighted_auc"] = _weighted_auc(probability[:, occurring], torch.searchsorted(occurring, labels))
    return metrics


def _balanced_accuracy(correct: Tensor, labels: Tensor) -> float:
    count, hits = labels.bincount(), labels.bincount(correct.double())
    occurs = count > 0
    return float((hits[occurs] / count[occurs]).mean())


def _weighted_f1(predicted: Tensor, labels: Tensor, classes: int) -> float:
    found, truth = (which.bincount(minlength=classes).double() for which in (predicted, labels))
    hits = labels[predicted == labels].bincount(minlength=classes).double()
    f1 = 2 * hits / (found + truth).clamp_min(1)  # 2 TP / (2 TP + FP + FN); 0 for a class that is nowhere
    return float((f1 * truth).sum() / truth.sum())


def _weighted_auc(probability: Tensor, labels: Tensor) -> float:
    """By the ranks of each class's samples in its column (Mann and Whitney); equal probabilities share their mean rank."""
    areas, counts = [], labels.bincount(minlength=probability.shape[1]).double()
    for number, column in enumerate(probability.double().unbind(1)):
        _, place, ties = column.unique(return_inverse=True, return_counts=True)
        rank = ties.cumsum(0).double() - (ties.double() - 1) / 2
        inside, outside = counts[number], len(labels) - counts[number]
        areas.append((rank[place][labels == number].sum() - inside * (inside + 1) / 2) / (inside * outside))
    return float((torch.stack(areas) * counts).sum() / counts.sum())


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    """Expected calibration error: the mean over bins of |accuracy - confidence|, weighted by their samples.

    A confidence of exactly 1, common in trained networks, is in the last bin and not in one of its own.

    >>> round(calibration_error(torch.tensor([1.0, 0.95]), torch.tensor([False, True])), 6)  # one bin: |0.5 - 0.975|
    0.475
    """
    edges = torch.arange(1, bins, dtype=torch.float64) / bins
    gap = torch.bincount(torch.bucketize(confidence.double(), edges), confidence.double() - correct.double())
    return float(gap.abs().sum()) / len(confidence)


class MaskMeter:
    """The metrics of a segmentation; `quick`: without the surface distances, which are costly. `own`: a user's own beside them."""

    def __init__(self, structures: Sequence[str], loss: Loss, quick: bool = False, own: Own | None = None) -> None:
        self._structures, self._loss, self._quick, self._own = tuple(structures), loss, quick, own
        self._whole: list[tuple[Tensor, Tensor]] = []  # probabilities and masks, kept for a user's own metric alone
        self._losses: list[Tensor] = []
        self._waiting: list[_Batch] = []
        self._scores: dict[str, list[NDArray[Any]]] = {}  # per metric: [cases, structures], a part per batch
        self._cases, self._spaced = 0, False

    def update(self, logits: Tensor, labels: Tensor, spacing: Tensor | None = None) -> None:
        self._check(logits, labels, spacing)
        logits = logits.detach().float()
        self._losses.append(self._loss(logits, labels) * len(logits))
        found, truth = logits > 0, labels.bool()
        sizes = torch.stack([mask.flatten(2).count_nonzero(2) for mask in (found & truth, found, truth)])
        both = None if self._quick else found.byte().add_(truth.byte(), alpha=2)  # two masks in one byte
        self._waiting.append(_Batch(sizes, both, spacing))
        self._cases += len(logits)
        if self._own:
            self._whole.append((logits.sigmoid().cpu(), labels.cpu().clone()))

    def compute(self) -> dict[str, float]:
        if not self._cases:
            return {}
        metrics = {"loss": float(torch.stack(self._losses).sum()) / self._cases}
        for name, values in self._table().items():
            each = values.sum(0) if name == "unmatched" else values.mean(0)
            metrics |= self._named(name, each)
        own = {}
        if self._own:
            own[self._own.name] = own_score(self._own, *(torch.cat(parts) for parts in zip(*self._whole, strict=True)))
        return _finite(metrics) | own

    def cases(self) -> list[dict[str, float]]:
        """The metrics of every case, in the order in which they came; their means are what `compute` gives."""
        table = self._table()
        rows: list[dict[str, float]] = [{} for _ in range(self._cases)]
        for name, values in table.items():
            for row, each in zip(rows, values, strict=True):
                row |= self._named(name, each)
        return rows

    def _named(self, name: str, each: NDArray[Any]) -> dict[str, float]:
        whole = each.sum() if name == "unmatched" else each.mean()
        return {name: float(whole), **{f"{name}_{s}": float(value) for s, value in zip(self._structures, each, strict=True)}}

    def _table(self) -> dict[str, NDArray[Any]]:
        for batch in self._waiting:
            for name, values in batch.scores().items():
                self._scores.setdefault(name, []).append(values)
        self._waiting.clear()
        return {name: np.concatenate(parts) for name, parts in self._scores.items()}

    def _check(self, logits: Tensor, labels: Tensor, spacing: Tensor | None) -> None:
        if logits.ndim != 4 or logits.shape[1] != len(self._structures) or labels.shape != logits.shape:
            got = f"logits {list(logits.shape)} and masks {list(labels.shape)}"
            raise BadInput(f"{got}; expected both [n, {len(self._structures)}, height, width]: {', '.join(self._structures)}")
        if spacing is not None and spacing.shape != (len(logits), 2):
            raise BadInput(f"spacing is {list(spacing.shape)} for {len(logits)} cases; expected [{len(logits)}, 2], millimetres per pixel")
        if self._cases and self._spaced != (spacing is not None):
            raise BadInput("some batches have a spacing and some have none; give it for all (millimetres) or for none (pixels)")
        self._spaced = spacing is not None


@dataclass(frozen=True)
class _Batch:
    """What is left of a batch on the device until somebody asks for its scores."""

    sizes: Tensor  # [3, cases, structures]: pixels in both masks, in the found one, in the true one
    both: Tensor | None  # uint8 [cases, structures, height, width]: found + 2 * true
    spacing: Tensor | None

    def scores(self) -> dict[str, NDArray[Any]]:
        overlap, found, truth = self.sizes.cpu().numpy()
        total = found + truth
        scores = {"dice": np.where(total > 0, 2 * overlap / np.maximum(total, 1), 1.0)}
        if self.both is not None:
            scores["hd"], scores["hd95"] = self._distances(self.both.cpu().numpy())
        return {**scores, "unmatched": (found > 0) != (truth > 0)}

    def _distances(self, both: NDArray[np.uint8]) -> NDArray[np.float64]:
        cases, structures = both.shape[:2]
        spacing = np.ones((cases, 2)) if self.spacing is None else self.spacing.double().cpu().numpy()
        if not (np.isfinite(spacing) & (spacing > 0)).all():
            raise BadInput(f"a spacing of {spacing.min()} to {spacing.max()} mm per pixel; expected positive numbers")
        result = np.empty((2, cases, structures))
        for case, structure in np.ndindex(cases, structures):
            pair = both[case, structure]
            result[:, case, structure] = hausdorff(pair & 1 > 0, pair > 1, spacing[case])
        return result


def hausdorff(found: Mask, truth: Mask, spacing: Sequence[float] | NDArray[np.float64] = (1.0, 1.0)) -> tuple[float, float]:
    """The Hausdorff distance of two 2-D masks and its 95th percentile (HD, HD95), with the rules for empty masks.

    >>> a, b = np.zeros((2, 6, 8), dtype=bool)
    >>> a[2, 2] = b[2, 5] = True
    >>> hausdorff(a, b), hausdorff(a, b, spacing=(1.0, 0.5)), hausdorff(a, b & False), hausdorff(b & False, b & False)
    ((3.0, 3.0), (1.5, 1.5), (10.0, 10.0), (0.0, 0.0))
    """
    if not (found.any() and truth.any()):
        diagonal = math.hypot(*(found.shape * np.asarray(spacing))) if found.any() or truth.any() else 0.0
        return diagonal, diagonal
    box = _bounding_box(found | truth)  # no border lies outside it
    distances = surface_distances(found[box], truth[box], spacing)
    return float(distances.max()), float(np.percentile(distances, 95))


def surface_distances(a: Mask, b: Mask, spacing: Sequence[float] | NDArray[np.float64] = (1.0, 1.0)) -> NDArray[np.float64]:
    """From each border pixel of one mask to the nearest border pixel of the other, both directions in one row; neither may be empty.

    The border is the mask less its erosion with the cross of four neighbours; pixels at the image's edge belong to it. Distances are
    Euclidean between pixel centres. HD95 as the percentile of both directions together is medpy's convention; others (MONAI) take the
    larger of the two directions' percentiles.
    """
    borders = _border(a), _border(b)
    return np.concatenate([_to_nearest(borders[0], borders[1], spacing), _to_nearest(borders[1], borders[0], spacing)])


def _to_nearest(start: Mask, goal: Mask, spacing: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.ndimage import distance_transform_edt

    # Only the nearest pixels are asked for: distances for the whole image would take half as long again.
    nearest: NDArray[np.int32] = distance_transform_edt(~goal, sampling=spacing, return_distances=False, return_indices=True)
    here = np.argwhere(start)
    steps: NDArray[np.float64] = (nearest[:, start].T - here) * np.asarray(spacing)
    return np.hypot(steps[:, 0], steps[:, 1])


def _border(mask: Mask) -> Mask:
    around = np.pad(mask, 1)
    inside = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    return mask & ~inside


def _bounding_box(mask: Mask) -> tuple[slice, slice]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: min(value, LARGEST) if name == "loss" else value for name, value in metrics.items() if math.isfinite(value)}
