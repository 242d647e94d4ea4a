"""CSAC's projections: maps of several layers of two networks, brought to one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.networks.headed import HeadedNet

__all__ = ["Alignment", "alignment_of", "with_stage_maps"]


class Alignment(nn.Module):
    """For each layer of both networks: means over `side` x `side` fields, then a 1 x 1 convolution to `width` channels.

    The released code brings maps to one size by strided convolutions, each made for its layer.
    """

    def __init__(self, channels: Sequence[int], width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.trained, self.fixed = (nn.ModuleList(nn.Conv2d(entering, width, 1) for entering in channels) for _ in range(2))

    def forward(self, trained: Sequence[Tensor], fixed: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self._brought(self.trained, trained), self._brought(self.fixed, fixed)

    def _brought(self, convolutions: nn.ModuleList, maps: Sequence[Tensor]) -> list[Tensor]:
        return [convolve(F.adaptive_avg_pool2d(m, self.side)) for convolve, m in zip(convolutions, maps, strict=True)]


def with_stage_maps(net: HeadedNet, layers: int, look: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    """What `look` gives, and the maps after the network's last stages in the pass that it makes."""
    maps: list[Tensor] = []
    hooks = [stage.register_forward_hook(lambda _module, _given, made: maps.append(made)) for stage in net.stages()[-layers:]]
    try:
        return look(), maps
    finally:
        for hook in hooks:
            hook.remove()


def alignment_of(net: HeadedNet, channels: int, size: tuple[int, int], *, layers: int, width: int, side: int) -> Alignment:
    """The projections for this network's last stages on images of that size; where maps are smaller than `side`, of their size."""
    with torch.no_grad():
        x = torch.zeros(1, channels, *size)
        _, maps = with_stage_maps(net.eval(), layers, lambda: net(x))
    return Alignment([m.shape[1] for m in maps], width, min(side, *(min(m.shape[2:]) for m in maps)))
