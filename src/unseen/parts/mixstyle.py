"""MixStyle after a network's first stages, while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from unseen.device.compiling import logits_of
from unseen.method import Surroundings
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.headed import HeadedNet
from unseen.ops.mixstyle import draw_mixing, mix_styles
from unseen.settings import Configured, hyper

__all__ = ["MixStyle", "mixed", "mixing_of"]


@dataclass(frozen=True)
class MixStyle(Configured):
    """Mixes the style of feature maps between the samples of a batch. Nothing of it is left at prediction."""

    name: ClassVar[str] = "mixstyle"

    p: float = hyper(0.5, "probability that a layer mixes a batch", symbol="p", low=0.0, high=1.0)
    alpha: float = hyper(0.1, "of Beta(alpha, alpha), from which the mixing factors come", symbol="alpha", low=1e-3)
    stages: int = hyper(2, "after how many of the network's first stages", low=1)

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        found = len(around.net.stages()) if isinstance(around.net, HeadedNet) else 0
        if found < self.stages:
            yield f"mixstyle acts after {self.stages} stages of the network, and {type(around.net).__name__} names {found}"


def mixing_of(part: MixStyle | None, x: Tensor, rng: torch.Generator, *, times: int = 1) -> tuple[Tensor, ...]:
    """The seam before a step: what is drawn for a batch, for the step to take as further arguments. Nothing without the part.

    `times`: images in the forward pass per image of x (FedDAG: 2).
    """
    if part is None:
        return ()
    return tuple(drawn.to(x.device) for drawn in draw_mixing(times * len(x), part.stages, part.p, part.alpha, rng))


@overload
def mixed(net: TaskNet, x: Tensor, mixing: tuple[Tensor, ...], full: Literal[False] = False) -> Tensor: ...


@overload
def mixed(net: TaskNet, x: Tensor, mixing: tuple[Tensor, ...], full: Literal[True]) -> Outputs: ...


def mixed(net: TaskNet, x: Tensor, mixing: tuple[Tensor, ...], full: bool = False) -> Tensor | Outputs:
    """The seam inside a step: what the network gives, with styles mixed as drawn."""
    if not mixing and not full:
        return logits_of(net, x)
    with _acting_after(net, mixing):
        return net(x, full=True) if full else net(x)


@contextmanager
def _acting_after(net: nn.Module, mixing: tuple[Tensor, ...]) -> Iterator[None]:
    if not mixing:
        yield
        return
    keep, partner = mixing
    assert isinstance(net, HeadedNet)  # the part's obstacles saw to it
    hooks = [_hooked(stage, *row) for stage, *row in zip(net.stages(), keep, partner, strict=False)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooked(stage: nn.Module, keep: Tensor, partner: Tensor) -> torch.utils.hooks.RemovableHandle:
    def mix(module: nn.Module, _: Any, maps: Tensor) -> Tensor:
        return mix_styles(maps, keep, partner) if module.training else maps

    return stage.register_forward_hook(mix)
