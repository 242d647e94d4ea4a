"""Mirrored edges on a GPU of maps that lie channels last: one read and one write, in either direction.

`padding.py` has the plain version: the reference, and what a CPU runs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["folded_edges", "with_mirrored_edges"]

_NUMBERS = 2048  # of one program


def with_mirrored_edges(x: Tensor) -> Tensor:
    """Maps [n, c, h, w] as [n, c, h + 2, w + 2], channels last."""
    return _launched(_mirrored, x, 2)


def folded_edges(of_padded: Tensor) -> Tensor:
    """The gradient of that: each number comes back to where it was copied from. Sums run in float32, in a fixed order."""
    return _launched(_folded, of_padded, -2)


def _launched(kernel: Any, maps: Tensor, wider: int) -> Tensor:
    n, channels, height, width = maps.shape
    maps = maps.contiguous(memory_format=torch.channels_last)
    shape = (n, channels, height + wider, width + wider)
    made = torch.empty(shape, dtype=maps.dtype, device=maps.device, memory_format=torch.channels_last)
    together = min(64, triton.next_power_of_2(channels))
    piece = {"COLUMNS": _NUMBERS // together, "CHANNELS": together}
    grid = (triton.cdiv(channels, together) * triton.cdiv(shape[3], piece["COLUMNS"]), shape[2], n)
    inner = (height, width) if wider > 0 else shape[2:]
    kernel[grid](maps, made, *inner, C=channels, **piece)
    return made


@triton.jit
def _mirrored(x, padded, height, width, C: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    blocks = tl.cdiv(C, CHANNELS)
    sample, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    from_row = tl.where(row == 0, 1, tl.where(row == height + 1, height - 2, row - 1))
    from_column = tl.where(column == 0, 1, tl.where(column == width + 1, width - 2, column - 1))
    there = (column < width + 2)[:, None] & (channel < C)[None, :]
    value = tl.load(x + ((sample * height + from_row) * width + from_column)[:, None] * C + channel[None, :], there)
    tl.store(padded + ((sample * (height + 2) + row) * (width + 2) + column)[:, None] * C + channel[None, :], value, there)


@triton.jit
def _folded(of_padded, of_x, height, width, C: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    """A position is shown by its own place, and by an edge where it lies next to one."""
    blocks = tl.cdiv(C, CHANNELS)
    sample, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    there = (column < width)[:, None] & (channel < C)[None, :]
    total = tl.zeros([COLUMNS, CHANNELS], tl.float32)
    for down in tl.static_range(3):
        at_row = tl.where(down == 0, row + 1, tl.where(down == 1, 0, height + 1))
        shown = (down == 0) | ((down == 1) & (row == 1)) | ((down == 2) & (row == height - 2))
        for across in tl.static_range(3):
            at_column = tl.where(across == 0, column + 1, tl.where(across == 1, 0, width + 1))
            beside = (across == 0) | ((across == 1) & (column == 1)) | ((across == 2) & (column == width - 2))
            at = ((sample * (height + 2) + at_row) * (width + 2) + at_column)[:, None] * C + channel[None, :]
            total += tl.load(of_padded + at, there & (shown & beside)[:, None], 0.0).to(tl.float32)
    to = of_x + ((sample * height + row) * width + column)[:, None] * C + channel[None, :]
    tl.store(to, total.to(of_x.dtype.element_ty), there)
