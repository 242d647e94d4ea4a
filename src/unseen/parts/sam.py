"""The optimiser's step as a closure: plain, or sharpness-aware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from unseen.ops.sharpness import sam_step
from unseen.settings import Configured, hyper

__all__ = ["SAM", "descend"]


@dataclass(frozen=True)
class SAM(Configured):
    """Sharpness-aware minimisation: every step descends with the gradient of the worst point nearby. Twice the work of a step."""

    name: ClassVar[str] = "sam"

    rho: float = hyper(0.05, "how far to climb before the gradient is taken", symbol="rho", low=0.0)


def descend(
    net: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[], Tensor],
    sam: SAM | None = None,
    add_gradient: Callable[[], None] = lambda: None,
) -> None:
    """One step on what `loss` computes, and on a penalty whose gradient is known and added to the loss's."""
    if sam is not None:
        sam_step(net, optimizer, loss, sam.rho, add_gradient)
        return
    value = loss()
    optimizer.zero_grad()
    value.backward()
    add_gradient()
    optimizer.step()
