"""Frequencies of images: their amplitudes, and images restyled with the amplitudes of others.

Liu et al., "FedDG", CVPR 2021, Eq. 1-3. Only the bins |u| <= alpha H, |v| <= alpha W of a spectrum ever change, so only they are
computed, stored and sent. An image is real, F(-u, -v) = conj F(u, v): the columns v >= 0 of that window hold all of it.

Two small matrix products give the window (a partial Fourier transform), and two add a change of it to the image, in place of two
transforms of the whole image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["draw_rows", "group_means", "low_amplitudes", "low_spectrum", "mix_amplitudes", "restyle_amplitudes", "take_rows", "window"]


def window(size: tuple[int, int], alpha: float) -> tuple[int, int]:
    """How many bins the mask M of Eq. 2 reaches from the centre along each side.

    >>> window((384, 384), 0.01), window((384, 384), 0.0)  # 7 x 7 bins; only the constant one
    ((3, 3), (0, 0))
    """
    height, width = (math.floor(alpha * side + 1e-9) for side in size)  # 0.29 * 100 is 28.999999999999996
    return height, width


def low_spectrum(x: Tensor, alpha: float) -> Tensor:
    """F(x)(u, v) of Eq. 1 for -b <= u <= b and 0 <= v <= b: images [..., H, W] to complex [..., 2b + 1, b + 1].

    >>> low_spectrum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 0.0)  # the sum of all pixels
    tensor([[10.+0.j]])
    """
    bases = _bases(x.shape[-2], x.shape[-1], alpha, x.dtype, x.device)
    cosines, sines = (x @ bases.columns).chunk(2, -1)
    return bases.rows @ torch.complex(cosines, -sines)


def low_amplitudes(x: Tensor, alpha: float) -> Tensor:
    """A = |F(x)| in the window: all that a client gives away of an image."""
    return low_spectrum(x, alpha).abs()


def restyle_amplitudes(x: Tensor, amplitudes: Tensor, lam: Tensor, alpha: float) -> Tensor:
    """Eq. 2-3: the amplitudes in the window become (1 - lam) A + lam A_n, the phases stay.

    Images x [n, C, H, W], amplitudes A_n [..., n, C, 2b + 1, b + 1] and ratios lam [..., n] to images [..., n, C, H, W].
    """
    bases = _bases(x.shape[-2], x.shape[-1], alpha, x.dtype, x.device)
    own = low_spectrum(x, alpha)
    size = own.abs()
    phase = torch.where(size > 0, own / size, 1)  # the phase of an empty bin is 0
    change = (lam[..., None, None, None] * (amplitudes - size)) * phase
    across = bases.rows.mH @ change
    return x + torch.cat([across.real, across.imag], -1) @ bases.back


def mix_amplitudes(x: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """FACT's augmentation (Xu et al., CVPR 2021): all amplitudes become (1 - lam) A + lam A_partner, the phases stay.

    Images x [n, C, H, W], partners and ratios [n]. Of pixels the constant bin is never negative, so that mixing its amplitude is mixing
    the means; done so, the result is the same for normalised images as for pixels.

    >>> x = torch.tensor([[[[1.0, 3.0]]], [[[10.0, 18.0]]]])  # means 2 and 14, waves 1 and 4
    >>> mix_amplitudes(x, torch.tensor([1, 0]), torch.tensor([0.5, 0.0])).flatten(1)
    tensor([[ 5.5000, 10.5000],
            [10.0000, 18.0000]])
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    ratio = lam.to(exact).view(-1, 1, 1, 1)
    spectrum = torch.fft.rfft2(exact)
    size = spectrum.abs()
    phase = torch.where(size > 0, spectrum / size, 1)  # the phase of an empty bin is 0
    change = ratio * (size[partner] - size) * phase
    change[..., 0, 0] = ratio[..., 0, 0] * (spectrum[partner] - spectrum)[..., 0, 0]
    made: Tensor = exact + torch.fft.irfft2(change, s=x.shape[-2:])
    return made.to(x.dtype)


def group_means(spectra: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """The mean spectrum of each group of `size` rows, drawn without replacement. What is left over joins the last group.

    >>> group_means(torch.tensor([[2.0], [2.0], [2.0]]), 2, torch.Generator()).tolist()
    [[2.0]]
    """
    groups = max(1, len(spectra) // size)
    order = torch.randperm(len(spectra), generator=rng)
    starts = [number * size for number in range(1, groups)]
    return torch.stack([spectra[rows].double().mean(0) for rows in order.tensor_split(starts)]).to(spectra.dtype)


def draw_rows(sizes: Sequence[int], images: int, styles: int | None, rng: torch.Generator) -> Tensor:
    """For each image and style, a spectrum from the sites' spectra laid end to end: row numbers [styles, images].

    One of every site, or with `styles` that many of sites drawn with replacement. Within a site all spectra are equally likely.
    """
    size = torch.tensor(sizes)
    if styles is None:
        site = torch.arange(len(sizes))[:, None].expand(-1, images)
    else:
        site = torch.randint(len(sizes), (styles, images), generator=rng)
    within = torch.rand(site.shape, generator=rng, dtype=torch.float64) * size[site]
    return within.long() + (size.cumsum(0) - size)[site]


def take_rows(parts: Sequence[Tensor], rows: Tensor) -> Tensor:
    """`torch.cat(parts)[rows]` without laying the parts end to end: a bank is large, a batch takes little of it.

    >>> take_rows([torch.tensor([10, 11]), torch.tensor([20])], torch.tensor([[2, 0]])).tolist()
    [[20, 10]]
    """
    taken, start = parts[0].new_empty((*rows.shape, *parts[0].shape[1:])), 0
    for part in parts:
        here = (rows >= start) & (rows < start + len(part))
        taken[here] = part[rows[here] - start]
        start += len(part)
    return taken


class _Bases(NamedTuple):
    """The waves of one image size that lie in the window."""

    rows: Tensor  # e^(-2 pi i u h / H), complex [2b + 1, H]
    columns: Tensor  # cos and sin of 2 pi v w / W side by side, [W, 2 (b + 1)]
    back: Tensor  # what brings the columns back, with the bins -v counted in and the 1 / (H W) of the inverse, [2 (b + 1), W]


@functools.lru_cache(maxsize=16)
def _bases(height: int, width: int, alpha: float, dtype: torch.dtype, device: torch.device) -> _Bases:
    tall, wide = window((height, width), alpha)
    rows = _angles(torch.arange(-tall, tall + 1), height)
    columns = _angles(torch.arange(wide + 1), width).T
    twice = torch.full((wide + 1,), 2.0, dtype=torch.float64)  # v stands for -v too, but for v = 0
    twice[0] = 1.0
    back = torch.cat([columns.cos() * twice, -columns.sin() * twice], 1).T / (height * width)
    turning = torch.polar(torch.ones_like(rows), -rows).to(torch.promote_types(dtype, torch.complex32))
    return _Bases(turning.to(device), torch.cat([columns.cos(), columns.sin()], 1).to(device, dtype), back.to(device, dtype))


def _angles(bins: Tensor, side: int) -> Tensor:
    """2 pi u h / H for all bins u and positions h, in float64: u h is reduced by whole turns first."""
    turns = torch.outer(bins, torch.arange(side)).remainder(side)
    return turns.double() * (2 * math.pi / side)
