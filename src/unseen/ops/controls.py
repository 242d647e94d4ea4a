"""Control variates: a client's own mean gradient and everybody's. Karimireddy et al., "SCAFFOLD", ICML 2020, Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unseen.state import State

__all__ = ["add_correction", "renewed_control"]


def add_correction(net: nn.Module, correction: nn.Module) -> None:
    """Add c - c_i, which lies in the parameters of a network of the same architecture, to the gradients: line 10 of Algorithm 1."""
    with torch.no_grad():
        for w, towards in zip(net.parameters(), correction.parameters(), strict=True):
            if w.requires_grad:
                w.grad = (torch.zeros_like(w) if w.grad is None else w.grad).add_(towards)


def renewed_control(correction: Mapping[str, Tensor], start: State, reached: State, distance: float) -> State:
    """c_i+ = (x - y_i) / (K eta_l) - (c - c_i), option II: the mean gradient on the way. `distance` is K eta_l, above 0.

    >>> one = {"w": torch.tensor([1.0])}
    >>> renewed_control({"w": torch.tensor([0.5])}, one, {"w": torch.tensor([0.0])}, 0.25)
    {'w': tensor([3.5000])}
    """
    return {name: (start[name].to(d.device) - reached[name].to(d.device)) / distance - d for name, d in correction.items()}
