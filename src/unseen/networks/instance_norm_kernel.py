"""Instance norm on a GPU of maps that lie channels last, its gradient, and the gradient of that. Each is a pass for sums and one to write.

PyTorch turns such maps around before it normalises them, and convolutions turn them back. The plain version is
`torch.nn.functional.instance_norm`: the reference, and what a CPU runs. Sums run in float32, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["instance_normalised"]

_NUMBERS = 4096  # of a sample's maps that a program holds at a time
_PROGRAMS = 2048  # that sum: some for every multiprocessor
_MOST_PARTS = 64  # of a sample, each summed by a program


def instance_normalised(x: Tensor, eps: float, relu: bool = False) -> Tensor:
    """(x - mu) / sqrt(var + eps) of every channel of every sample [n, c, h, w] over its positions, through a ReLU if asked."""
    y: Tensor = torch.ops.unseen.instance_norm(x, eps, relu)[0]
    return y


@torch.library.custom_op("unseen::instance_norm", mutates_args=())
def _norm(x: Tensor, eps: float, relu: bool) -> tuple[Tensor, Tensor]:
    """The normalised maps, and [n, 2, c]: the mean of each, and one over its deviation."""
    (x,) = _last(x)
    y, moments = torch.empty_like(x), _numbers(x)
    sums = _summed_over(_sums_of_values, 2, x, (x,))
    _over(_normalised, x, sums, (x, y, moments, eps), RELU=relu)
    return y, moments


@torch.library.custom_op("unseen::instance_norm_back", mutates_args=())
def _back(of_y: Tensor, x: Tensor, moments: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """s (g - <g> - n <g n>), where s is one over the deviation and <.> the mean over a map; and [n, 2, c]: the sums of g and of g n."""
    of_y, x = _last(of_y, x)
    of_x, totals = torch.empty_like(x), _numbers(x)
    sums = _summed_over(_sums_of_gradients, 2, x, (of_y, x, moments), RELU=relu)
    _over(_gradients, x, sums, (of_y, x, moments, of_x, totals), RELU=relu)
    return of_x, totals


@torch.library.custom_op("unseen::instance_norm_twice", mutates_args=())
def _twice(v: Tensor, of_y: Tensor, x: Tensor, moments: Tensor, totals: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """The derivatives of <v, of_x> by of_y and by x."""
    v, of_y, x = _last(v, of_y, x)
    by_of_y, by_x = torch.empty_like(x), torch.empty_like(x)
    sums = _summed_over(_sums_of_second, 3, x, (v, of_y, x, moments), RELU=relu)
    _over(_second, x, sums, (v, of_y, x, moments, totals, by_of_y, by_x), RELU=relu)
    return by_of_y, by_x


@_norm.register_fake
def _(x: Tensor, eps: float, relu: bool) -> tuple[Tensor, Tensor]:
    return _like(x), _numbers(x)


@_back.register_fake
def _(of_y: Tensor, x: Tensor, moments: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    return _like(x), _numbers(x)


@_twice.register_fake
def _(v: Tensor, of_y: Tensor, x: Tensor, moments: Tensor, totals: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    return _like(x), _like(x)


def _remember_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.relu = inputs[2]
    ctx.save_for_backward(inputs[0], output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate_norm(ctx: Any, of_y: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.unseen.instance_norm_back(of_y, *ctx.saved_tensors, ctx.relu)[0], None, None


def _remember_back(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.relu = inputs[3]
    ctx.save_for_backward(*inputs[:3], output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate_back(ctx: Any, v: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
    return *torch.ops.unseen.instance_norm_twice(v, *ctx.saved_tensors, ctx.relu), None, None


_norm.register_autograd(_differentiate_norm, setup_context=_remember_norm)
_back.register_autograd(_differentiate_back, setup_context=_remember_back)


def _last(*maps: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.contiguous(memory_format=torch.channels_last) for each in maps)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


def _numbers(x: Tensor, *parts: int) -> Tensor:
    """Room for two numbers of each map."""
    return torch.empty((x.shape[0], *parts, 2, x.shape[1]), device=x.device)


def _shape(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """How many parts a sample is cut into, the turns that a program takes over its part, and what it holds at a time."""
    n, channels, height, width = x.shape
    together = min(64, triton.next_power_of_2(channels))
    rows = _NUMBERS // together
    pieces, blocks = triton.cdiv(height * width, rows), triton.cdiv(channels, together)
    parts = min(pieces, _MOST_PARTS, max(1, _PROGRAMS // (n * blocks)))
    return parts, triton.cdiv(pieces, parts), {"C": channels, "CHANNELS": together, "ROWS": rows}


def _summed_over(kernel: Any, count: int, x: Tensor, given: tuple[Tensor, ...], **how: bool) -> Tensor:
    """So many sums of every map, part by part: [n, parts, count, c]."""
    parts, turns, shape = _shape(x)
    n, channels, height, width = x.shape
    sums = torch.empty((n, parts, count, channels), device=x.device)
    kernel[(n, parts, triton.cdiv(channels, shape["CHANNELS"]))](*given, sums, height * width, turns, **shape, **how)
    return sums


def _over(kernel: Any, x: Tensor, sums: Tensor, given: tuple[Any, ...], **how: bool) -> None:
    """What is computed of every number, with the sums of its map."""
    parts, turns, shape = _shape(x)
    n, channels, height, width = x.shape
    grid = (n, parts, triton.cdiv(channels, shape["CHANNELS"]))
    kernel[grid](*given, sums, height * width, turns, **shape, PARTS=parts, **how)


@triton.jit
def _channels(C: tl.constexpr, CHANNELS: tl.constexpr):
    return tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def _places(turn, turns, positions, C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr):
    """Where the numbers of one turn of this program lie, and which of them are there."""
    channel = _channels(C, CHANNELS)
    row = (tl.program_id(1) * turns + turn) * ROWS + tl.arange(0, ROWS)
    at = (tl.program_id(0).to(tl.int64) * positions + row)[:, None] * C + channel[None, :]
    return at, (row < positions)[:, None] & (channel < C)[None, :]


@triton.jit
def _two(numbers, C: tl.constexpr, CHANNELS: tl.constexpr):
    """Two numbers of each map of [n, 2, c]."""
    channel = _channels(C, CHANNELS)
    at = numbers + tl.program_id(0).to(tl.int64) * 2 * C + channel
    return tl.load(at, channel < C, 0.0), tl.load(at + C, channel < C, 0.0)


@triton.jit
def _keep_two(numbers, first, second, C: tl.constexpr, CHANNELS: tl.constexpr):
    channel = _channels(C, CHANNELS)
    at = numbers + tl.program_id(0).to(tl.int64) * 2 * C + channel
    tl.store(at, first, channel < C)
    tl.store(at + C, second, channel < C)


@triton.jit
def _total(sums, which, SUMS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr):
    """One of the sums of each map, over all parts."""
    channel = _channels(C, CHANNELS)
    at = sums + (tl.program_id(0).to(tl.int64) * PARTS * SUMS + which) * C + channel
    total = tl.zeros([CHANNELS], tl.float32)
    for part in range(PARTS):
        total += tl.load(at + part * SUMS * C, channel < C, 0.0)
    return total


@triton.jit
def _keep_sum(sums, which, total, SUMS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr):
    channel = _channels(C, CHANNELS)
    part = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums + (part * SUMS + which) * C + channel, total, channel < C)


@triton.jit
def _sums_of_values(x, sums, positions, turns, C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr):
    values, squares = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for turn in range(turns):
        at, there = _places(turn, turns, positions, C, CHANNELS, ROWS)
        value = tl.load(x + at, there, 0.0).to(tl.float32)
        values += tl.sum(value, 0)
        squares += tl.sum(value * value, 0)
    _keep_sum(sums, 0, values, 2, C, CHANNELS)
    _keep_sum(sums, 1, squares, 2, C, CHANNELS)


@triton.jit
def _normalised(
    x, y, moments, eps, sums, positions, turns,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    mean = _total(sums, 0, 2, C, CHANNELS, PARTS) / positions
    squares = _total(sums, 1, 2, C, CHANNELS, PARTS) / positions
    scale = 1 / tl.sqrt(tl.maximum(squares - mean * mean, 0.0) + eps)
    if tl.program_id(1) == 0:
        _keep_two(moments, mean, scale, C, CHANNELS)
    for turn in range(turns):
        at, there = _places(turn, turns, positions, C, CHANNELS, ROWS)
        value = (tl.load(x + at, there, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + at, value.to(y.dtype.element_ty), there)


@triton.jit
def _gradient_and_value(of_y, x, at, there, mean, scale, RELU: tl.constexpr):
    """The gradient by the normalised value, and that value."""
    gradient = tl.load(of_y + at, there, 0.0).to(tl.float32)
    value = (tl.load(x + at, there, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    if RELU:
        gradient = tl.where(value > 0, gradient, 0.0)
    return gradient, value


@triton.jit
def _sums_of_gradients(
    of_y, x, moments, sums, positions, turns, C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    mean, scale = _two(moments, C, CHANNELS)
    alone, times = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for turn in range(turns):
        at, there = _places(turn, turns, positions, C, CHANNELS, ROWS)
        gradient, value = _gradient_and_value(of_y, x, at, there, mean, scale, RELU)
        alone += tl.sum(gradient, 0)
        times += tl.sum(gradient * value, 0)
    _keep_sum(sums, 0, alone, 2, C, CHANNELS)
    _keep_sum(sums, 1, times, 2, C, CHANNELS)


@triton.jit
def _gradients(
    of_y, x, moments, of_x, totals, sums, positions, turns,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    mean, scale = _two(moments, C, CHANNELS)
    alone, times = _total(sums, 0, 2, C, CHANNELS, PARTS), _total(sums, 1, 2, C, CHANNELS, PARTS)
    if tl.program_id(1) == 0:
        _keep_two(totals, alone, times, C, CHANNELS)
    for turn in range(turns):
        at, there = _places(turn, turns, positions, C, CHANNELS, ROWS)
        gradient, value = _gradient_and_value(of_y, x, at, there, mean, scale, RELU)
        result = scale[None, :] * (gradient - (alone / positions)[None, :] - value * (times / positions)[None, :])
        tl.store(of_x + at, result.to(of_x.dtype.element_ty), there)


@triton.jit
def _sums_of_second(
    v, of_y, x, moments, sums, positions, turns, C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    """Of v, v n and v g."""
    mean, scale = _two(moments, C, CHANNELS)
    alone, with_n, with_g = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for turn in range(turns):
        at, there = _places(turn, turns, positions, C, CHANNELS, ROWS)
        gradient, value = _gradient_and_value(of_y, x, at, there, mean, scale, RELU)
        of_v = tl.load(v + at, there, 0.0).to(tl.float32)
        alone += tl.sum(of_v, 0)
        with_n += tl.sum(of_v * value, 0)
        with_g += tl.sum(of_v * gradient, 0)
    _keep_sum(sums, 0, alone, 3, C, CHANNELS)
    _keep_sum(sums, 1, with_n, 3, C, CHANNELS)
    _keep_sum(sums, 2, with_g, 3, C, CHANNELS)


@triton.jit
def _second(
    v, of_y, x, moments, totals, by_of_y, by_x, sums, positions, turns,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """s (v - <v> - n <v n>), and s s ((2 <v n> <g n> - covariance) n - <v n> (g - <g>) - <g n> (v - <v>)), since

    dn = s (dx - <dx> - n <n dx>) and ds = -s s <n dx>. The covariance is <v g> - <v> <g> - <v n> <g n>.
    """
    mean, scale = _two(moments, C, CHANNELS)
    alone, times = _two(totals, C, CHANNELS)
    g, gn = alone / positions, times / positions
    of_v = _total(sums, 0, 3, C, CHANNELS, PARTS) / positions
    vn = _total(sums, 1, 3, C, CHANNELS, PARTS) / positions
    covariance = _total(sums, 2, 3, C, CHANNELS, PARTS) / positions - of_v * g - vn * gn
    for turn in range(turns):
        at, there = _places(turn, turns, positions, C, CHANNELS, ROWS)
        gradient, value = _gradient_and_value(of_y, x, at, there, mean, scale, RELU)
        apart = tl.load(v + at, there, 0.0).to(tl.float32) - of_v[None, :]
        result = scale[None, :] * (apart - value * vn[None, :])
        if RELU:
            result = tl.where(value > 0, result, 0.0)
        tl.store(by_of_y + at, result.to(by_of_y.dtype.element_ty), there)
        result = (2 * vn * gn - covariance)[None, :] * value - vn[None, :] * (gradient - g[None, :]) - gn[None, :] * apart
        tl.store(by_x + at, ((scale * scale)[None, :] * result).to(by_x.dtype.element_ty), there)
