"""Augmentation of training batches: recipes by name, each sample with parameters of its own.

A batch is augmented where it lies. Parameters are drawn on the CPU, from the client's generator, and sent to the device as a few
small tensors, so that a GPU is never waited for. Images come in [0, 1], before normalisation, and stay there.

Geometry comes first (one resampling, see `unseen.ops.geometry`), then brightness, contrast and saturation in one linear map, then
hue, then grayscale. The order is fixed; the published pipelines shuffle the four colour adjustments, which differs only where a
pixel is clamped in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.data.bigaug import BigAug
from unseen.errors import BadInput
from unseen.ops.colour import blend_map, blended, grayscaled, turned_hue
from unseen.ops.geometry import crop_boxes, resample, source_map
from unseen.own_code import Own, telling_where
from unseen.settings import Configured, hyper

__all__ = ["RECIPES", "Augment", "Augmentation", "Parameters", "own_augmentation"]

Augmentation = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]

_CROP_TRIES = 10  # boxes drawn per sample before the whole image is taken; as many as torchvision's


@dataclass(frozen=True, eq=False)
class Parameters:
    """What happens to each sample of a batch: tensors of n rows on the CPU."""

    box: Tensor  # [n, 4]: left, top, width, height as fractions of the image
    mirrored: Tensor  # bool
    degrees: Tensor  # counter-clockwise
    zoom: Tensor
    brightness: Tensor  # factors: 1 leaves an image as it is
    contrast: Tensor
    saturation: Tensor
    hue: Tensor  # turns: 0 leaves an image as it is
    gray: Tensor  # bool


@dataclass(frozen=True)
class Augment(Configured):
    """How far a training image may be changed. As it stands, not at all.

    >>> x, y = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    >>> moved, labels = Augment(crop_min=0.5, flip=0.5, hue=0.1)(x, y, torch.Generator().manual_seed(0))
    >>> moved.shape, labels is y
    (torch.Size([2, 3, 8, 8]), True)
    """

    crop_min: float = hyper(1.0, "random resized crop: smallest part of the image's area", low=0.01, high=1.0)
    crop_max: float = hyper(1.0, "random resized crop: largest part of the image's area", low=0.01, high=1.0)
    crop_ratio: float = hyper(4 / 3, "random resized crop: largest width over height, and height over width", low=1.0, high=10.0)
    flip: float = hyper(0.0, "probability of mirroring left to right", low=0.0, high=1.0)
    rotation: float = hyper(0.0, "largest rotation to either side, in degrees", low=0.0, high=180.0)
    zoom_min: float = hyper(1.0, "smallest magnification about the centre", low=0.1, high=10.0)
    zoom_max: float = hyper(1.0, "largest magnification about the centre", low=0.1, high=10.0)
    brightness: float = hyper(0.0, "brightness factor drawn from 1 - this to 1 + this", low=0.0, high=1.0)
    contrast: float = hyper(0.0, "contrast factor drawn from 1 - this to 1 + this", low=0.0, high=1.0)
    saturation: float = hyper(0.0, "saturation factor drawn from 1 - this to 1 + this", low=0.0, high=1.0)
    hue: float = hyper(0.0, "largest turn of the hue to either side, 0.5 being half the circle", low=0.0, high=0.5)
    grayscale: float = hyper(0.0, "probability of a grayscale image", low=0.0, high=1.0)

    def contradictions(self) -> Iterable[str]:
        for knob in ("crop", "zoom"):
            low, high = getattr(self, f"{knob}_min"), getattr(self, f"{knob}_max")
            if low > high:
                yield f"{knob}_min is {low:g} and {knob}_max is {high:g}; expected the smaller one first"

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """`x` changed sample by sample, and `y` with it where it holds masks.

        `x` is float [n, c, h, w] in [0, 1]; `y` is class indices [n], which come back as they are, or masks [n, s, h, w], which
        move with their images (nearest pixel, so no value is invented). What was given is not written to.
        """
        _refuse_unfit(x, y)
        if not self.does_something:
            return x, y
        parameters = self.draw(len(x), (x.shape[2], x.shape[3]), rng)
        if self.moves:
            x, y = _moved(x, y, parameters)
        return self._coloured(x, parameters), y

    def draw(self, n: int, size: tuple[int, int], rng: torch.Generator) -> Parameters:
        """Parameters for `n` images of this (height, width). Everything is drawn, so that one knob does not shift another's draws."""
        drawn = torch.rand(n, 2 * _CROP_TRIES + 10, generator=rng, dtype=torch.float64)
        x, y, flip, degrees, zoom, brightness, contrast, saturation, hue, gray = drawn[:, 2 * _CROP_TRIES :].unbind(1)
        return Parameters(
            box=self._boxes(drawn[:, : 2 * _CROP_TRIES], torch.stack([x, y], 1), size),
            mirrored=flip < self.flip,
            degrees=_both_sides(degrees, self.rotation),
            zoom=self.zoom_min + (self.zoom_max - self.zoom_min) * zoom,
            brightness=1 + _both_sides(brightness, self.brightness),
            contrast=1 + _both_sides(contrast, self.contrast),
            saturation=1 + _both_sides(saturation, self.saturation),
            hue=_both_sides(hue, self.hue),
            gray=gray < self.grayscale,
        )

    def _boxes(self, drawn: Tensor, place: Tensor, size: tuple[int, int]) -> Tensor:
        if self.crop_min == 1:  # no crop: an image that is wider than `crop_ratio` must stay whole
            return drawn.new_tensor([[0, 0, 1, 1]]).expand(len(drawn), 4)
        area = self.crop_min + (self.crop_max - self.crop_min) * drawn[:, :_CROP_TRIES]
        ratio = torch.exp(_both_sides(drawn[:, _CROP_TRIES:], math.log(self.crop_ratio)))
        return crop_boxes(area, ratio, place, size, widest=self.crop_ratio)

    @property
    def does_something(self) -> bool:
        return self.moves or self.blends or self.hue > 0 or self.grayscale > 0

    @property
    def moves(self) -> bool:
        return self.crop_min < 1 or self.flip > 0 or self.rotation > 0 or (self.zoom_min, self.zoom_max) != (1, 1)

    @property
    def blends(self) -> bool:
        return self.brightness > 0 or self.contrast > 0 or self.saturation > 0

    def _coloured(self, x: Tensor, of: Parameters) -> Tensor:
        channels = x.shape[1]
        if self.blends:
            _refuse_unless_coloured(channels)
            x = blended(x, _sent(blend_map(of.brightness, of.contrast, of.saturation, channels), x))
        if self.hue and channels == 3:
            x = turned_hue(x, _sent(of.hue, x))
        if self.grayscale and channels == 3:
            x = grayscaled(x, of.gray.nonzero()[:, 0].to(x.device, non_blocking=True))
        return x


