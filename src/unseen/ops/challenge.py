"""Which features a network leans on most. Huang et al., "Self-challenging improves cross-domain generalization" (RSC), ECCV 2020.

The masks are 1 where a feature is kept and 0 where it is muted. Exactly the stated share is muted, rounded up, ties by position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["kept_channels", "kept_entries", "kept_positions", "most_changed"]


def kept_entries(slope: Tensor, share: float) -> Tensor:
    """Of vectors: mutes the entries [n, d] whose gradient is among the largest `share` of its row (Eq. 2-3).

    >>> kept_entries(torch.tensor([[0.3, -2.0, 0.9]]), 1 / 3)
    tensor([[1., 1., 0.]])
    """
    return (~_largest(slope, share)).to(slope.dtype)


def kept_channels(speaks: Tensor, share: float) -> Tensor:
    """Of maps [n, c, h, w]: mutes the channels where the mean over positions of what `speaks` is largest; [n, c, 1, 1]."""
    return kept_entries(speaks.mean((2, 3)), share)[:, :, None, None]


def kept_positions(speaks: Tensor, share: float) -> Tensor:
    """Of maps [n, c, h, w]: mutes the positions where the sum over channels of what `speaks` is largest; [n, 1, h, w]."""
    return kept_entries(speaks.sum(1).flatten(1), share).view(len(speaks), 1, *speaks.shape[2:])


def most_changed(change: Tensor, share: float) -> Tensor:
    """The samples [n] whose true class lost most of its probability, as true or false.

    >>> most_changed(torch.tensor([0.1, 0.5, -0.2]), 1 / 3)
    tensor([False,  True, False])
    """
    return _largest(change[None], share)[0]


def _largest(values: Tensor, share: float) -> Tensor:
    number = math.ceil(share * values.shape[1] - 1e-9)  # 0.1 * 30 is 3.0000000000000004
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, values.topk(number, 1).indices, True)
