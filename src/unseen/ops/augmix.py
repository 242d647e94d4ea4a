"""AugMix: an image mixed with chains of simple operations on it. Hendrycks et al., "AugMix", ICLR 2020, Section 3.

Everything is drawn for each image, on the CPU. Operations work on a whole batch [n, c, h, w], scaled so that 0 is the darkest and 1 the
brightest value that there is; each image has its own operation and strength. Where an image is moved, what lies outside it is its
mirror image (`ops/geometry.py`), black in the released code; shifts and angles are not rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unseen.ops.geometry import resample

__all__ = ["COLOURS", "MOVES", "Chains", "Operations", "applied", "augmix", "batch_range", "draw_chains"]

Operations = Literal["all", "colours"]
_DEGREES, _SHEAR, _SHIFT, _BITS = 30.0, 0.3, 1 / 3, 4  # at strength 10
_NARROWEST = 1e-6  # range of values: an even batch has none


class Chains(NamedTuple):
    """What is drawn for n images: `width` chains of at most `depth` operations, image by image within a chain."""

    operation: Tensor  # [depth, width * n]: its number; -1 where the chain has ended
    strength: Tensor  # [depth, width * n], up to 1: the paper's level, of 10
    sign: Tensor  # [depth, width * n]: to which side
    weight: Tensor  # [width, n]: of each chain, from a Dirichlet distribution
    mixed: Tensor  # [n]: the part of the mixture in the result, from a Beta distribution


def draw_chains(
    n: int,
    rng: torch.Generator,
    *,
    width: int = 3,
    depth: int = 3,
    severity: float = 3.0,
    alpha: float = 1.0,
    operations: Operations = "all",
) -> Chains:
    """From 1 to `depth` operations in a chain, strengths from U(0.1, severity) / 10, and the mixing weights."""
    shape = (depth, width * n)
    number = torch.randint(len(COLOURS) + (len(MOVES) if operations == "all" else 0), shape, generator=rng)
    length = torch.randint(1, depth + 1, (width * n,), generator=rng)
    goes_on = torch.arange(depth)[:, None] < length
    strength = (0.1 + (severity - 0.1) * torch.rand(shape, generator=rng)) / 10
    sign = 2.0 * torch.randint(2, shape, generator=rng) - 1
    return Chains(torch.where(goes_on, number, -1), strength, sign, _simplex(alpha, (width, n), rng), _simplex(alpha, (2, n), rng)[0])


@torch.no_grad()
def augmix(x: Tensor, chains: Chains, low: Tensor, high: Tensor) -> Tensor:
    """(1 - m) x + m sum_i w_i chain_i(x). `low` and `high`, per channel, are what counts as black and white in x."""
    span = (high - low).clamp_min(_NARROWEST)
    unit = ((x - low) / span).clamp(0, 1)
    chained = torch.cat([unit] * len(chains.weight))  # lies in memory as x does
    for operation, strength, sign in zip(chains.operation, chains.strength, chains.sign, strict=True):
        chained = applied(chained, operation, strength, sign)
    weight = chains.weight.to(x.dtype).to(x.device)[:, :, None, None, None]
    mixture = (weight * chained.unflatten(0, weight.shape[:2])).sum(0) * span + low
    return torch.lerp(x, mixture, chains.mixed.to(x.dtype).to(x.device)[:, None, None, None])


def batch_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """The darkest and the brightest value of each channel in a batch, [1, c, 1, 1]: its black and white, where the scale is not known."""
    return x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)


def applied(u: Tensor, operation: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """The images [n, c, h, w] in [0, 1], each through its operation (by number; -1: as it is)."""
    result = u.clone()
    for number, change in enumerate(COLOURS.values()):
        rows = (operation == number).nonzero()[:, 0]
        if len(rows):
            there = rows.to(u.device)
            result[there] = change(u[there], strength[rows].to(u.dtype).to(u.device)[:, None, None, None])
    rows = (operation >= len(COLOURS)).nonzero()[:, 0]
    if len(rows):
        there = rows.to(u.device)
        maps = _moves(operation[rows] - len(COLOURS), strength[rows] * sign[rows], (u.shape[2], u.shape[3]))
        result[there] = resample(u[there], maps.to(u.dtype).to(u.device), "bilinear").clamp(0, 1)
    return result


def _autocontrast(u: Tensor, _: Tensor) -> Tensor:
    """Each channel stretched to the whole range; an even one stays."""
    low, high = u.amin((2, 3), keepdim=True), u.amax((2, 3), keepdim=True)
    return torch.where(high > low, (u - low) / (high - low).clamp_min(_NARROWEST), u)


def _equalized(u: Tensor, _: Tensor) -> Tensor:
    """Each channel's values spread so that all 256 are equally frequent, as PIL does it; one with too few values stays."""
    values = (u * 255).round().long().flatten(2)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.long, device=u.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    last = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - last) // 255
    before = counts.cumsum(2) - counts
    table = torch.where(step > 0, (before + step // 2) // step.clamp_min(1), torch.arange(256, device=u.device)).clamp(0, 255)
    return (table.gather(2, values).to(u.dtype) / 255).view_as(u)


def _posterized(u: Tensor, strength: Tensor) -> Tensor:
    """Four bits less a part of four, by strength."""
    size = 2.0 ** (8 - _BITS + (strength * _BITS).floor())  # values that become one
    return ((u * 255).round() / size).floor() * size / 255


def _solarized(u: Tensor, strength: Tensor) -> Tensor:
    """What is brighter than the threshold is inverted."""
    return torch.where(u >= 1 - strength, 1 - u, u)


COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast, "equalize": _equalized, "posterize": _posterized, "solarize": _solarized,
}  # fmt: skip
MOVES: Sequence[str] = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def _moves(which: Tensor, strength: Tensor, size: tuple[int, int]) -> Tensor:
    """Where each place of the result lies in the source, [n, 2, 3], as `resample` reads it. A shear leaves the upper left corner."""
    angle, shear_x, shear_y, shift_x, shift_y = (torch.where(which == number, strength, 0.0) for number in range(len(MOVES)))
    angle, aspect = torch.deg2rad(_DEGREES * angle), size[0] / size[1]
    over, under = _SHEAR * shear_x * aspect, _SHEAR * shear_y / aspect
    across = torch.stack([angle.cos(), over - angle.sin() * aspect, over + 2 * _SHIFT * shift_x], 1)
    down = torch.stack([under + angle.sin() / aspect, angle.cos(), under + 2 * _SHIFT * shift_y], 1)
    return torch.stack([across, down], 1)


def _simplex(alpha: float, shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Dirichlet(alpha, ..., alpha) down each column, from gamma variables in double precision; of two rows each is Beta(alpha, alpha)."""
    parts = torch._standard_gamma(torch.full(shape, alpha, dtype=torch.float64), generator=rng)
    total = parts.sum(0)
    return torch.where(total > 0, parts / total, 1 / shape[0]).float()
