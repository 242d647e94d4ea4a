"""The second derivative of a batch norm on a GPU: two reads of three maps and a write of two.

`twice.py` has the plain version, with the same names: the reference, and what a CPU runs. Maps lie channels last, so they are tables of
positions by channels. Sums run in float32, in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["norm_differentiated_twice"]

_NUMBERS = 2048  # that a program holds of each map at a time
_PROGRAMS = 1024  # that sum: some for every multiprocessor
_SUMS, _FACTORS = 3, 6  # of v, v n and v g; the channels' factors in the two results


def norm_differentiated_twice(
    v: Tensor, u: Tensor, t: Tensor, g: Tensor, x: Tensor, w: Tensor, mean: Tensor, s: Tensor, sum_gn: Tensor, sum_g: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives of <v, by_x> + u by_w + t by_b by g, x and w."""
    v, g, x = (maps.contiguous(memory_format=torch.channels_last) for maps in (v, g, x))
    channels = x.shape[1]
    samples = x.numel() // channels
    together = min(64, triton.next_power_of_2(channels))
    rows, blocks = _NUMBERS // together, triton.cdiv(channels, together)
    pieces = triton.cdiv(samples, rows)
    parts = min(pieces, max(1, _PROGRAMS // blocks))
    shape = {"C": channels, "CHANNELS": together}
    sums = torch.empty((parts, _SUMS, channels), device=x.device)
    _sums[(parts, blocks)](v, g, x, mean, s, sums, samples, triton.cdiv(pieces, parts), ROWS=rows, **shape)
    factors, by_w = torch.empty((_FACTORS, channels), device=x.device), torch.empty_like(w)
    given = (u.float(), t.float(), w, s, sum_gn, sum_g)
    _factors[(blocks,)](sums, *given, factors, by_w, samples, parts, PARTS=min(32, triton.next_power_of_2(parts)), **shape)
    by_g, by_x = torch.empty_like(g), torch.empty_like(x)
    _mixed[(pieces, blocks)](v, g, x, mean, factors, by_g, by_x, samples, ROWS=rows, **shape)
    return by_g, by_x, by_w


@triton.jit
def _sums(v, g, x, mean, s, sums, samples, turns, ROWS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr):
    part = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    middle, scale = tl.load(mean + channel, there, 0.0), tl.load(s + channel, there, 0.0)
    alone, with_n, with_g = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for turn in range(turns):
        row = (part * turns + turn) * ROWS + tl.arange(0, ROWS)
        at, inside = row[:, None] * C + channel[None, :], (row < samples)[:, None] & there[None, :]
        of_v = tl.load(v + at, inside, 0.0).to(tl.float32)
        normalised = (tl.load(x + at, inside, 0.0).to(tl.float32) - middle[None, :]) * scale[None, :]
        alone += tl.sum(of_v, 0)
        with_n += tl.sum(of_v * normalised, 0)
        with_g += tl.sum(of_v * tl.load(g + at, inside, 0.0).to(tl.float32), 0)
    to = sums + part * 3 * C + channel
    tl.store(to, alone, there)
    tl.store(to + C, with_n, there)
    tl.store(to + 2 * C, with_g, there)


@triton.jit
def _factors(sums, u, t, w, s, sum_gn, sum_g, factors, by_w, samples, parts, PARTS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    mean_v, mean_vn, mean_vg = tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32), tl.zeros([CHANNELS], tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        at, inside = part[:, None] * 3 * C + channel[None, :], (part < parts)[:, None] & there[None, :]
        mean_v += tl.sum(tl.load(sums + at, inside, 0.0), 0) / samples
        mean_vn += tl.sum(tl.load(sums + at + C, inside, 0.0), 0) / samples
        mean_vg += tl.sum(tl.load(sums + at + 2 * C, inside, 0.0), 0) / samples
    by_u, by_t, scale = tl.load(u + channel, there, 0.0), tl.load(t + channel, there, 0.0), tl.load(s + channel, there, 0.0)
    weight = tl.load(w + channel, there, 0.0).to(tl.float32)
    mean_gn, mean_g = tl.load(sum_gn + channel, there, 0.0) / samples, tl.load(sum_g + channel, there, 0.0) / samples
    covariance = mean_vg - mean_v * mean_g - mean_vn * mean_gn
    steep = weight * scale
    of_g = scale * (by_u - steep * mean_vn)  # in the derivative by x; of n in that by g
    of_v = -steep * scale * mean_gn
    of_n = -scale * (by_u * mean_gn - 2 * steep * mean_vn * mean_gn + steep * covariance)
    to = factors + channel
    tl.store(to, steep, there)  # of v in the derivative by g
    tl.store(to + C, by_t - steep * mean_v, there)  # the constant there
    tl.store(to + 2 * C, of_g, there)
    tl.store(to + 3 * C, of_v, there)
    tl.store(to + 4 * C, of_n * scale, there)
    tl.store(to + 5 * C, -of_g * mean_g - of_v * mean_v, there)
    tl.store(by_w + channel, (scale * covariance * samples).to(by_w.dtype.element_ty), there)


@triton.jit
def _mixed(v, g, x, mean, factors, by_g, by_x, samples, ROWS: tl.constexpr, C: tl.constexpr, CHANNELS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    there = channel < C
    at, inside = row[:, None] * C + channel[None, :], (row < samples)[:, None] & there[None, :]
    of_v, of_g = tl.load(v + at, inside, 0.0).to(tl.float32), tl.load(g + at, inside, 0.0).to(tl.float32)
    away = tl.load(x + at, inside, 0.0).to(tl.float32) - tl.load(mean + channel, there, 0.0)[None, :]
    of = factors + channel
    steep, constant, slope = tl.load(of, there, 0.0), tl.load(of + C, there, 0.0), tl.load(of + 2 * C, there, 0.0)
    result = constant[None, :] + steep[None, :] * of_v + slope[None, :] * away
    tl.store(by_g + at, result.to(by_g.dtype.element_ty), inside)
    with_v, with_n, rest = tl.load(of + 3 * C, there, 0.0), tl.load(of + 4 * C, there, 0.0), tl.load(of + 5 * C, there, 0.0)
    result = rest[None, :] + slope[None, :] * of_g + with_v[None, :] * of_v + with_n[None, :] * away
    tl.store(by_x + at, result.to(by_x.dtype.element_ty), inside)
