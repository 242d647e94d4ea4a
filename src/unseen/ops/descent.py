"""Steps of an optimiser where several networks are trained against each other."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["own_step"]


def own_step(optimizer: Optimizer, loss: Tensor) -> None:
    """A step of one optimiser. Networks that are not its own are fixed: no gradient is computed for them."""
    optimizer.zero_grad()
    loss.backward(inputs=[weight for group in optimizer.param_groups for weight in group["params"]])
    optimizer.step()
