"""Which classes a site's images have, from the change of the layer that gives logits.

The gradient of a logit's bias is the mean of (prediction - label), so a class that is frequent pushes its bias up (Zhao et al.,
"iDLG", 2020; Wainakh et al., "User-level label leakage from gradients", 2022). Over several steps, and with other optimisers, this
is an estimate.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["few_images_behind", "frequencies", "labels_by_frequency", "overlap", "pushed_up"]

Floats = NDArray[np.float64]
_TINY = 1e-5  # singular values below this share of the largest are rounding


def frequencies(bias: Tensor, length: float | None) -> Floats:
    """The classes' shares, from what was added to the logits' bias. `length` is learning rate times steps, where it is known.

    Predictions are taken to be even before training. Without a length, the class that was pushed down most is taken to be absent.

    >>> frequencies(torch.tensor([0.75, -0.25, -0.25, -0.25]), 1.0).tolist()  # one image of class 0, one step
    [1.0, 0.0, 0.0, 0.0]
    """
    push = bias.double().numpy()
    push = push - push.mean()
    raw = 1 / len(push) + push / length if length else push - push.min()
    raw = np.clip(raw, 0, None)
    total = float(raw.sum())
    shares: Floats = raw / total if total > 0 and np.isfinite(total) else np.full(len(push), 1 / len(push))
    return shares


def overlap(one: Floats, other: Floats) -> float:
    """How much two distributions have in common, from 0 to 1.

    >>> overlap(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    0.5
    """
    return float(np.minimum(one, other).sum())


def labels_by_frequency(shares: Floats, number: int) -> Tensor:
    """As many labels as images are searched, in these shares: largest remainders are rounded up.

    >>> labels_by_frequency(np.array([0.5, 0.0, 0.5]), 3).tolist()
    [0, 0, 2]
    """
    exact = shares * number
    counts = np.floor(exact).astype(np.int64)
    for place in np.argsort(-(exact - counts), kind="stable")[: number - int(counts.sum())]:
        counts[place] += 1
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts))


def few_images_behind(weight: Tensor) -> tuple[int, int]:
    """The rank of a change of the last layer's weights, and the largest that it could have: a gradient's rank is at most its images."""
    values = torch.linalg.svdvals(weight.double().reshape(len(weight), -1))
    top = float(values[0])
    return (int((values > _TINY * top).sum()) if top > 0 else 0), len(values)


def pushed_up(bias: Tensor) -> set[int]:
    """The classes whose logits a change pushed up clearly: the labels of a few images."""
    push = bias.double() - bias.double().mean()
    return {int(n) for n in torch.nonzero(push > 0.4 * push.max()).flatten()} if float(push.max()) > 0 else set()
