"""How far clients agree on the direction of every weight. Tenison et al., "Gradient masked averaging", TMLR 2023 (FedGMA)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from unseen.state import State

__all__ = ["change_signs", "masked_change"]


def change_signs(model: State, before: State, parameters: Iterable[str]) -> State:
    """sign(D_k), with D_k what a client changed: -1, 0 or 1 for every weight."""
    return {name: torch.sign(model[name] - before[name].to(model[name].device)) for name in parameters}


def masked_change(before: State, average: State, signs: State, threshold: float) -> State:
    """theta + m D, from the mean model theta + D and the clients' mean signs; A = |mean sign|, m = 1 where A >= tau, else A.

    >>> start, reached, signs = ({"w": torch.tensor([v, v])} for v in (0.0, 3.0, 0.0))
    >>> masked_change(start, reached, {"w": torch.tensor([-1.0, 0.5])}, 0.8)
    {'w': tensor([3.0000, 1.5000])}
    """
    moved = dict(average)
    for name, sign in signs.items():
        start, agreement = before[name].to(sign.device), sign.abs()
        moved[name] = torch.where(agreement >= threshold, average[name], start + agreement * (average[name] - start))
    return moved
