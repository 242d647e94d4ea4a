"""A random convolution on a GPU in one read and one write. `randconv.py` has the plain version: the reference, and what a CPU runs.

Libraries are made for many channels; of an image's three they fill a small part of what they compute with.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["convolved_and_mixed"]

_ROWS = 4  # of one program, which is one warp: so a pixel that is read counts for all of them
_COLUMNS = 256


def convolved_and_mixed(x: Tensor, kernel: Tensor, keep: float) -> Tensor:
    """keep x + (1 - keep) conv(x). `x` is float32 [n, 3, h, w] on a GPU, one channel after the other."""
    n, _, height, width = x.shape
    result = torch.empty_like(x)
    columns = min(_COLUMNS, max(32, triton.next_power_of_2(width)))
    grid = (n, triton.cdiv(height, _ROWS), triton.cdiv(width, columns))
    there = kernel.to(x.device, non_blocking=True)
    _convolved[grid](x, there, result, keep, height, width, K=kernel.shape[-1], ROWS=_ROWS, COLUMNS=columns, num_warps=1)
    return result


@triton.jit
def _convolved(x, kernel, result, keep, height, width, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    first, column = tl.program_id(1) * ROWS, tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    area = height * width
    image = tl.program_id(0).to(tl.int64) * area * 3
    red = tl.zeros([ROWS, COLUMNS], tl.float32)
    green = tl.zeros([ROWS, COLUMNS], tl.float32)
    blue = tl.zeros([ROWS, COLUMNS], tl.float32)
    for down in range(K + ROWS - 1):
        source_row = first + down - K // 2
        there = (source_row >= 0) & (source_row < height)
        tap_row = down - rows  # which row of the kernel this source row meets, for each row of the result
        meets = (tap_row >= 0) & (tap_row < K)
        for across in range(K):
            source_column = column + across - K // 2
            inside = there & (source_column >= 0) & (source_column < width)
            at = x + image + source_row * width + source_column
            tap = kernel + tap_row * K + across
            for channel in tl.static_range(3):
                value = tl.load(at + channel * area, inside, 0.0)[None, :]
                red += value * tl.load(tap + channel * K * K, meets, 0.0)[:, None]
                green += value * tl.load(tap + (3 + channel) * K * K, meets, 0.0)[:, None]
                blue += value * tl.load(tap + (6 + channel) * K * K, meets, 0.0)[:, None]
    row = first + rows[:, None]
    inside = (row < height) & (column[None, :] < width)
    to = image + row * width + column[None, :]
    tl.store(result + to, red + keep * (tl.load(x + to, inside, 0.0) - red), inside)
    tl.store(result + to + area, green + keep * (tl.load(x + to + area, inside, 0.0) - green), inside)
    tl.store(result + to + 2 * area, blue + keep * (tl.load(x + to + 2 * area, inside, 0.0) - blue), inside)
