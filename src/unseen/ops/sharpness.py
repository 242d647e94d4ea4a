"""Sharpness-aware minimisation. Foret et al., "Sharpness-aware minimization for efficiently improving generalization", ICLR 2021."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unseen.networks.norm import statistics_kept
from unseen.state import copied, copy_all

__all__ = ["ascent", "sam_step"]

_SMALLEST_NORM = 1e-12  # where the gradient vanishes there is no direction to climb


def ascent(gradients: list[Tensor], rho: float) -> list[Tensor]:
    """rho g / |g|, the norm taken over all parameters together: the steepest way up within a ball of radius rho.

    >>> ascent([torch.tensor([3.0]), torch.tensor([4.0])], 0.5)
    [tensor([0.3000]), tensor([0.4000])]
    """
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    ways = torch._foreach_mul(gradients, rho)
    torch._foreach_div_(ways, norm + _SMALLEST_NORM)
    return list(ways)


def sam_step(
    net: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], rho: float, add_gradient: Callable[[], None] = lambda: None
) -> None:
    """Climb to w + rho g / |g|, take the gradient there, and descend with it from w.

    `loss` is evaluated twice, and so is `add_gradient`, which adds a known gradient to the loss's. Running statistics of batch norm
    are taken at w alone.
    """
    optimizer.zero_grad()
    loss().backward()
    add_gradient()
    weights = [w for group in optimizer.param_groups for w in group["params"] if w.grad is not None]
    before = [*copied({str(number): w for number, w in enumerate(weights)}).values()]
    with torch.no_grad():
        torch._foreach_add_(weights, ascent([w.grad for w in weights if w.grad is not None], rho))
    torch.clear_autocast_cache()  # under bf16 it holds copies of the weights at w
    optimizer.zero_grad()
    with statistics_kept(net):
        loss().backward()
    add_gradient()
    with torch.no_grad():
        copy_all(weights, before)
    optimizer.step()
