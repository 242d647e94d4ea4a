"""Probabilities that mean what they say: one temperature, fitted on the source sites' validation parts.

Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017, Section 4.2.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

__all__ = ["fit_temperature", "nll", "probabilities"]

_RANGE = (0.05, 20.0)  # temperatures beyond it say that the fit has nothing to hold on to


def nll(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """Mean negative log likelihood: over classes for labels [n], over pixels for masks of the logits' shape."""
    scaled = logits.double() / temperature
    if labels.shape == logits.shape:
        return float(F.binary_cross_entropy_with_logits(scaled, labels.double()))
    return float(F.cross_entropy(scaled, labels.long()))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the smallest likelihood loss; it changes no prediction."""
    from scipy.optimize import minimize_scalar

    low, high = (math.log(bound) for bound in _RANGE)
    found = minimize_scalar(lambda t: nll(logits, labels, math.exp(t)), bounds=(low, high), method="bounded", options={"xatol": 1e-4})
    return math.exp(float(found.x))


def probabilities(logits: Tensor, temperature: float, masks: bool) -> Tensor:
    """Per class (they add up to 1), or per pixel and structure for masks. In float64 between: a logit may be large, a temperature small.

    >>> import torch
    >>> probabilities(torch.tensor([[2.0, 0.0]]), 2.0, masks=False)[0, 0] == torch.sigmoid(torch.tensor(1.0))
    tensor(True)
    """
    scaled = logits.double() / temperature
    return (scaled.sigmoid() if masks else scaled.softmax(1)).float()
