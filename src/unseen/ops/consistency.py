"""How far the views of an image are from agreeing: FedGCA's global guided semantic consistency (Liu et al., 2024, Eq. 2-4).

Predictions and maps are distributions along the last dimension, [views, n, ..., classes] or [views, n, positions]. Losses are summed
over the local model's views, as printed, and averaged over the samples.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Consistency", "OverClasses", "by_view", "jensen_shannon", "map_consistency", "mean_of_views", "prediction_consistency"]

Consistency = Literal["bce", "kl"]
OverClasses = Literal["mean", "sum"]
_SMALLEST = 1e-7  # a probability below it counts as this much in a logarithm


def by_view(rows: Tensor, samples: int) -> Tensor:
    """The rows of a batch of views, [views * n, ...], as [views, n, ...]."""
    return rows.reshape(-1, samples, *rows.shape[1:])


def mean_of_views(local: Tensor, guide: Tensor | None = None, *, stop: bool = False) -> Tensor:
    """The mean of P_i and, with a guide, P_i^G over all their views. The guide is never differentiated; with `stop` nothing is."""
    everyone = local if guide is None else torch.cat([local, guide.detach()])
    average = everyone.mean(0)
    return average.detach() if stop else average


def prediction_consistency(local: Tensor, average: Tensor, form: Consistency = "bce", over_classes: OverClasses = "mean") -> Tensor:
    """L_CP, Eq. 2.

    `bce`, as printed: binary cross entropy with the average as input and each local prediction as target; it is not zero where all
    agree. Eq. 2 does not say how the classes become one number: their mean or their sum. `kl`, as the text says: KL(p_ij || average).

    >>> p = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])  # two views of one sample agree
    >>> round(float(prediction_consistency(p, p.mean(0))), 4)  # 2 views x log 2
    1.3863
    >>> float(prediction_consistency(p, p.mean(0), "kl"))
    0.0
    """
    if form == "kl":
        return _divergence(local, average)
    entropy = -(local * _log(average) + (1 - local) * _log(1 - average))
    per_view = entropy.mean(-1) if over_classes == "mean" else entropy.sum(-1)
    return _over_samples(per_view)


def jensen_shannon(views: Tensor) -> Tensor:
    """JS = 1/V sum_v KL(p_v || M), M being the mean of the V views' predictions (AugMix; FedCCRL); the mean over samples.

    >>> round(float(jensen_shannon(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))), 4)  # they disagree altogether: log 2
    0.6931
    """
    return _divergence(views, views.mean(0)) / len(views)


def map_consistency(local: Tensor, average: Tensor) -> Tensor:
    """L_CAM, Eq. 3: the sum over views of KL(M_ij || average), maps being distributions over positions."""
    return _divergence(local, average)


def _divergence(local: Tensor, average: Tensor) -> Tensor:
    return _over_samples((local * (_log(local) - _log(average))).sum(-1))


def _over_samples(per_view: Tensor) -> Tensor:
    """[views, n, ...] to the sum over views of the mean over everything else."""
    return per_view.flatten(1).mean(1).sum()


def _log(probability: Tensor) -> Tensor:
    return probability.clamp_min(_SMALLEST).log()
