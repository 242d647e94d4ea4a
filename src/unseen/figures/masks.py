"""Segmentations over their images, errors marked: the best, the median and the worst case of the unseen domain (ELCFS Fig. 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from unseen.deploy.finished import FinishedRun
from unseen.figures.drawing import sheet, show_image
from unseen.figures.outputs import drawn, look, only

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["best_median_worst", "marked", "overlays"]

_FOUND, _MISSED, _WRONG = (43, 170, 80), (40, 110, 255), (240, 60, 50)  # right, overlooked, where nothing is


def best_median_worst(scores: NDArray[np.float64]) -> tuple[int, int, int]:
    """Which cases; of an even number the lower middle one.

    >>> best_median_worst(np.array([0.5, 0.9, 0.1, 0.7]))
    (1, 0, 2)
    """
    order = np.argsort(scores, kind="stable")
    return int(order[-1]), int(order[(len(order) - 1) // 2]), int(order[0])


def marked(image: NDArray[np.uint8], found: NDArray[np.bool_], truth: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The image [3, h, w] with green where both agree, blue where the mask was missed, red where it was made up."""
    result = image.astype(np.float64)
    for where, colour in ((found & truth, _FOUND), (~found & truth, _MISSED), (found & ~truth, _WRONG)):
        result[:, where] = 0.5 * result[:, where] + 0.5 * np.array(colour)[:, None]
    return result.round().astype(np.uint8)


def overlays(run: FinishedRun) -> Figure:
    """Rows: best, median and worst case by Dice; columns: the image, then each structure."""
    only(run, "segmentation", "an overlay")
    task: Any = run.world.dataset.task
    targets = run.world.fold.targets
    figure, axes = sheet(3 * len(targets), 1 + len(task.structures), 2.6, 2.7)
    for block, domain in enumerate(targets):
        samples = drawn(domain, 500)
        seen = look(run, samples)
        found, truth = (seen.logits > 0).numpy(), seen.labels.numpy() > 0
        both, sizes = (found & truth).sum((2, 3)), found.sum((2, 3)) + truth.sum((2, 3))
        dice = np.where(sizes > 0, 2 * both / np.maximum(sizes, 1), 1.0)
        for row, (word, case) in enumerate(zip(("best", "median", "worst"), best_median_worst(dice.mean(1)), strict=True)):
            panels = axes[3 * block + row]
            image = samples.take(torch.tensor([case]))[0][0].numpy()
            image = np.repeat(image, 3, 0) if len(image) == 1 else image[:3]
            show_image(panels[0], image, f"{domain.name}, {word}: Dice {100 * dice[case].mean():.1f}")
            for panel, (number, name) in zip(panels[1:], enumerate(task.structures), strict=True):
                show_image(panel, marked(image, found[case, number], truth[case, number]), f"{name}: {100 * dice[case, number]:.1f}")
    figure.supxlabel("green: right, blue: overlooked, red: where nothing is", fontsize=9)
    return figure
