"""Parts that change the style of feature maps after a network's first stages, while it trains.

MixStyle and EFDMix take a part of another sample's style; DSU draws a new style around a sample's own. Clients mostly hold one domain,
so that the styles here are those of one domain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from unseen.device.compiling import logits_of
from unseen.method import Surroundings
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.headed import HeadedNet, acting_after, stages_of
from unseen.ops.mixstyle import draw_mixing, draw_noise, mix_ranks, mix_styles, noisy_styles
from unseen.settings import Configured, hyper

__all__ = ["DSU", "EFDMix", "MapStyle", "MixStyle", "mixed", "mixing_of"]

Drawn = tuple[Tensor, ...]


class MapStyle(Configured, ABC):
    """A part that acts on the maps after the network's first `stages` stages. Nothing of it is left at prediction."""

    name: ClassVar[str]
    stages: int | None

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        wanted, found = self.stages or 1, len(stages_of(around.net))
        if found < wanted:
            yield f"{self.name} acts after {wanted} stages of the network, and {type(around.net).__name__} names {found}"

    @abstractmethod
    def draw(self, rows: int, channels: Callable[[], Sequence[int]], rng: torch.Generator) -> Drawn:
        """What is drawn for a batch of so many images. `channels` looks up how many channels the maps after each stage have."""

    @abstractmethod
    def restyled(self, maps: Tensor, stage: int, drawn: Drawn) -> Tensor:
        """The maps after that stage, as drawn."""


@dataclass(frozen=True)
class MixStyle(MapStyle):
    """Mixes the style of feature maps, their means and deviations, between the samples of a batch. Zhou et al., ICLR 2021."""

    name = "mixstyle"

    p: float = hyper(0.5, "probability that a layer mixes a batch", symbol="p", low=0.0, high=1.0)
    alpha: float = hyper(0.1, "of Beta(alpha, alpha), from which the mixing factors come", symbol="alpha", low=1e-3)
    stages: int = hyper(2, "after how many of the network's first stages", low=1)

    def draw(self, rows: int, channels: Callable[[], Sequence[int]], rng: torch.Generator) -> Drawn:
        return draw_mixing(rows, self.stages, self.p, self.alpha, rng)

    def restyled(self, maps: Tensor, stage: int, drawn: Drawn) -> Tensor:
        keep, partner = drawn
        return mix_styles(maps, keep[stage], partner[stage])


@dataclass(frozen=True)
class EFDMix(MapStyle):
    """Mixes whole distributions: a value moves towards the partner's value of the same rank. Zhang et al., CVPR 2022."""

    name = "efdmix"

    p: float = hyper(0.5, "probability that a layer mixes a batch", symbol="p", low=0.0, high=1.0)
    alpha: float = hyper(0.1, "of Beta(alpha, alpha), from which the mixing factors come", symbol="alpha", low=1e-3)
    stages: int = hyper(2, "after how many of the network's first stages", low=1)

    def draw(self, rows: int, channels: Callable[[], Sequence[int]], rng: torch.Generator) -> Drawn:
        return draw_mixing(rows, self.stages, self.p, self.alpha, rng)

    def restyled(self, maps: Tensor, stage: int, drawn: Drawn) -> Tensor:
        keep, partner = drawn
        return mix_ranks(maps, keep[stage], partner[stage])


@dataclass(frozen=True)
class DSU(MapStyle):
    """Draws each sample's means and deviations from a normal around its own, as wide as the batch varies. Li et al., ICLR 2022.

    From memory of the paper and its code: the spread is taken over the batch, with 1e-6 under its root, and gradients flow through all
    statistics. Scale 2 is what FedFA's released code comes to, in which nothing federated is left. The paper acts after the first
    convolution and the first pooling too, which are no stages here. A batch of one varies in nothing, and stays as it is.
    """

    name = "dsu"

    p: float = hyper(0.5, "probability that a layer acts on a batch", symbol="p", low=0.0, high=1.0)
    scale: float = hyper(1.0, "factor of the batch's variance", low=0.0)
    stages: int | None = hyper(None, "after how many of the network's first stages; none: all that it names", low=1)

    def draw(self, rows: int, channels: Callable[[], Sequence[int]], rng: torch.Generator) -> Drawn:
        return draw_noise(rows, channels()[: self.stages], self.p, rng)

    def restyled(self, maps: Tensor, stage: int, drawn: Drawn) -> Tensor:
        acts, *noise = drawn
        return torch.where(acts[stage], noisy_styles(maps, noise[stage], self.scale), maps)


def mixing_of(part: MapStyle | None, x: Tensor, rng: torch.Generator, channels: Callable[[], Sequence[int]], *, times: int = 1) -> Drawn:
    """The seam before a step: what is drawn for a batch, for the step to take as further arguments. Nothing without the part.

    `times`: images in the forward pass per image of x (FedDAG: 2).
    """
    return () if part is None else tuple(drawn.to(x.device, non_blocking=True) for drawn in part.draw(times * len(x), channels, rng))


@overload
def mixed(part: MapStyle | None, net: TaskNet, x: Tensor, mixing: Drawn, full: Literal[False] = False) -> Tensor: ...


@overload
def mixed(part: MapStyle | None, net: TaskNet, x: Tensor, mixing: Drawn, full: Literal[True]) -> Outputs: ...


def mixed(part: MapStyle | None, net: TaskNet, x: Tensor, mixing: Drawn, full: bool = False) -> Tensor | Outputs:
    """The seam inside a step: what the network gives, with styles mixed as drawn."""
    if not mixing and not full:
        return logits_of(net, x)
    with _acting(part, net, mixing):
        return net(x, full=True) if full else logits_of(net, x)


@contextmanager
def _acting(part: MapStyle | None, net: nn.Module, mixing: Drawn) -> Iterator[None]:
    if part is None or not mixing or not net.training:
        yield
        return
    assert isinstance(net, HeadedNet)  # the part's obstacles saw to it
    if hasattr(net, "compiled_pass"):
        with _Restyling.at(net).acting(part, mixing):
            yield
        return
    with ExitStack() as hooks:
        for number, stage in enumerate(net.stages()[: part.stages]):
            hooks.enter_context(acting_after(stage, partial(part.restyled, stage=number, drawn=mixing)))
        yield


class _Restyling:
    """Hooks that stay at a network whose pass is compiled, and act when they are told to: hooks that come and go would be compiled anew."""

    def __init__(self, net: HeadedNet) -> None:
        self._part: MapStyle | None = None
        self._drawn: Drawn = ()
        for number, stage in enumerate(net.stages()):
            stage.register_forward_hook(partial(self._act, number))

    @staticmethod
    def at(net: HeadedNet) -> _Restyling:
        if not hasattr(net, "restyling"):
            net.restyling = _Restyling(net)  # type: ignore[assignment]
        found: _Restyling = net.restyling  # type: ignore[assignment]
        return found

    @contextmanager
    def acting(self, part: MapStyle, drawn: Drawn) -> Iterator[None]:
        self._part, self._drawn = part, drawn
        try:
            yield
        finally:
            self._part, self._drawn = None, ()

    def _act(self, number: int, module: nn.Module, given: object, maps: Tensor) -> Tensor:
        part = self._part
        if part is None or (part.stages is not None and number >= part.stages):
            return maps
        return part.restyled(maps, number, self._drawn)
