"""ResNet's first convolution (7 x 7, every second position) on a GPU: the same sums over other channels.

Of an image's three channels the GPU's matrix units fill a small part. Squares of four pixels have twelve, over which the convolution is
one of 4 x 4 at every position: twice as fast. The images are put into squares in one read and one write. The plain version is
`torch.nn.functional.conv2d`: the reference, and what a CPU runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["stem_convolved"]

_POSITIONS = 64  # squares of one program
_BEFORE, _AFTER = 4, 2  # pixels of padding around an image: three, and what makes squares whole


def stem_convolved(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`F.conv2d(x, weight, None, stride=2, padding=3)` in `dtype`, of images [n, c, h, w], h and w even, and a weight [o, c, 7, 7]."""
    squares = torch.ops.unseen.squares(x, dtype)
    return F.conv2d(squares, _of_squares(weight.to(dtype)))


def _channels(channels: int) -> int:
    """A square's channels, filled up to a number that the matrix units like."""
    return -(-4 * channels // 8) * 8


def _of_squares(weight: Tensor) -> Tensor:
    """The weight [o, c, 7, 7] with an empty row and column before it, as [o, 4 c, 4, 4], and empty channels behind."""
    leaving, channels = weight.shape[:2]
    even = F.pad(weight, (1, 0, 1, 0)).view(leaving, channels, 4, 2, 4, 2)
    squares = even.permute(0, 1, 3, 5, 2, 4).reshape(leaving, 4 * channels, 4, 4)
    filled = F.pad(squares, (0, 0, 0, 0, 0, _channels(channels) - 4 * channels))
    return filled.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("unseen::squares", mutates_args=())
def _squares(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`F.pixel_unshuffle` of the padded images, with empty channels behind."""
    squares = _room(x, dtype)
    n, channels, height, width = x.shape
    positions = n * squares.shape[2] * squares.shape[3]
    grid = (triton.cdiv(positions, _POSITIONS),)
    shape = {"C": channels, "CHANNELS": squares.shape[1], "POSITIONS": _POSITIONS, "BEFORE": _BEFORE}
    _squared[grid](x, squares, positions, *squares.shape[2:], height, width, *x.stride(), **shape)
    return squares


def _room(x: Tensor, dtype: torch.dtype) -> Tensor:
    n, channels, height, width = x.shape
    sides = ((side + _BEFORE + _AFTER) // 2 for side in (height, width))
    return torch.empty((n, _channels(channels), *sides), dtype=dtype, device=x.device, memory_format=torch.channels_last)


@_squares.register_fake
def _(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _room(x, dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape, ctx.dtype = inputs[0].shape, inputs[0].dtype


def _differentiate(ctx: Any, of_squares: Tensor) -> tuple[Tensor, None]:
    _, channels, height, width = ctx.shape
    padded = F.pixel_shuffle(of_squares[:, : 4 * channels], 2)
    return padded[:, :, _BEFORE : _BEFORE + height, _BEFORE : _BEFORE + width].to(ctx.dtype), None


_squares.register_autograd(_differentiate, setup_context=_remember)


@triton.jit
def _squared(
    x, squares, positions, rows, columns, height, width, of_sample, of_channel, of_row, of_column,
    C: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr, BEFORE: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.arange(0, CHANNELS)
    sample = (position // (rows * columns)).to(tl.int64)
    row = (position // columns % rows * 2 - BEFORE)[:, None] + (channel // 2 % 2)[None, :]
    column = (position % columns * 2 - BEFORE)[:, None] + (channel % 2)[None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (channel < 4 * C)[None, :]
    at = (sample * of_sample)[:, None] + (channel // 4 * of_channel)[None, :] + row * of_row + column * of_column
    value = tl.load(x + at, inside & (position < positions)[:, None], 0.0)
    to = position.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(squares + to, value.to(squares.dtype.element_ty), (position < positions)[:, None])
