"""Steps of an optimiser where several networks are trained against each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["judging", "own_step"]


def own_step(optimizer: Optimizer, loss: Tensor) -> None:
    """A step of one optimiser. Networks that are not its own are fixed: no gradient is computed for them."""
    optimizer.zero_grad()
    loss.backward(inputs=[weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad])
    optimizer.step()
    torch.clear_autocast_cache()  # under bf16 it holds copies of the weights as they were, for whoever asks this network next


@contextmanager
def judging(net: nn.Module) -> Iterator[None]:
    """A network judges another's step: it gets no gradients, and runs in evaluation mode. Afterwards it trains as before."""
    learning = [weight for weight in net.parameters() if weight.requires_grad]
    net.eval()
    for weight in learning:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learning:
            weight.requires_grad_(True)
        net.train()
