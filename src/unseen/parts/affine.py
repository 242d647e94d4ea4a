"""Training images turned, magnified and shifted, each in its own way, and masks with them.

The experiment's augmentation is the same for all rows of a table. This part belongs to one row, so that a recipe can bring its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.ops.geometry import resample, source_map
from unseen.settings import Configured, hyper

__all__ = ["Affine"]


@dataclass(frozen=True)
class Affine(Configured):
    """Each image is turned about its centre, magnified and shifted, by numbers of its own. Its mirror image fills what it leaves.

    >>> x, masks = torch.rand(2, 3, 8, 8), torch.ones(2, 1, 8, 8)
    >>> moved, with_them = Affine().moved(x, masks, torch.Generator().manual_seed(0))
    >>> moved.shape, bool(with_them.all())
    (torch.Size([2, 3, 8, 8]), True)
    """

    name: ClassVar[str] = "affine"

    degrees: float = hyper(20.0, "the angle is drawn from -this to this", low=0.0, high=180.0)
    zoom: float = hyper(1.25, "the magnification is drawn from 1 / this to this, its logarithm evenly", low=1.0, high=4.0)
    shift: float = hyper(0.1, "the way along each side is drawn from -this to this, as a part of the side", low=0.0, high=0.5)

    @torch.no_grad()
    def moved(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The seam before a step: the images; `y` is classes, which stay, or masks, which move along (nearest pixel)."""
        angle, zoom, *way = (2 * torch.rand(len(x), 4, generator=rng, dtype=torch.float64) - 1).unbind(1)
        whole, mirrored = torch.ones_like(angle), torch.zeros(len(x), dtype=torch.bool)
        box = torch.stack([self.shift * way[0], self.shift * way[1], whole, whole], 1)
        maps = source_map(box, mirrored, self.degrees * angle, torch.exp(math.log(self.zoom) * zoom), (x.shape[2], x.shape[3]))
        maps = maps.to(x.dtype).to(x.device, non_blocking=True)
        moved = torch.empty_like(x).copy_(resample(x, maps, "bilinear"))  # in the memory format of the images
        return moved, resample(y.to(x.dtype), maps, "nearest").to(y.dtype) if y.ndim == 4 else y
