"""Agreement of two networks' logits by their cross-correlation (FCCL: Huang et al., 2022)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["correlation_loss", "cross_correlation", "divergence_from"]

_SMALLEST_SPREAD = 1e-6  # of a logit over a batch: one that is the same for all images correlates with nothing


def cross_correlation(own: Tensor, average: Tensor) -> Tensor:
    """c = Z^T Zbar / B of logits [B, classes], each column standardised over the batch: [classes, classes].

    The deviation is the unbiased one and the sum is over B, as released: equal logits have (B - 1) / B on the diagonal.
    """
    with torch.autocast(own.device.type, enabled=False):  # in 16 bits a correlation of 0.998 is 1
        z, zbar = ((t - t.mean(0)) / t.std(0).clamp_min(_SMALLEST_SPREAD) for t in (own.float(), average.float()))
        return z.T @ zbar / len(own)


def correlation_loss(own: Tensor, average: Tensor, off_diagonal: float) -> Tensor:
    """sum_i (c_ii - 1)^2 + weight * sum_{i != j} (c_ij + 1)^2: a class agrees with itself, and is opposed to the others."""
    c = cross_correlation(own, average)
    same = c.diagonal()
    return (same - 1).square().sum() + off_diagonal * ((c + 1).square().sum() - (same + 1).square().sum())


def divergence_from(teacher: Tensor, logits: Tensor) -> Tensor:
    """KL(p_teacher || p), the mean over a batch of logits.

    >>> import torch
    >>> float(divergence_from(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])))  # the same probabilities
    0.0
    """
    return F.kl_div(logits.float().log_softmax(1), teacher.float().softmax(1), reduction="batchmean")
