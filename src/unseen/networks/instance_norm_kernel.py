"""Instance normalisation on a GPU of maps that lie channels last: two reads and a write forwards, four and a write backwards.

PyTorch turns such maps around before it normalises them, and convolutions turn them back. The plain version is
`torch.nn.functional.instance_norm`: the reference, and what a CPU runs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["instance_normalised"]

_ROWS = 128  # positions that a program holds at a time
_TURNS = 32  # times that it does


def instance_normalised(x: Tensor, eps: float, relu: bool = False) -> Tensor:
    """(x - mu) / sqrt(var + eps) of every channel of every sample [n, c, h, w] over its positions, through a ReLU if asked.

    Sums run in float32.
    """
    normalised: Tensor = _Normalised.apply(x, eps, relu)
    return normalised


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, relu: bool) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        sums = _launched(_sums_of_values, x, (x,))
        moments = torch.empty((x.shape[0], 2, x.shape[1]), device=x.device)
        y = torch.empty_like(x)
        _launched(_normalised, x, (x, sums, moments, y, eps), sums.shape[1], RELU=relu)
        ctx.save_for_backward(x, moments)
        ctx.relu = relu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor, None, None]:
        x, moments = ctx.saved_tensors
        of_y = of_y.contiguous(memory_format=torch.channels_last)
        sums = _launched(_sums_of_gradients, x, (x, of_y, moments), RELU=ctx.relu)
        of_x = torch.empty_like(x)
        _launched(_gradients, x, (x, of_y, moments, sums, of_x), sums.shape[1], RELU=ctx.relu)
        return of_x, None, None


def _launched(kernel: Any, x: Tensor, given: tuple[Any, ...], parts: int | None = None, **how: bool) -> Tensor:
    """Run a kernel over all samples. Without `parts` it gives two sums of each channel, part by part of a sample: [n, parts, 2, c]."""
    n, channels, height, width = x.shape
    positions = height * width
    grid = (n, triton.cdiv(positions, _ROWS * _TURNS))
    shape = {"C": channels, "CHANNELS": triton.next_power_of_2(channels), "ROWS": _ROWS, "TURNS": _TURNS, **how}
    sums = torch.empty((*grid, 2, channels), device=x.device) if parts is None else x
    if parts is None:
        kernel[grid](*given, sums, positions, **shape)
    else:
        kernel[grid](*given, positions, parts, PARTS=triton.next_power_of_2(parts), **shape)
    return sums


@triton.jit
def _sums_of_values(
    x, sums, positions, C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr
):  # fmt: skip
    sample, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    values, squares = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for turn in range(TURNS):
        row = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < positions) & (channel[None, :] < C)
        value = tl.load(x + (sample * positions + row[:, None]) * C + channel[None, :], inside, 0.0).to(tl.float32)
        values += tl.sum(value, 0)
        squares += tl.sum(value * value, 0)
    to = sums + (sample * tl.num_programs(1) + part) * 2 * C + channel
    tl.store(to, values, channel < C)
    tl.store(to + C, squares, channel < C)


@triton.jit
def _summed(sums, sample, parts, C: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr):
    """Both sums of a sample over all its parts."""
    part, channel = tl.arange(0, PARTS), tl.arange(0, CHANNELS)
    at = sums + (sample * parts + part[:, None]) * 2 * C + channel[None, :]
    inside = (part[:, None] < parts) & (channel[None, :] < C)
    return tl.sum(tl.load(at, inside, 0.0), 0), tl.sum(tl.load(at + C, inside, 0.0), 0)


@triton.jit
def _normalised(
    x, sums, moments, y, eps, positions, parts,
    PARTS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    sample, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    values, squares = _summed(sums, sample, parts, C, CHANNELS, PARTS)
    mean = values / positions
    scale = 1 / tl.sqrt(tl.maximum(squares / positions - mean * mean, 0.0) + eps)
    if part == 0:
        tl.store(moments + sample * 2 * C + channel, mean, channel < C)
        tl.store(moments + sample * 2 * C + C + channel, scale, channel < C)
    for turn in range(TURNS):
        row = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < positions) & (channel[None, :] < C)
        at = (sample * positions + row[:, None]) * C + channel[None, :]
        value = (tl.load(x + at, inside, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + at, value.to(y.dtype.element_ty), inside)


@triton.jit
def _sums_of_gradients(
    x, of_y, moments, sums, positions,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Of the gradient, and of the gradient times the normalised value."""
    sample, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    mean = tl.load(moments + sample * 2 * C + channel, channel < C, 0.0)
    scale = tl.load(moments + sample * 2 * C + C + channel, channel < C, 0.0)
    alone, times = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for turn in range(TURNS):
        row = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < positions) & (channel[None, :] < C)
        at = (sample * positions + row[:, None]) * C + channel[None, :]
        gradient = tl.load(of_y + at, inside, 0.0).to(tl.float32)
        value = (tl.load(x + at, inside, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        if RELU:
            gradient = tl.where(value > 0, gradient, 0.0)
        alone += tl.sum(gradient, 0)
        times += tl.sum(gradient * value, 0)
    to = sums + (sample * tl.num_programs(1) + part) * 2 * C + channel
    tl.store(to, alone, channel < C)
    tl.store(to + C, times, channel < C)


@triton.jit
def _gradients(
    x, of_y, moments, sums, of_x, positions, parts,
    PARTS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """scale (g - mean(g) - value mean(g value))."""
    sample, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    mean = tl.load(moments + sample * 2 * C + channel, channel < C, 0.0)
    scale = tl.load(moments + sample * 2 * C + C + channel, channel < C, 0.0)
    alone, times = _summed(sums, sample, parts, C, CHANNELS, PARTS)
    for turn in range(TURNS):
        row = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < positions) & (channel[None, :] < C)
        at = (sample * positions + row[:, None]) * C + channel[None, :]
        gradient = tl.load(of_y + at, inside, 0.0).to(tl.float32)
        value = (tl.load(x + at, inside, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        if RELU:
            gradient = tl.where(value > 0, gradient, 0.0)
        result = scale[None, :] * (gradient - (alone / positions)[None, :] - value * (times / positions)[None, :])
        tl.store(of_x + at, result.to(of_x.dtype.element_ty), inside)
