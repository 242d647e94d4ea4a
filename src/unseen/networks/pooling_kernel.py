"""ResNet's max pooling (3 x 3, every second position) on a GPU of maps that lie channels last: one read and one write, in either direction.

PyTorch's own and the compiler's take a twelfth of a training step of ResNet-18 for what the memory could do in a sixth of that. The
plain version is `torch.nn.functional.max_pool2d`: the reference, and what a CPU runs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["max_pooled"]

_PIECE = {"COLUMNS": 16, "CHANNELS": 64}  # of a row, for one program


def max_pooled(x: Tensor) -> Tensor:
    """`F.max_pool2d(x, 3, stride=2, padding=1)` of maps [n, c, h, w]. Gradients go to the first of several equal values, as there."""
    y: Tensor = torch.ops.unseen.max_pool(x)[0]
    return y


@torch.library.custom_op("unseen::max_pool", mutates_args=())
def _max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """The pooled maps, and which of its nine each is: 0 to 8."""
    x = x.contiguous(memory_format=torch.channels_last)
    y, which = _pooled_maps(x)
    _pooled[_grid(y)](x, y, which, *x.shape[2:], *y.shape[2:], C=x.shape[1], **_PIECE)
    return y, which


@torch.library.custom_op("unseen::max_unpool", mutates_args=())
def _max_unpool(of_y: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """Each number where its value came from; elsewhere 0."""
    of_y = of_y.contiguous(memory_format=torch.channels_last)
    of_x = _maps(of_y, height, width)
    _unpooled[_grid(of_x)](of_y, which, of_x, height, width, *of_y.shape[2:], C=of_y.shape[1], **_PIECE)
    return of_x


def _maps(like: Tensor, height: int, width: int) -> Tensor:
    return torch.empty((*like.shape[:2], height, width), dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _pooled_maps(x: Tensor) -> tuple[Tensor, Tensor]:
    y = _maps(x, (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2)
    return y, torch.empty_like(y, dtype=torch.int8)


def _grid(maps: Tensor) -> tuple[int, int, int]:
    n, channels, height, width = maps.shape
    return triton.cdiv(channels, _PIECE["CHANNELS"]) * triton.cdiv(width, _PIECE["COLUMNS"]), height, n


@_max_pool.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return _pooled_maps(x)


@_max_unpool.register_fake
def _(of_y: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    return _maps(of_y, height, width)


def _remember_pool(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.size = inputs[0].shape[2:]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate_pool(ctx: Any, of_y: Tensor, _: Tensor) -> Tensor:
    back: Tensor = torch.ops.unseen.max_unpool(of_y, *ctx.saved_tensors, *ctx.size)
    return back


def _remember_unpool(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _differentiate_unpool(ctx: Any, v: Tensor) -> tuple[Tensor, None, None, None]:
    """What lies where each value came from."""
    (which,) = ctx.saved_tensors
    places = which.long()
    width = v.shape[3]
    down = 2 * torch.arange(which.shape[2], device=v.device)[:, None] - 1 + places // 3
    across = 2 * torch.arange(which.shape[3], device=v.device) - 1 + places % 3
    return v.flatten(2).gather(2, (down * width + across).flatten(2)).view(which.shape), None, None, None


_max_pool.register_autograd(_differentiate_pool, setup_context=_remember_pool)
_max_unpool.register_autograd(_differentiate_unpool, setup_context=_remember_unpool)


@triton.jit
def _pooled(x, y, which, height, width, out_height, out_width, C: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    blocks = tl.cdiv(C, CHANNELS)
    sample, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    x += sample * height * width * C
    source = (column * (2 * C))[:, None] + channel[None, :]
    best = tl.full([COLUMNS, CHANNELS], float("-inf"), tl.float32)
    first = tl.where(row == 0, 3, 0) + tl.where(column == 0, 1, 0)  # of the nine that lies inside, should none be above minus infinity
    place = tl.zeros([COLUMNS, CHANNELS], tl.int32) + first[:, None]
    for tap in tl.static_range(9):
        source_row, source_column = 2 * row - 1 + tap // 3, 2 * column - 1 + tap % 3
        inside = (source_row >= 0) & (source_row < height) & (source_column >= 0) & (source_column < width)
        at = x + (source_row * width - 1 + tap % 3) * C
        value = tl.load(at + source, inside[:, None] & there[None, :], float("-inf")).to(tl.float32)
        better = (value > best) | (value != value)
        best, place = tl.where(better, value, best), tl.where(better, tap, place)
    to = (sample * out_height + row) * out_width * C + (column * C)[:, None] + channel[None, :]
    stored = (column < out_width)[:, None] & there[None, :]
    tl.store(y + to, best.to(y.dtype.element_ty), stored)
    tl.store(which + to, place.to(tl.int8), stored)


@triton.jit
def _unpooled(of_y, which, of_x, height, width, out_height, out_width, C: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    """A position is seen by the windows around it: one along an even row or column, two along an odd one."""
    blocks = tl.cdiv(C, CHANNELS)
    sample, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    of_y += sample * out_height * out_width * C
    which += sample * out_height * out_width * C
    total = tl.zeros([COLUMNS, CHANNELS], tl.float32)
    for up in tl.static_range(2):
        window_row = (row + 1) // 2 - up
        down = row + 1 - 2 * window_row
        within = (window_row >= 0) & (window_row < out_height) & (down < 3)
        for left in tl.static_range(2):
            window_column = (column + 1) // 2 - left
            across = column + 1 - 2 * window_column
            seen = within & (window_column >= 0) & (window_column < out_width) & (across < 3)
            at = (window_row * out_width + window_column)[:, None] * C + channel[None, :]
            mask = seen[:, None] & there[None, :]
            own = tl.load(which + at, mask, -1).to(tl.int32) == (down * 3 + across)[:, None]
            total += tl.where(own, tl.load(of_y + at, mask, 0.0).to(tl.float32), 0.0)
    to = of_x + (sample * height + row) * width * C + (column * C)[:, None] + channel[None, :]
    tl.store(to, total.to(of_x.dtype.element_ty), (column < width)[:, None] & there[None, :])
