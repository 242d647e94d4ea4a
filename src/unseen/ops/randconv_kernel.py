"""A random convolution on a GPU in one read and one write. `randconv.py` has the plain version: the reference, and what a CPU runs.

Libraries are made for many channels; of an image's three they fill a small part of what they compute with.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["convolved_and_mixed"]

_PIXELS = 1024  # of one program


def convolved_and_mixed(x: Tensor, kernel: Tensor, keep: float) -> Tensor:
    """keep x + (1 - keep) conv(x). `x` is float32 [n, 3, h, w] on a GPU, one channel after the other."""
    n, _, height, width = x.shape
    result = torch.empty_like(x)
    grid = (n, triton.cdiv(height * width, _PIXELS))
    _convolved[grid](x, kernel.to(x.device, non_blocking=True), result, keep, height, width, K=kernel.shape[-1], PIXELS=_PIXELS)
    return result


@triton.jit
def _convolved(x, kernel, result, keep, height, width, K: tl.constexpr, PIXELS: tl.constexpr):
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixel // width, pixel % width
    area = height * width
    image = tl.program_id(0).to(tl.int64) * area * 3
    red = tl.zeros([PIXELS], tl.float32)
    green = tl.zeros([PIXELS], tl.float32)
    blue = tl.zeros([PIXELS], tl.float32)
    for down in range(K):
        source_row = row + down - K // 2
        there = (source_row >= 0) & (source_row < height)
        for across in range(K):
            source_column = column + across - K // 2
            inside = there & (source_column >= 0) & (source_column < width)
            at = x + image + source_row * width + source_column
            tap = kernel + down * K + across
            for channel in tl.static_range(3):
                value = tl.load(at + channel * area, inside, 0.0)
                red += value * tl.load(tap + channel * K * K)
                green += value * tl.load(tap + (3 + channel) * K * K)
                blue += value * tl.load(tap + (6 + channel) * K * K)
    inside = pixel < area
    for channel in tl.static_range(3):
        to = image + channel * area + pixel
        convolved = red if channel == 0 else green if channel == 1 else blue
        tl.store(result + to, convolved + keep * (tl.load(x + to, inside, 0.0) - convolved), inside)
