"""Training images turned, magnified and shifted, each in its own way, and masks with them.

The experiment's augmentation is the same for all rows of a table. This part belongs to one row, so that a recipe can bring its own.

Reading between pixels blurs. A network that sees moved images alone sees none that is as sharp as those it will be asked about. So a part
of them stays as it is.
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
    """Some images are turned about their centre, magnified and shifted, each by numbers of its own. Its mirror image fills what it leaves.

    >>> x, masks = torch.rand(2, 3, 8, 8), torch.ones(2, 1, 8, 8)
    >>> moved, with_them = Affine().moved(x, masks, torch.Generator().manual_seed(0))
    >>> moved.shape, bool(with_them.all())
    (torch.Size([2, 3, 8, 8]), True)
    """

    name: ClassVar[str] = "affine"

    share: float = hyper(0.5, "part of the images that are moved, drawn for each; the others stay as they are", low=0.0, high=1.0)
    degrees: float = hyper(20.0, "the angle is drawn from -this to this", low=0.0, high=180.0)
    zoom: float = hyper(1.25, "the magnification is drawn from 1 / this to this, its logarithm evenly", low=1.0, high=4.0)
    shift: float = hyper(0.1, "the way along each side is drawn from -this to this, as a part of the side", low=0.0, high=0.5)

    @torch.no_grad()
    def moved(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The seam before a step: the images; `y` is classes, which stay, or masks, which move along (nearest pixel)."""
        chosen, *drawn = torch.rand(len(x), 5, generator=rng, dtype=torch.float64).unbind(1)
        angle, zoom, *way = (2 * each - 1 for each in drawn)
        whole, mirrored = torch.ones_like(angle), torch.zeros(len(x), dtype=torch.bool)
        box = torch.stack([self.shift * way[0], self.shift * way[1], whole, whole], 1)
        maps = source_map(box, mirrored, self.degrees * angle, torch.exp(math.log(self.zoom) * zoom), (x.shape[2], x.shape[3]))
        maps = maps.to(x.dtype).to(x.device, non_blocking=True)
        move = (chosen < self.share).to(x.device, non_blocking=True)[:, None, None, None]
        moved = torch.empty_like(x).copy_(torch.where(move, resample(x, maps, "bilinear"), x))  # in the memory format of the images
        return moved, torch.where(move, resample(y.to(x.dtype), maps, "nearest").to(y.dtype), y) if y.ndim == 4 else y
