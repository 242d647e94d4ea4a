"""FedSR's reference r(z | y): a Gaussian for every class, and the scale that its released code puts before the comparison."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["ClassReference"]


class ClassReference(nn.Module):
    """Means start at 0, deviations at softplus(1), the scale at 1: nothing is drawn, so all clients begin alike."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(classes, size))
        self.rho = nn.Parameter(torch.ones(classes, size))  # the deviation is its softplus
        self.scale = nn.Parameter(torch.ones(()))
