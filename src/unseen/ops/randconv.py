"""Images in other styles: FedGCA's style-complement module, by random convolutions, and two gentler styles beside it.

Xu et al., "Robust and generalizable visual representation learning via random convolutions", ICLR 2021; the chains of
Hendrycks et al., "AugMix", ICLR 2020, with random convolutions in place of its operations; repetition with the same weights as in
Choi et al., "Progressive random convolutions for single domain generalization", CVPR 2023. `amplitudes` and `tones` leave
texture as it is: the first mixes spectra within the batch (FACT, Xu et al., CVPR 2021), the second changes light and colour.

Everything is drawn on the CPU, once for a batch. Images are [n, c, h, w], normalised, and are not clamped afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.networks.kernels import has_kernels
from unseen.ops.augmix import batch_range
from unseen.ops.fourier import mix_amplitudes

__all__ = [
    "STYLES", "Operation", "amplitudes", "draw_kernel", "draw_operation", "mixing_chain", "randconv", "repeated", "restyled",
    "restyled_views", "texture", "tones",
]  # fmt: skip

_SIZES = (1, 3, 5, 7)  # of kernels, one drawn for a batch
_TEXTURE_SIZES = (5, 9, 13, 17)
_MOST_REPEATS = 5
_CHAINS, _DEEPEST = 3, 3  # AugMix's width and depth
_GAMMA, _GAIN, _SHIFT = 2.0, 1.5, 0.25  # of tones: largest exponent, largest factor, largest shift in parts of the range


def draw_kernel(size: int, channels: int, rng: torch.Generator) -> Tensor:
    """A random convolution's weights [c, c, size, size] from N(0, 1 / fan-in): uncorrelated images keep their variance (He et al., 2015).

    >>> draw_kernel(3, 1, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 3, 3])
    """
    return torch.randn(channels, channels, size, size, generator=rng) / math.sqrt(channels * size * size)


class Operation(NamedTuple):
    """RandConv with its parameters drawn: x -> keep x + (1 - keep) conv(x), of the same size as x, without a bias."""

    kernel: Tensor
    keep: float

    def __call__(self, x: Tensor) -> Tensor:
        return _mixed(x, self.kernel, self.keep)


def draw_operation(channels: int, rng: torch.Generator) -> Operation:
    """One kernel size of 1, 3, 5, 7, its weights, and a mixing factor from U(0, 1)."""
    return Operation(draw_kernel(_SIZES[_integer(0, len(_SIZES) - 1, rng)], channels, rng), _uniform(rng))


def randconv(x: Tensor, rng: torch.Generator) -> Tensor:
    """One random convolution mixed with the image."""
    return draw_operation(x.shape[1], rng)(x)


def repeated(x: Tensor, rng: torch.Generator) -> Tensor:
    """The same operation, weights and mixing factor, one to five times in a row."""
    operation = draw_operation(x.shape[1], rng)
    for _ in range(_integer(1, _MOST_REPEATS, rng)):
        x = operation(x)
    return x


def mixing_chain(x: Tensor, rng: torch.Generator) -> Tensor:
    """m x + (1 - m) sum_i w_i chain_i(x): three chains of one to three operations, w from Dirichlet(1), m from U(0, 1) = Beta(1, 1)."""
    mixture = torch.zeros_like(x)
    for weight in _simplex(_CHAINS, rng):
        chained = x
        for _ in range(_integer(1, _DEEPEST, rng)):
            chained = randconv(chained, rng)
        mixture.add_(chained, alpha=weight)
    return torch.lerp(mixture, x, _uniform(rng))


def texture(x: Tensor, rng: torch.Generator) -> Tensor:
    """Random convolutions at four scales, mixed by Dirichlet(1) weights, then mixed with the image by U(0, 1).

    It is one convolution: a mixture of convolutions has the mixture of their weights.
    """
    widest = max(_TEXTURE_SIZES)
    mixture = torch.zeros(x.shape[1], x.shape[1], widest, widest)
    for size, weight in zip(_TEXTURE_SIZES, _simplex(len(_TEXTURE_SIZES), rng), strict=True):
        inside = slice((widest - size) // 2, (widest + size) // 2)
        mixture[..., inside, inside].add_(draw_kernel(size, x.shape[1], rng), alpha=weight)
    return _mixed(x, mixture, _uniform(rng))


def amplitudes(x: Tensor, rng: torch.Generator) -> Tensor:
    """Each image with its own phases, and a part from U(0, 1) of the amplitudes of another: the next in a random circle of the batch."""
    circle, ratio = torch.randperm(len(x), generator=rng), torch.rand(len(x), generator=rng)
    partner = torch.empty_like(circle)
    partner[circle] = circle.roll(-1)
    return mix_amplitudes(x, partner.to(x.device, non_blocking=True), ratio.to(x.device, non_blocking=True))


def tones(x: Tensor, rng: torch.Generator) -> Tensor:
    """Light and colour, drawn for each image and channel: an exponent, a factor and a shift of values between the batch's black and white.

    Exponents and factors are as often above 1 as below it. What leaves the range is cut off.
    """
    low, high = batch_range(x)
    span = (high - low).clamp_min(1e-6)
    draw = (2 * torch.rand(3, *x.shape[:2], generator=rng) - 1).to(x.dtype).to(x.device, non_blocking=True)[..., None, None]
    exponent, factor, shift = _GAMMA ** draw[0], _GAIN ** draw[1], _SHIFT * draw[2]
    return (((x - low) / span).clamp(0, 1) ** exponent * factor + shift).clamp(0, 1) * span + low


STYLES: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "randconv": randconv,
    "repeated": repeated,
    "mixing": mixing_chain,
    "texture": texture,
    "amplitudes": amplitudes,
    "tones": tones,
}

_WHOLE_BATCH = {"amplitudes", "tones"}  # the styles that look at other images than the one they change


@torch.no_grad()
def restyled(x: Tensor, kind: Tensor, styles: Sequence[str], rng: torch.Generator) -> Tensor:
    """Each image in the style of its kind. Kind 0 is the image as it is; for every other kind there is, one style is drawn.

    >>> restyled(torch.zeros(3, 3, 8, 8), torch.tensor([0, 1, 2]), ["randconv", "texture"], torch.Generator()).shape
    torch.Size([3, 3, 8, 8])
    """
    made = x.clone()
    for number in range(1, int(kind.max()) + 1):
        name = styles[_integer(0, len(styles) - 1, rng)]
        rows = (kind == number).nonzero()[:, 0].to(x.device, non_blocking=True)
        if len(rows):
            made[rows] = STYLES[name](x, rng)[rows] if name in _WHOLE_BATCH else STYLES[name](x[rows].contiguous(), rng)
    return made


@torch.no_grad()
def restyled_views(x: Tensor, copies: int, styles: Sequence[str], rng: torch.Generator) -> Tensor:
    """X+ = {x, x'_1, ..., x'_J} as one batch [(J + 1) n, ...], the images as they are first; a style is drawn for each copy.

    >>> restyled_views(torch.zeros(2, 3, 8, 8), 3, ["randconv", "texture"], torch.Generator()).shape
    torch.Size([8, 3, 8, 8])
    """
    chosen = (STYLES[styles[_integer(0, len(styles) - 1, rng)]] for _ in range(copies))
    if not copies:
        return x
    if not _has_kernel(x):
        return torch.cat([x, *(style(x, rng) for style in chosen)])
    images = x.contiguous()  # the kernel reads one channel after the other
    views = torch.empty(((copies + 1) * len(x), *x.shape[1:]), device=x.device, memory_format=torch.channels_last)
    for number, view in enumerate((x, *(style(images, rng) for style in chosen))):
        views[number * len(x) :][: len(x)] = view
    return views


def _mixed(x: Tensor, kernel: Tensor, keep: float) -> Tensor:
    """keep x + (1 - keep) conv(x)."""
    if _has_kernel(x) and x.is_contiguous():
        from unseen.ops.randconv_kernel import convolved_and_mixed  # takes Triton

        return convolved_and_mixed(x, kernel, keep)
    convolved = F.conv2d(x, kernel.to(x.dtype).to(x.device), padding=kernel.shape[-1] // 2)
    return torch.lerp(convolved, x, keep) if keep else convolved


def _has_kernel(x: Tensor) -> bool:
    return has_kernels(x.device) and x.shape[1] == 3 and x.dtype is torch.float32


def _uniform(rng: torch.Generator) -> float:
    return float(torch.rand((), generator=rng))


def _integer(low: int, high: int, rng: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=rng))


def _simplex(parts: int, rng: torch.Generator) -> list[float]:
    """Weights from Dirichlet(1, ..., 1): the gaps between sorted uniform numbers."""
    cuts = torch.rand(parts - 1, generator=rng, dtype=torch.float64).sort().values
    edges = torch.cat([cuts.new_zeros(1), cuts, cuts.new_ones(1)])
    return [float(gap) for gap in edges.diff()]
