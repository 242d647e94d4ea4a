"""Confusion matrices and reliability diagrams on the unseen domains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.deploy.finished import FinishedRun
from unseen.figures.drawing import COLOURS, heat_map, sheet
from unseen.figures.outputs import drawn, look, only
from unseen.metrics import calibration_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["confusion", "confusion_counts", "reliability", "reliability_bins"]

_ALL = 10**9


def confusion_counts(labels: Tensor, predicted: Tensor, classes: int) -> NDArray[np.int64]:
    """Rows are the truth, columns the prediction.

    >>> confusion_counts(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
    [[1, 0], [1, 1]]
    """
    return np.bincount((labels * classes + predicted).numpy(), minlength=classes * classes).reshape(classes, classes)


def confusion(run: FinishedRun) -> Figure:
    """One matrix per unseen domain, each row in percent of its class."""
    only(run, "classification", "a confusion matrix")
    task: Any = run.world.dataset.task
    side = max(3.2, 0.42 * len(task.classes) + 1.2)
    figure, axes = sheet(1, len(run.world.fold.targets), side + 0.4, side)
    for panel, domain in zip(axes[0], run.world.fold.targets, strict=True):
        seen = look(run, drawn(domain, _ALL))
        counts = confusion_counts(seen.labels, seen.logits.argmax(1), len(task.classes))
        heat_map(panel, 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1), task.classes, task.classes, "{:.0f}", high=100)
        panel.set(
            title=f"{domain.name}: {100 * counts.trace() / counts.sum():.1f} % right",
            xlabel="predicted, % of the true class",
            ylabel="true",
        )
    return figure


def reliability_bins(confidence: Tensor, correct: Tensor, bins: int = 15) -> list[tuple[float, float, float, int]]:
    """Of each bin (a, b] that is not empty: its middle, mean confidence, accuracy and size.

    >>> reliability_bins(torch.tensor([0.95, 0.99]), torch.tensor([1.0, 0.0]), bins=10)
    [(0.95, 0.9700000286102295, 0.5, 2)]
    """
    where = torch.bucketize(confidence.double(), torch.arange(1, bins, dtype=torch.float64) / bins)
    rows = []
    for number in where.unique().tolist():
        here = where == number
        rows.append(((number + 0.5) / bins, float(confidence[here].mean()), float(correct[here].float().mean()), int(here.sum())))
    return rows


def reliability(run: FinishedRun) -> Figure:
    """Accuracy against confidence on each unseen domain; on the diagonal, a model means what it says."""
    only(run, "classification", "a reliability diagram")
    figure, axes = sheet(1, len(run.world.fold.targets))
    for panel, domain in zip(axes[0], run.world.fold.targets, strict=True):
        seen = look(run, drawn(domain, _ALL))
        confidence, predicted = seen.logits.double().softmax(1).max(1)
        correct = (predicted == seen.labels).double()
        rows = reliability_bins(confidence, correct)
        panel.bar(
            [r[0] for r in rows], [r[2] for r in rows], width=1 / 15, color=COLOURS[0], alpha=0.75, edgecolor="white", label="accuracy"
        )
        panel.plot([r[1] for r in rows], [r[2] for r in rows], "o", color=COLOURS[1], markersize=3, label="mean confidence")
        panel.plot([0, 1], [0, 1], "--", color="gray", linewidth=1)
        ece = 100 * calibration_error(confidence, correct)
        panel.set(title=f"{domain.name}: ECE {ece:.1f} %", xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        panel.legend(fontsize=7)
    return figure
