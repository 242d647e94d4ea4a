"""Class activation maps on unseen images, methods side by side (FedGCA Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.deploy.finished import FinishedRun
from unseen.errors import BadInput
from unseen.figures.drawing import sheet, show_image
from unseen.figures.outputs import drawn, normalised, only
from unseen.ops.cam import class_activation, gradient_activation, head_weight

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["activation_maps", "cam"]


def activation_maps(run: FinishedRun, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of byte images: the map of each one's class from 0 to 1 at the images' size, and the predicted classes."""
    seen = run.net(normalised(run, images), full=True)
    weight = head_weight(run.net)
    raw = gradient_activation(seen, labels, again=False) if weight is None else class_activation(seen.maps[-1], weight, labels)
    wide = F.interpolate(raw.detach()[:, None], size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    low, high = wide.amin((1, 2), keepdim=True), wide.amax((1, 2), keepdim=True)
    return (wide - low) / (high - low).clamp_min(1e-12), seen.logits.argmax(1)


def cam(runs: Sequence[FinishedRun], images: int = 5) -> Figure:
    """Rows: images of the first unseen domain; columns: each run's map of the true class."""
    for run in runs:
        only(run, "classification", "a class activation map")
    first = runs[0]
    task: Any = first.world.dataset.task
    targets = [tuple(d.name for d in run.world.fold.targets) for run in runs]
    if len(set(targets)) > 1 or len({run.world.dataset.name for run in runs}) > 1:
        raise BadInput(f"runs side by side must have the same data and unseen domain; these have {', '.join('+'.join(t) for t in targets)}")
    samples = drawn(first.world.fold.targets[0], images)
    pictures, labels = samples.take(torch.arange(len(samples)))
    figure, axes = sheet(len(pictures), 1 + len(runs), 2.2, 2.3)
    for row, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        show_image(axes[row][0], picture.numpy(), task.classes[int(label)])
    for column, run in enumerate(runs, 1):
        maps, predicted = activation_maps(run, pictures, labels)
        for row, (picture, heat) in enumerate(zip(pictures, maps, strict=True)):
            right = predicted[row] == labels[row]
            title = f"{run.about['name']}: {'right' if right else task.classes[int(predicted[row])]}"
            show_image(axes[row][column], picture.numpy(), title)
            shown = axes[row][column].imshow(heat.numpy(), cmap="jet", alpha=0.45, vmin=0, vmax=1)
    figure.colorbar(shown, ax=axes[-1], location="bottom", shrink=0.5, label="how much a place speaks for the true class")
    return figure
