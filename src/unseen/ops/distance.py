"""How far apart the weights of two networks are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["squared_distance"]


def squared_distance(net: nn.Module, other: nn.Module) -> Tensor:
    """|w - v|^2 over the parameters of two networks of one architecture.

    >>> one, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(one.weight, 3.0), nn.init.constant_(other.weight, 1.0)
    >>> squared_distance(one, other).item()
    4.0
    """
    pairs = zip(net.parameters(), other.parameters(), strict=True)
    return sum((torch.sum((w - v) ** 2) for w, v in pairs), torch.zeros((), device=next(net.parameters()).device))
