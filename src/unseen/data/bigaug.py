"""BigAug: nine stacked transforms. Zhang et al., "Generalizing deep learning for medical image segmentation to unseen domains via deep
stacked transformation", IEEE TMI 2020.

Quality (sharpness, blur, noise), then appearance (brightness, contrast, a linear perturbation), then space (rotation, scale, elastic
deformation), each sample and transform with probability 1/2. There is no official code; the ranges are those of a third party's, in
standard deviations of the image. Where it does not say (how far a deformation goes) the range is ours. The result is cut to [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.ops.geometry import resample, source_map
from unseen.ops.intensity import blurred, gamma_corrected, rescaled, sharpened, with_noise
from unseen.settings import Configured, hyper

__all__ = ["BigAug"]

_TRANSFORMS = 9


@dataclass(frozen=True)
class BigAug(Configured):
    """How far each of the nine transforms goes. With p = 0 nothing is changed."""

    p: float = hyper(0.5, "probability of each transform, sample by sample", low=0.0, high=1.0)
    sharpen_min: float = hyper(10.0, "least strength of sharpening", low=0.0)
    sharpen_max: float = hyper(30.0, "largest strength of sharpening", low=0.0)
    blur_min: float = hyper(0.25, "least deviation of a blur, in pixels; of sharpening too", low=0.01)
    blur_max: float = hyper(1.5, "largest deviation of a blur, in pixels; of sharpening too", low=0.01, high=50.0)
    noise_min: float = hyper(0.1, "least noise, in deviations of the image", low=0.0)
    noise_max: float = hyper(1.0, "most noise, in deviations of the image", low=0.0)
    brightness: float = hyper(0.1, "largest shift of brightness, in deviations of the image", low=0.0)
    gamma_min: float = hyper(0.5, "least exponent of contrast", low=0.01)
    gamma_max: float = hyper(4.5, "largest exponent of contrast", low=0.01)
    perturbation: float = hyper(
        0.1, "linear perturbation: factor from 1 - this to 1 + this, shift of as many deviations", low=0.0, high=1.0
    )
    rotation: float = hyper(20.0, "largest rotation to either side, in degrees", low=0.0, high=180.0)
    zoom_min: float = hyper(0.4, "smallest magnification about the centre", low=0.1, high=10.0)
    zoom_max: float = hyper(1.6, "largest magnification about the centre", low=0.1, high=10.0)
    elastic: float = hyper(0.02, "largest displacement of a control point, as a part of the side", low=0.0, high=0.5)
    points: int = hyper(7, "control points along a side", low=2, high=64)

    def contradictions(self) -> Iterable[str]:
        for knob in ("sharpen", "blur", "noise", "gamma", "zoom"):
            low, high = getattr(self, f"{knob}_min"), getattr(self, f"{knob}_max")
            if low > high:
                yield f"{knob}_min is {low:g} and {knob}_max is {high:g}; expected the smaller one first"

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """`x` [n, c, h, w] in [0, 1] changed sample by sample, and `y` with it where it holds masks [n, s, h, w] (nearest pixel)."""
        n = len(x)
        acts = torch.rand(n, _TRANSFORMS, generator=rng) < self.p
        u = torch.rand(n, 12, generator=rng, dtype=torch.float64)
        bends = torch.rand(n, 2, self.points, self.points, generator=rng) * 2 - 1
        noise_seed = int(torch.randint(2**62, (), generator=rng))
        sigma, again, third = (self.blur_min + (self.blur_max - self.blur_min) * u[:, k] for k in range(3))
        strength = self.sharpen_min + (self.sharpen_max - self.sharpen_min) * u[:, 3]
        noise = self.noise_min + (self.noise_max - self.noise_min) * u[:, 4]
        brightness = _both_sides(u[:, 5], self.brightness)
        gamma = self.gamma_min + (self.gamma_max - self.gamma_min) * u[:, 6]
        factor, shift = 1 + _both_sides(u[:, 7], self.perturbation), _both_sides(u[:, 8], self.perturbation)
        x = _some(x, acts[:, 0], lambda some, at: sharpened(some, sigma[at], again[at], strength[at]))
        x = _some(x, acts[:, 1], lambda some, at: blurred(some, third[at]))
        x = _some(x, acts[:, 2], lambda some, at: with_noise(some, _normal(some, noise_seed), noise[at]))
        x = _some(x, acts[:, 3], lambda some, at: rescaled(some, torch.ones(len(at)), brightness[at]))
        x = _some(x, acts[:, 4], lambda some, at: gamma_corrected(some, gamma[at]))
        x = _some(x, acts[:, 5], lambda some, at: rescaled(some, factor[at], shift[at]))
        if bool(acts[:, 6:].any()):
            x, y = self._moved(x, y, acts[:, 6:], u[:, 9], u[:, 10], bends)
        return (x.clamp(0, 1) if bool(acts.any()) else x), y

    def _moved(self, x: Tensor, y: Tensor, acts: Tensor, turn: Tensor, size: Tensor, bends: Tensor) -> tuple[Tensor, Tensor]:
        """Rotation, scale and deformation in one resampling."""
        degrees = torch.where(acts[:, 0], _both_sides(turn, self.rotation), 0.0)
        zoom = torch.where(acts[:, 1], self.zoom_min + (self.zoom_max - self.zoom_min) * size, 1.0)
        whole = degrees.new_tensor([[0, 0, 1, 1]]).expand(len(x), 4)
        to_source = source_map(whole, torch.zeros(len(x), dtype=torch.bool), degrees, zoom, (x.shape[2], x.shape[3]))
        to_source = to_source.to(x.dtype).to(x.device, non_blocking=True)
        points = (2 * self.elastic * bends * acts[:, 2].view(-1, 1, 1, 1)).to(x.dtype).to(x.device, non_blocking=True)
        bent = F.interpolate(points, x.shape[2:], mode="bicubic", align_corners=True).permute(0, 2, 3, 1)  # from -1 to 1: a side is 2
        moved = resample(x, to_source, "bilinear", bent)
        return moved, resample(y.to(x.dtype), to_source, "nearest", bent).to(y.dtype) if y.ndim == 4 else y


def _some(x: Tensor, acts: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`x` with the samples that `acts` chooses changed; `change` is given them and their numbers."""
    at = acts.nonzero()[:, 0]
    if not len(at):
        return x
    rows = at.to(x.device, non_blocking=True)
    return x.index_copy(0, rows, change(x[rows], at))


def _normal(like: Tensor, seed: int) -> Tensor:
    """N(0, 1), drawn where the images are: as many numbers as pixels would take long to send."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=torch.Generator(like.device).manual_seed(seed))


def _both_sides(drawn: Tensor, reach: float) -> Tensor:
    """From [0, 1) to [-reach, reach)."""
    return (2 * drawn - 1) * reach
