"""A random convolution on a GPU in one read and one write. `randconv.py` has the plain version: the reference, and what a CPU runs.

Libraries are made for many channels; of an image's three they fill a small part of what they compute with. Here matrix units compute
four neighbouring positions in all three channels at once: twelve results of one row of the image are its numbers around there times a
matrix that holds the weights four times, each time one place further down. Products are rounded to tf32, as PyTorch's are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["convolved_and_mixed"]

_ROWS = 4  # of the result in one program: a row of the image that is read counts for all of them
_BESIDE = 4  # positions in a row that are computed together


def convolved_and_mixed(x: Tensor, kernel: Tensor, keep: float) -> Tensor:
    """keep x + (1 - keep) conv(x). `x` is float32 [n, 3, h, w] on a GPU, one channel after the other."""
    n, _, height, width = x.shape
    size, result = kernel.shape[-1], torch.empty_like(x)
    groups = min(64, max(16, triton.next_power_of_2(triton.cdiv(width, _BESIDE))))
    weights = _shifted(kernel)
    grid = (n, triton.cdiv(height, _ROWS), triton.cdiv(width, _BESIDE * groups))
    there = weights.to(x.device, non_blocking=True)
    _convolved[grid](x, there, result, keep, height, width, K=size, NUMBERS=weights.shape[1], GROUPS=groups, num_warps=2)
    return result


def _shifted(kernel: Tensor) -> Tensor:
    """The weights [3, 3, k, k] as one matrix for each row of theirs, and nothing above and below: [k + 6, numbers, 16].

    Its numbers are those of a row of the image, channel by channel; its results are the channels', four positions each.
    """
    size = kernel.shape[-1]
    wide = size + _BESIDE - 1
    weights = torch.zeros(size + 2 * (_ROWS - 1), max(16, triton.next_power_of_2(3 * wide)), 16)
    by_place = torch.zeros(size, 3, wide, 3, _BESIDE)
    for beside in range(_BESIDE):
        by_place[:, :, beside : beside + size, :, beside] = kernel.permute(2, 1, 3, 0)
    weights[_ROWS - 1 : _ROWS - 1 + size, : 3 * wide, : 3 * _BESIDE] = by_place.view(size, 3 * wide, 3 * _BESIDE)
    return weights


@triton.jit
def _convolved(x, weights, result, keep, height, width, K: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr):
    first, left = tl.program_id(1) * 4, tl.program_id(2) * 4 * GROUPS
    area = height * width
    image = tl.program_id(0).to(tl.int64) * area * 3
    group, number, made = tl.arange(0, GROUPS), tl.arange(0, NUMBERS), tl.arange(0, 16)
    channel, offset = number // (K + 3), number % (K + 3)
    column = left + 4 * group[:, None] + offset[None, :] - K // 2
    inside = (channel < 3)[None, :] & (column >= 0) & (column < width)
    source = x + image + channel[None, :] * area + column
    matrix = weights + number[:, None] * 16 + made[None, :]
    a = tl.zeros([GROUPS, 16], tl.float32)  # the four rows of the result
    b = tl.zeros([GROUPS, 16], tl.float32)
    c = tl.zeros([GROUPS, 16], tl.float32)
    d = tl.zeros([GROUPS, 16], tl.float32)
    for down in range(K + 3):
        row = first + down - K // 2
        seen = tl.load(source + row * width, inside & (row >= 0) & (row < height), 0.0)
        at = matrix + down * (16 * NUMBERS)  # of the last row of the four: the first is three further on in the kernel
        a = tl.dot(seen, tl.load(at + 3 * 16 * NUMBERS), a, input_precision="tf32")
        b = tl.dot(seen, tl.load(at + 2 * 16 * NUMBERS), b, input_precision="tf32")
        c = tl.dot(seen, tl.load(at + 16 * NUMBERS), c, input_precision="tf32")
        d = tl.dot(seen, tl.load(at), d, input_precision="tf32")
    _store(a, x, result, keep, image, first, left, height, width, GROUPS)
    _store(b, x, result, keep, image, first + 1, left, height, width, GROUPS)
    _store(c, x, result, keep, image, first + 2, left, height, width, GROUPS)
    _store(d, x, result, keep, image, first + 3, left, height, width, GROUPS)


@triton.jit
def _store(convolved, x, result, keep, image, row, left, height, width, GROUPS: tl.constexpr):
    made = tl.arange(0, 16)
    column = left + 4 * tl.arange(0, GROUPS)[:, None] + (made % 4)[None, :]
    inside = (made < 12)[None, :] & (column < width) & (row < height)
    to = image + (made // 4)[None, :] * (height * width) + row * width + column
    tl.store(result + to, convolved + keep * (tl.load(x + to, inside, 0.0) - convolved), inside)
