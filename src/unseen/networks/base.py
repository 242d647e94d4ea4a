"""What every task network offers, so that any method can train any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple, overload

from torch import Tensor, nn

from unseen.state import Entries, entries_of

__all__ = ["Outputs", "TaskNet", "network_entries"]


class Outputs(NamedTuple):
    """All that a method may look at in one forward pass."""

    logits: Tensor
    features: Tensor  # what the head reads
    maps: tuple[Tensor, ...]  # the last convolution's output, or a U-Net's last two decoder maps, coarse to fine


class TaskNet(nn.Module, ABC):
    """A network with logits, features and maps in one call: `functional_call` reaches `forward` alone.

    `full` has no default in the branches: a subclass takes `forward(x, full=False)`.
    """

    feature_size: int  # channels of `features`

    @overload
    def __call__(self, x: Tensor, full: Literal[False] = False) -> Tensor: ...

    @overload
    def __call__(self, x: Tensor, full: Literal[True]) -> Outputs: ...

    def __call__(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        result: Tensor | Outputs = super().__call__(x, full)
        return result

    @abstractmethod
    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        """The logits; with `full`, the Outputs."""

    @abstractmethod
    def head(self) -> nn.Module:
        """The layer that turns features into logits."""


def network_entries(net: nn.Module) -> Entries:
    """What the state of a network of any role consists of. Only a task network has a head."""
    return entries_of(net, net.head() if isinstance(net, TaskNet) else None)
