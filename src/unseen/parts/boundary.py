"""ELCFS's boundary term: what lies on a structure's edge and what lies just outside it are to look different (Eq. 5-7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.method import Surroundings
from unseen.ops.contrast import info_nce, nt_xent, versions_of
from unseen.ops.morphology import edge_regions
from unseen.settings import Configured, hyper

__all__ = ["Boundary"]


@dataclass(frozen=True)
class Boundary(Configured):
    """The term's weight, its form, and where its features are taken from."""

    gamma: float = hyper(0.1, "weight of the boundary term (prostate: 0.5); 0: without it", symbol="gamma, Eq. 8", low=0.0)
    contrast: Literal["image", "batch"] = hyper("image", "boundary term per image (Eq. 6-7), or over the whole batch", symbol="Eq. 7")
    tau: float = hyper(0.05, "temperature", symbol="tau, Eq. 6", low=1e-4)
    feature_maps: int = hyper(2, "how many of the last decoder maps the features are taken from", symbol="l", low=1, high=2)
    features_of_x: Literal["updated", "old"] = hyper("updated", "weights at which the raw image's features are taken", symbol="Eq. 8")
    boundary_steps: int = hyper(1, "erosions: the boundary is the mask without its erosion", low=1)
    background_steps: int = hyper(5, "dilations: the background is the dilation without the mask", low=1)

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if around.task != "segmentation" or not self.gamma:
            return
        with torch.no_grad():
            maps = len(around.net(torch.zeros(1, around.shapes.channels, *around.shapes.size), True).maps)
        if maps < self.feature_maps:
            yield f"the boundary term reads {self.feature_maps} decoder maps, the network has {maps}; deepen it, or lower feature_maps"

    def loss(self, maps: list[tuple[Tensor, ...]], y: Tensor) -> Tensor:
        """Eq. 5-7 over all versions of every image, summed over the structures of y [n, structures, H, W]."""
        regions = edge_regions(y, self.boundary_steps, self.background_steps)
        edge, outside = (versions_of([m[-self.feature_maps :] for m in maps], region).unbind(2) for region in regions)
        valid = torch.stack([region.amax((2, 3)) > 0 for region in regions]).all(0).unbind(1)
        form = info_nce if self.contrast == "image" else nt_xent
        return torch.stack([form(*structure, self.tau) for structure in zip(edge, outside, valid, strict=True)]).sum()
