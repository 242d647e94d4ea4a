"""Steps of an optimiser where several networks are trained against each other."""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from unseen.state import State

__all__ = ["give_momentum", "momentum_of", "own_step"]


def own_step(optimizer: Optimizer, loss: Tensor) -> None:
    """A step of one optimiser. Networks that are not its own are fixed: no gradient is computed for them."""
    optimizer.zero_grad()
    loss.backward(inputs=[weight for group in optimizer.param_groups for weight in group["params"]])
    optimizer.step()


def momentum_of(optimizer: Optimizer, net: nn.Module) -> State:
    """SGD's momentum by parameter name, copied; nothing for a parameter that was never moved."""
    return {name: optimizer.state[w]["momentum_buffer"].clone() for name, w in net.named_parameters() if w in optimizer.state}


def give_momentum(optimizer: Optimizer, net: nn.Module, momentum: State) -> None:
    """The inverse of `momentum_of`. A buffer that is there already is written in place: a step recorded on a GPU knows its address."""
    weights = dict(net.named_parameters())
    for name, value in momentum.items():
        held = optimizer.state[weights[name]]
        if "momentum_buffer" in held:
            held["momentum_buffer"].copy_(value)
        else:
            held["momentum_buffer"] = value.to(weights[name].device, copy=True)
