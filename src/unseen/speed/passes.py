"""The passes that a round makes, as so many bare steps: what a method needs, whoever runs it.

Operations in the task network, and those outside networks (random convolutions, spectra), count at the rate of the bare step. A
generator or a discriminator has a rate of its own: its plain convolutions may run ten times as many operations a second as depthwise
ones, and instance norm takes time that no operations tell. So passes of such a network are timed, without an optimiser, on what it was
given in the round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from unseen.client import Pool
from unseen.device.bare_step import BareStep
from unseen.device.operations import CountedOperations
from unseen.world import World

__all__ = ["Other", "PassesMade", "counted"]


@dataclass(frozen=True)
class Other:
    """A network beside the task's: how much a round computes in it, and a bare pass of it to time."""

    operations: int  # of all its passes in a round
    bare: BareStep

    def run(self, passes: int) -> None:
        self.bare.run_without_optimiser(passes)

    def seconds(self, of_one: float) -> float:
        """Of all its passes in a round, from those of a bare one."""
        return self.operations / self.bare.operations() * of_one


@dataclass
class PassesMade:
    """What was counted in a round."""

    task: int = 0  # operations in the task network and outside networks
    others: dict[str, Other] = field(default_factory=dict)  # by role


@contextmanager
def counted(world: World, pool: Pool) -> Iterator[PassesMade]:
    """Count what a round makes while this lasts, with the pool's networks."""
    passes, given = PassesMade(), dict[str, Callable[[], nn.Module]]()
    others = {role: pool.network(role, 0) for role in world.builders if role != "task"}
    nets = {role: net for role, net in others.items() if not type(net).__module__.startswith("torch.")}  # those have a name to count by

    def note(role: str, net: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if role not in given:
            mine = copy.deepcopy(net).requires_grad_(True)
            given[role] = partial(_OnThese, mine, [_own(arg) for arg in args], {name: _own(arg) for name, arg in named.items()})

    with ExitStack() as stack:
        for role, net in nets.items():
            stack.callback(net.register_forward_pre_hook(partial(note, role), with_kwargs=True).remove)
        counter = stack.enter_context(CountedOperations())
        yield passes
    made = {role: counter.inside(type(nets[role])) for role in given}
    passes.task = counter.total - sum(made.values())
    none, shape = torch.zeros(1), (1, 1, 1, 1)
    bare = {role: BareStep(make(), _size, shape, none, world.device, world.experiment.precision) for role, make in given.items()}
    passes.others = {role: Other(made[role], step) for role, step in bare.items()}


class _OnThese(nn.Module):
    """A network on what it was given once, whatever comes."""

    def __init__(self, net: nn.Module, args: list[Any], named: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.args, self.named = net, args, named

    def forward(self, _x: Tensor) -> Any:
        return self.net(*self.args, **self.named)


def _own(arg: Any) -> Any:
    """A copy of what a network was given, cut off from what made it."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), arg)


def _size(said: Any, _y: Tensor) -> Tensor:
    """A number of all that the network said, to differentiate."""
    parts = [part for part in tree_leaves(said) if isinstance(part, Tensor) and part.requires_grad]
    return torch.stack([part.float().square().mean() for part in parts]).sum()
