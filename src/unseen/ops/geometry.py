"""Crop, mirror, rotate and zoom a whole batch, each sample in its own way, by reading every pixel once.

All of it is one affine map per sample from the pixels of the result to places in the source, so an image is interpolated once
and never twice. Coordinates are torch's for `align_corners=False`: -1 and 1 are the outer edges of the image, x before y.

There is no antialiasing. A crop is stretched to the full size, so it shrinks nothing. A zoom below 1 does shrink. ELCFS's recipe draws 0.9
and above, the part `Affine` 0.8 and above unless it is set otherwise, BigAug 0.4 and above. At 0.8 every pixel still counts, since
reading is bilinear. At 0.4 some are passed over: BigAug is meant to be harsh.

What lies outside the image is its mirror image. That goes for masks as well: an image and its masks stay true to each other, and no black
corners appear.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["crop_boxes", "resample", "source_map"]


def crop_boxes(area: Tensor, ratio: Tensor, place: Tensor, size: tuple[int, int], widest: float) -> Tensor:
    """The boxes of a random resized crop, [n, 4]: left, top, width, height as fractions of the image.

    `area` (a fraction of the image) and `ratio` (width over height, in pixels) are [n, tries]. The first pair whose box fits
    into the image counts; where none does, it is the largest central box with a ratio from 1 / `widest` to `widest`. `place`
    [n, 2] says where between its leftmost (topmost) and rightmost (lowest) place a fitting box lies, 0 to 1.
    """
    height, width = size
    wide, high = (area * ratio * height / width).sqrt(), (area / ratio * width / height).sqrt()
    fits = (wide <= 1) & (high <= 1)
    first = fits.int().argmax(1, keepdim=True)
    found = fits.any(1)
    fallback = area.new_tensor([min(1.0, widest * height / width), min(1.0, widest * width / height)])
    extent = torch.where(found[:, None], torch.cat([wide.gather(1, first), high.gather(1, first)], 1), fallback)
    return torch.cat([torch.where(found[:, None], place, 0.5) * (1 - extent), extent], 1)


def source_map(box: Tensor, mirrored: Tensor, degrees: Tensor, zoom: Tensor, size: tuple[int, int]) -> Tensor:
    """Where each place of the result lies in the source, as [n, 2, 3].

    The box (see `crop_boxes`) is stretched to the full size, mirrored left to right where `mirrored`, turned counter-clockwise by
    `degrees` and magnified by `zoom`, the last two about the centre.
    """
    height, width = size
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    left, top, wide, high = box.unbind(1)
    to_x = torch.where(mirrored, -wide, wide)
    # The turn is made in pixels: on an image that is not square, a step in x is not as long as one in y.
    across = torch.stack([to_x * cos, -to_x * sin * height / width, 2 * left + wide - 1], 1)
    down = torch.stack([high * sin * width / height, high * cos, 2 * top + high - 1], 1)
    return torch.stack([across, down], 1)


def resample(x: Tensor, to_source: Tensor, mode: Literal["bilinear", "nearest"], bent: Tensor | None = None) -> Tensor:
    """[n, c, h, w] as seen through the maps of `source_map`; `bent` [n, h, w, 2] is added to the places that are read."""
    grid = _grid(to_source, x.shape[2], x.shape[3])
    return F.grid_sample(x, grid if bent is None else grid + bent, mode, "reflection", align_corners=False)


def _grid(to_source: Tensor, height: int, width: int) -> Tensor:
    """The places that grid_sample reads, [n, h, w, 2]: one sum of a row and a column, where `affine_grid` makes a matrix product."""
    columns, rows = (_centres(count, to_source) for count in (width, height))
    grid = to_source.new_empty(len(to_source), height, width, 2)
    for axis in (0, 1):
        along_x, along_y, shift = to_source[:, axis].unsqueeze(-1).unbind(1)
        torch.add((rows * along_y).unsqueeze(2), (columns * along_x + shift).unsqueeze(1), out=grid[..., axis])
    return grid


def _centres(count: int, like: Tensor) -> Tensor:
    return (2 * torch.arange(count, dtype=like.dtype, device=like.device) + 1) / count - 1
