"""The distance between two views of an image as a network sees them (FedDAG, Eq. 1, 2 and 4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.state import copy_all

__all__ = ["clipped_discrepancy", "discrepancy", "follow", "perturb"]


def discrepancy(features: Tensor, others: Tensor) -> Tensor:
    """|| f/|f| - f^/|f^| ||^2 for each instance: from 0 to 4 (FedDAG, Eq. 4).

    >>> discrepancy(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 5.0], [0.0, 3.0]]))
    tensor([2., 0.])
    """
    f, f_hat = (F.normalize(t.flatten(1).float() if t.dtype is torch.bfloat16 else t.flatten(1), dim=1) for t in (features, others))
    return (f - f_hat).square().sum(1)


def clipped_discrepancy(features: Tensor, others: Tensor, m: float) -> Tensor:
    """min(|| f/|f| - f^/|f^| ||^2, m) for each instance: beyond m there is nothing to gain (FedDAG, Eq. 1).

    >>> clipped_discrepancy(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 5.0]]), m=0.1)
    tensor([0.1000])
    """
    return discrepancy(features, others).clamp(max=m)


def perturb(images: Tensor, perturbation: Tensor, alpha: float) -> Tensor:
    """x^ = x + alpha G(x) (FedDAG, Eq. 2)."""
    return images + alpha * perturbation


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, decay: float, copy_buffers: bool = False) -> None:
    """The teacher's weights become decay T + (1 - decay) S; so do floating buffers unless they are copied; counters are copied."""
    moved: list[tuple[Tensor, Tensor]] = [*zip(teacher.parameters(), student.parameters(), strict=True)]
    taken: list[tuple[Tensor, Tensor]] = []
    for kept, seen in zip(teacher.buffers(), student.buffers(), strict=True):
        (taken if copy_buffers or not kept.is_floating_point() else moved).append((kept, seen))
    torch._foreach_lerp_([t for t, _ in moved], [s for _, s in moved], 1 - decay)
    copy_all([kept for kept, _ in taken], [seen for _, seen in taken])
