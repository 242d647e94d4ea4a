"""Depthwise convolutions on a GPU of maps that lie channels last.

Libraries look for an algorithm when they meet a shape: half a second for each of MobileNetV2's, in every process. This is one
algorithm for all of them, compiled once for a machine. The plain version is `torch.nn.functional.conv2d`: the reference, and what a
CPU runs.

A convolution is linear in the maps and in the weight, so its derivatives are the three functions here again, as often as one likes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

__all__ = ["depthwise_convolved"]

_SIDE = 3
_SMALL = 14  # positions in a row up to which maps are called small: they have many channels
_PIECES = {  # of a result, for one program: rows, columns and channels of maps that are large, and that are small
    "maps": ({"ROWS": 2, "COLUMNS": 16, "CHANNELS": 32}, {"ROWS": 2, "COLUMNS": 8, "CHANNELS": 64, "num_warps": 2}),
    "by_maps": ({"ROWS": 4, "COLUMNS": 16, "CHANNELS": 32}, {"ROWS": 2, "COLUMNS": 8, "CHANNELS": 64, "num_warps": 2}),
    "by_weight": ({"ROWS": 16, "COLUMNS": 16, "CHANNELS": 32}, {"ROWS": 16, "COLUMNS": 8, "CHANNELS": 64, "num_warps": 2}),
}


def depthwise_convolved(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """`F.conv2d(x, weight, None, stride, 1, 1, groups=channels)` of maps [n, c, h, w] and a weight [c, 1, 3, 3]. Sums run in float32."""
    y: Tensor = torch.ops.unseen.depthwise(x, weight, stride)
    return y


@torch.library.custom_op("unseen::depthwise", mutates_args=())
def _depthwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    y = _maps(x, x.shape[2], x.shape[3], stride)
    grid, piece = _launch("maps", y)
    _convolved[grid](x, weight.contiguous(), y, *x.shape[1:], *y.shape[2:], STRIDE=stride, **piece)
    return y


@torch.library.custom_op("unseen::depthwise_by_maps", mutates_args=())
def _by_maps(of_y: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    of_y = of_y.contiguous(memory_format=torch.channels_last)
    of_x = _maps(of_y, height, width)
    grid, piece = _launch("by_maps", of_x)
    _gathered[grid](of_y, weight.contiguous(), of_x, *of_x.shape[1:], *of_y.shape[2:], STRIDE=stride, **piece)
    return of_x


@torch.library.custom_op("unseen::depthwise_by_weight", mutates_args=())
def _by_weight(of_y: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    of_y, x = (maps.contiguous(memory_format=torch.channels_last) for maps in (of_y, x))
    n, channels, height, width = of_y.shape
    piece = _PIECES["by_weight"][width <= _SMALL]
    parts = triton.cdiv(n * height, piece["ROWS"])
    sums = torch.empty((parts, channels, _SIDE, _SIDE), device=x.device)
    grid = triton.cdiv(channels, piece["CHANNELS"]), parts
    _summed[grid](of_y, x, sums, n * height, *x.shape[1:], height, width, STRIDE=stride, **piece)
    return sums.sum(0).view_as(weight).to(weight.dtype)


def _maps(like: Tensor, height: int, width: int, stride: int = 1) -> Tensor:
    """Room for a result of so many positions, every `stride`th of them."""
    shape = (*like.shape[:2], (height - 1) // stride + 1, (width - 1) // stride + 1)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _launch(what: str, result: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """How a result is cut into pieces, one for each program."""
    n, channels, height, width = result.shape
    piece = _PIECES[what][width <= _SMALL]
    across = triton.cdiv(channels, piece["CHANNELS"]) * triton.cdiv(width, piece["COLUMNS"])
    return (across, triton.cdiv(height, piece["ROWS"]), n), piece


@_depthwise.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return _maps(x, x.shape[2], x.shape[3], stride)


@_by_maps.register_fake
def _(of_y: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    return _maps(of_y, height, width)


@_by_weight.register_fake
def _(of_y: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.empty_like(weight, memory_format=torch.contiguous_format)


def _remember_convolution(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _differentiate_convolution(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    """Of <of_y, x * weight>."""
    x, weight = ctx.saved_tensors
    wants_x, wants_weight, _ = ctx.needs_input_grad
    by_x = torch.ops.unseen.depthwise_by_maps(of_y, weight, ctx.stride, *x.shape[2:]) if wants_x else None
    by_weight = torch.ops.unseen.depthwise_by_weight(of_y, x, weight, ctx.stride) if wants_weight else None
    return by_x, by_weight, None


def _remember_by_maps(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    of_y, weight, ctx.stride, _, _ = inputs
    ctx.save_for_backward(of_y, weight)


def _differentiate_by_maps(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    """Of <v, by_maps(of_y, weight)> = <of_y, v * weight>."""
    of_y, weight = ctx.saved_tensors
    v = v.to(of_y.dtype)
    by_weight = torch.ops.unseen.depthwise_by_weight(of_y, v, weight, ctx.stride)
    return torch.ops.unseen.depthwise(v, weight, ctx.stride), by_weight, None, None, None


def _remember_by_weight(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    of_y, x, _, ctx.stride = inputs
    ctx.save_for_backward(of_y, x)


def _differentiate_by_weight(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor, None, None]:
    """Of <u, by_weight(of_y, x)> = <of_y, x * u>."""
    of_y, x = ctx.saved_tensors
    by_x = torch.ops.unseen.depthwise_by_maps(of_y, u.to(of_y.dtype), ctx.stride, *x.shape[2:])
    return torch.ops.unseen.depthwise(x, u.to(x.dtype), ctx.stride), by_x, None, None


_depthwise.register_autograd(_differentiate_convolution, setup_context=_remember_convolution)
_by_maps.register_autograd(_differentiate_by_maps, setup_context=_remember_by_maps)
_by_weight.register_autograd(_differentiate_by_weight, setup_context=_remember_by_weight)


@register_flop_formula(torch.ops.unseen.depthwise)
def _operations(x: Any, weight: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    return 2 * int(torch.Size(out_shape).numel() * _SIDE * _SIDE)


@register_flop_formula(torch.ops.unseen.depthwise_by_maps)
def _operations_by_maps(of_y: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * int(torch.Size(of_y).numel() * _SIDE * _SIDE)


@register_flop_formula(torch.ops.unseen.depthwise_by_weight)
def _operations_by_weight(of_y: Any, x: Any, weight: Any, *_: Any, **__: Any) -> int:
    return _operations_by_maps(of_y, weight)


@triton.jit
def _three(left, middle, right, weight, channel, there):
    """Three maps, each times its tap of a row of the weight."""
    taps = weight + channel * 9
    first, second, third = tl.load(taps, there, 0.0), tl.load(taps + 1, there, 0.0), tl.load(taps + 2, there, 0.0)
    return left * first.to(tl.float32)[None, :] + middle * second.to(tl.float32)[None, :] + right * third.to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width"])
def _convolved(
    x, weight, y, C, height, width, out_height, out_width,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Two rows of the result at a time: they share a row of x, or three."""
    blocks = tl.cdiv(C, CHANNELS)
    sample, row = tl.program_id(2).to(tl.int64), tl.program_id(1) * ROWS
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    x += sample * height * width * C
    source, at = (column * (STRIDE * C))[:, None] + channel[None, :], column * STRIDE
    upper = tl.zeros([COLUMNS, CHANNELS], tl.float32)
    lower = tl.zeros([COLUMNS, CHANNELS], tl.float32)
    for down in tl.static_range(3 + STRIDE):
        source_row = row * STRIDE + down - 1
        within = (source_row >= 0) & (source_row < height)
        values = x + (source_row * width - 1) * C + source
        left = tl.load(values, (within & (at >= 1) & (at <= width))[:, None] & there[None, :], 0.0).to(tl.float32)
        middle = tl.load(values + C, (within & (at < width))[:, None] & there[None, :], 0.0).to(tl.float32)
        right = tl.load(values + 2 * C, (within & (at + 1 < width))[:, None] & there[None, :], 0.0).to(tl.float32)
        if down < 3:
            upper += _three(left, middle, right, weight + down * 3, channel, there)
        if down >= STRIDE:
            lower += _three(left, middle, right, weight + (down - STRIDE) * 3, channel, there)
    to = y + ((sample * out_height + row) * out_width + column)[:, None] * C + channel[None, :]
    stored = (column < out_width)[:, None] & there[None, :]
    tl.store(to, upper.to(y.dtype.element_ty), stored)
    tl.store(to + out_width * C, lower.to(y.dtype.element_ty), stored & (row + 1 < out_height))


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width"])
def _gathered(
    of_y, weight, of_x, C, height, width, out_height, out_width,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What each position of x gave to the results around it comes back."""
    blocks = tl.cdiv(C, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    of_y += sample * out_height * out_width * C
    of_x += sample * height * width * C
    for turn in tl.static_range(ROWS):
        row = tl.program_id(1) * ROWS + turn
        total = tl.zeros([COLUMNS, CHANNELS], tl.float32)
        for down in tl.static_range(3):
            below = row + 1 - down  # STRIDE times the result's row that met this one with this tap
            within = (below >= 0) & (below < out_height * STRIDE) & (below % STRIDE == 0)
            for across in tl.static_range(3):
                beside = column + 1 - across
                met = within & (beside >= 0) & (beside < out_width * STRIDE) & (beside % STRIDE == 0)
                at = of_y + (below // STRIDE) * out_width * C
                offset = (beside // STRIDE * C)[:, None] + channel[None, :]
                value = tl.load(at + offset, met[:, None] & there[None, :], 0.0).to(tl.float32)
                tap = tl.load(weight + channel * 9 + down * 3 + across, there, 0.0).to(tl.float32)
                total += value * tap[None, :]
        to = of_x + row * width * C
        stored = (row < height) & (column < width)
        tl.store(to + (column * C)[:, None] + channel[None, :], total.to(of_x.dtype.element_ty), stored[:, None] & there[None, :])


@triton.jit
def _products(x, source, gradient, column, within, there, width, C, first, second, third):
    """The three sums with gradient times value at the three taps of a row added; `x` is where the left tap of column 0 lies."""
    left = within & (column >= 1) & (column <= width)
    middle = within & (column < width)
    right = within & (column + 1 < width)
    first += gradient * tl.load(x + source, left[:, None] & there[None, :], 0.0).to(tl.float32)
    second += gradient * tl.load(x + C + source, middle[:, None] & there[None, :], 0.0).to(tl.float32)
    third += gradient * tl.load(x + 2 * C + source, right[:, None] & there[None, :], 0.0).to(tl.float32)
    return first, second, third


@triton.jit(do_not_specialize=["rows", "height", "width", "out_height", "out_width"])
def _summed(
    of_y, x, sums, rows, C, height, width, out_height, out_width,
    STRIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The sums of gradient times value over some rows of the result, for each of the nine taps: a part of the whole sums."""
    part = tl.program_id(1)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    a = tl.zeros([COLUMNS, CHANNELS], tl.float32)
    b, c, d, e, f, g, h, i = a, a, a, a, a, a, a, a
    for turn in range(ROWS):
        row = part * ROWS + turn
        sample, of_sample = (row // out_height).to(tl.int64), row % out_height
        top = of_sample * STRIDE - 1
        gradients = of_y + (sample * out_height + of_sample) * out_width * C
        values = x + ((sample * height + top) * width - 1) * C
        for start in range(0, out_width, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            given = (row < rows) & (column < out_width)
            gradient = tl.load(gradients + (column * C)[:, None] + channel[None, :], given[:, None] & there[None, :], 0.0).to(tl.float32)
            source, at = (column * (STRIDE * C))[:, None] + channel[None, :], column * STRIDE
            a, b, c = _products(values, source, gradient, at, given & (top >= 0), there, width, C, a, b, c)
            d, e, f = _products(values + width * C, source, gradient, at, given, there, width, C, d, e, f)
            below = given & (top + 2 < height)
            g, h, i = _products(values + 2 * width * C, source, gradient, at, below, there, width, C, g, h, i)
    to = sums + (part * C + channel) * 9
    tl.store(to, tl.sum(a, 0), there)
    tl.store(to + 1, tl.sum(b, 0), there)
    tl.store(to + 2, tl.sum(c, 0), there)
    tl.store(to + 3, tl.sum(d, 0), there)
    tl.store(to + 4, tl.sum(e, 0), there)
    tl.store(to + 5, tl.sum(f, 0), there)
    tl.store(to + 6, tl.sum(g, 0), there)
    tl.store(to + 7, tl.sum(h, 0), there)
    tl.store(to + 8, tl.sum(i, 0), there)