def _moved(x: Tensor, y: Tensor, of: Parameters) -> tuple[Tensor, Tensor]:
    to_source = _sent(source_map(of.box, of.mirrored, of.degrees, of.zoom, (x.shape[2], x.shape[3])), x)
    moved = resample(x, to_source, "bilinear").clamp_(0, 1)  # the four weights of a pixel may add up to 1 + 1e-7
    return moved, resample(y.to(x.dtype), to_source, "nearest").to(y.dtype) if y.ndim == 4 else y


def _both_sides(drawn: Tensor, reach: float) -> Tensor:
    """From [0, 1) to [-reach, reach)."""
    return (2 * drawn - 1) * reach


def _sent(parameters: Tensor, x: Tensor) -> Tensor:
    """Where the batch is, and as precise. Rounded here first: only a plain copy goes to a device without waiting for it."""
    return parameters.to(x.dtype).to(x.device, non_blocking=True)


def _refuse_unfit(x: Tensor, y: Tensor) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise BadInput(f"images are {x.dtype} {list(x.shape)}; expected float [n, c, h, w] in [0, 1]")
    n, _, height, width = x.shape
    if y.shape != (n,) and (y.ndim != 4 or (y.shape[0], *y.shape[2:]) != (n, height, width)):
        raise BadInput(
            f"labels are {list(y.shape)} for images {list(x.shape)}; expected classes [{n}] or masks [{n}, s, {height}, {width}]"
        )


def _refuse_unless_coloured(channels: int) -> None:
    if channels not in (1, 3):
        raise BadInput(f"colour jitter of images with {channels} channels; expected 1 or 3: use a recipe without it, such as 'elcfs'")


RECIPES: dict[str, Augment | BigAug] = {
    "none": Augment(),
    # Gulrajani and Lopez-Paz, 2021, as in DomainBed.
    "domainbed": Augment(crop_min=0.7, flip=0.5, brightness=0.3, contrast=0.3, saturation=0.3, hue=0.3, grayscale=0.1),
    # Carlucci et al., 2019. There grayscale is drawn for each tile of the puzzle; for whole images, once.
    "jigen": Augment(crop_min=0.8, flip=0.5, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4, grayscale=0.1),
    # Liu et al., 2021, name rotation, scaling and flipping without a range: these ranges are ours.
    "elcfs": Augment(flip=0.5, rotation=15.0, zoom_min=0.9, zoom_max=1.1),
    # FedSB's released code resizes to 232 pixels and keeps the central 224.
    "fedsb-released": Augment(
        zoom_min=232 / 224, zoom_max=232 / 224, flip=0.5, brightness=0.3, contrast=0.3, saturation=0.3, hue=0.3, grayscale=0.1
    ),
    # Zhang et al., 2020: nine stacked transforms, made for segmentation.
    "bigaug": BigAug(),
    "fedadg-released": Augment(crop_min=0.7, flip=0.5, grayscale=0.1),
}


def own_augmentation(own: Own, x: Tensor, y: Tensor) -> Augmentation:
    """A user's own (x, y, rng) -> (x, y), tried on a batch first. What it returns is checked batch by batch."""

    @torch.no_grad()
    def augment(x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        made = own(x, y, rng)
        if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(one, Tensor) for one in made)):
            raise BadInput(f"{own} returned a {type(made).__name__}; expected the images and the labels")
        if (made[0].shape, made[0].dtype, made[1].shape) != (x.shape, x.dtype, y.shape):
            told = f"images {made[0].dtype} {list(made[0].shape)} and labels {list(made[1].shape)}"
            raise BadInput(
                f"{own} returned {told} for images {x.dtype} {list(x.shape)} and labels {list(y.shape)}; expected the same shapes"
            )
        return made[0], made[1]

    with telling_where(f"{own} failed on {len(x)} images of {list(x.shape[1:])}"):
        augment(x, y, torch.Generator().manual_seed(0))
    return augment
