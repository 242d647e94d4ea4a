"""t-SNE of features, by class and by domain (FedSB Fig. 2), with FedADG's reference distribution (its Fig. 3 and 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unseen.deploy.finished import FinishedRun
from unseen.figures.drawing import COLOURS, key_of_markers, sheet
from unseen.figures.outputs import drawn, look, only, server_state
from unseen.methods.fedadg import FedADG
from unseen.ops.adversarial import draw_reference, one_hot
from unseen.randomness import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["reference_features", "tsne"]

_MARKERS = "osD^vPX*<>"


def reference_features(run: FinishedRun, labels: Tensor) -> Tensor | None:
    """FedADG's h' for these labels; None for another method, or where it aligns to no generated distribution."""
    method: Any = run.world.experiment.method
    if not isinstance(method, FedADG) or not method.adversaries.adversary:
        return None
    state: Any = server_state(run)
    rng = generator(0, "figure", "reference")
    if state.generator is None:
        return draw_reference(method.adversaries.reference, len(labels), run.net.feature_size, rng)
    net: Any = run.world.builders["generator"]()
    net.load_state_dict(state.generator)
    noise = draw_reference(method.adversaries.reference, len(labels), net.fc1.in_features - net.classes, rng)
    with torch.inference_mode():
        features: Tensor = net.eval()(noise, one_hot(labels, run.world.dataset.task.outputs, method.adversaries.one_hot))
    return features


def tsne(run: FinishedRun, per_domain: int = 150, seed: int = 0) -> Figure:
    """Features of every domain, sources and unseen, in two dimensions."""
    from sklearn.manifold import TSNE

    only(run, "classification", "t-SNE by class")
    domains = [*run.world.fold.sources, *run.world.fold.held_out, *run.world.fold.targets]
    seen = [look(run, drawn(d, per_domain)) for d in domains]
    labels = torch.cat([s.labels for s in seen])
    where = np.concatenate([np.full(len(s.labels), n) for n, s in enumerate(seen)])
    reference = reference_features(run, labels[:per_domain])
    everything = torch.cat([*(s.features for s in seen), *([] if reference is None else [reference])])
    perplexity = min(30.0, (len(everything) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(everything.numpy())
    return _drawn(run, points, labels.numpy(), where, [d.name for d in domains])


def _drawn(run: FinishedRun, points: Any, labels: Any, where: Any, names: list[str]) -> Figure:
    task: Any = run.world.dataset.task
    unseen = {d.name for d in run.world.fold.targets}
    own = points[: len(labels)]
    figure, axes = sheet(1, 2, 6.0, 4.4)
    titles = [f"{name} (unseen)" if name in unseen else name for name in names]
    for number in range(len(titles)):
        here = where == number
        style: dict[str, Any] = {"s": 12, "alpha": 0.75, "linewidths": 0}
        axes[0][1].scatter(own[here, 0], own[here, 1], color=COLOURS[number % 10], marker=_MARKERS[number % 10], **style)
        for label in range(len(task.classes)):
            both = here & (labels == label)
            axes[0][0].scatter(own[both, 0], own[both, 1], color=COLOURS[label % 10], marker=_MARKERS[number % 10], **style)
    markers = [_MARKERS[number % 10] for number in range(len(titles))]
    classes = key_of_markers(task.classes, ["s"] * len(task.classes), [COLOURS[n % 10] for n in range(len(task.classes))])
    domains = key_of_markers(titles, markers, ["gray"] * len(titles))
    keys = [classes + domains, key_of_markers(titles, markers, [COLOURS[n % 10] for n in range(len(titles))])]
    for panel, title, key in zip(axes[0], ("colour: class; marker: domain", "by domain"), keys, strict=True):
        if len(points) > len(labels):
            panel.scatter(
                points[len(labels) :, 0],
                points[len(labels) :, 1],
                color="black",
                marker="x",
                s=10,
                linewidths=0.6,
                alpha=0.6,
            )
            key += key_of_markers(["FedADG's reference"], ["x"], ["black"])
        panel.set(title=title, xticks=[], yticks=[])
        panel.legend(handles=key, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.suptitle(f"{run.about['name']}: features, t-SNE")
    return figure
