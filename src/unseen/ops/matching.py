"""A common direction of several changes of a model. FedOMG (ICLR 2025), from memory of the paper; the problem is that of CAGrad (2021)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["least_agreed", "on_simplex"]

Vector = NDArray[np.float64]
_STEPS = 2000
_SMALLEST = 1e-24  # of a squared length, so that the root has a slope


def least_agreed(products: NDArray[np.float64], kappa: float) -> Vector:
    """The weights w on the simplex that minimise D_w . D_0 + kappa |D_0| |D_w|, from the inner products D_j . D_k of the changes.

    D_w = sum_k w_k D_k, and D_0 is the plain mean. Projected gradient descent, each step as long as it still helps, until none does.

    >>> least_agreed(np.diag([1.0, 1.0]), 0.5).tolist()
    [0.5, 0.5]
    """
    clients = len(products)
    scale = max(float(np.trace(products)) / clients, _SMALLEST)
    gram = products / scale  # lengths about 1, so that one first step fits all
    to_mean = gram.mean(1)
    radius = kappa * math.sqrt(max(float(to_mean.mean()), 0.0))

    def length(w: Vector) -> float:
        return math.sqrt(max(float(w @ gram @ w), 0.0) + _SMALLEST)

    def value(w: Vector) -> float:
        return float(w @ to_mean) + radius * length(w)

    w, step = np.full(clients, 1 / clients), 1.0
    for _ in range(_STEPS):
        slope = to_mean + radius * (gram @ w) / length(w)
        step *= 2
        while step > 1e-12 and value(moved := on_simplex(w - step * slope)) >= value(w):
            step /= 2
        if step <= 1e-12:
            break
        w = moved
    return w


def on_simplex(v: Vector) -> Vector:
    """The nearest point with no negative entry and the sum 1 (Held, Wolfe and Crowder, 1974).

    >>> on_simplex(np.array([2.0, 0.5, -1.0])).tolist()
    [1.0, 0.0, 0.0]
    """
    ordered = np.sort(v)[::-1]
    above = (np.cumsum(ordered) - 1) / np.arange(1, len(v) + 1)
    nearest: Vector = np.maximum(v - above[np.flatnonzero(ordered > above)[-1]], 0.0)
    return nearest
