"""What a reader hands on: which files hold which samples. Nothing is decoded before `prepare` asks each piece for its block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unseen.data.domain import IMAGENET, UNIT, Pixels
from unseen.data.reading.decode import Original, decode_rgb, open_image, planes, read_mask, resized, to_rgb
from unseen.data.reading.masks import MaskMap
from unseen.data.reading.source import Source, listed
from unseen.errors import BadInput
from unseen.task import Classification, Segmentation, Task

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Block", "Facts", "ImagePiece", "MaskedPiece", "Piece", "ReadPlan", "classification_plan", "segmentation_plan"]


@dataclass(frozen=True)
class Facts:
    """What is known of one sample beside its image and its label; '' for what is not."""

    id: str
    group: str = ""  # patient, slide or volume
    split: str = ""  # train, val or test


@dataclass(frozen=True, eq=False)
class Block:
    """The samples of one piece, decoded."""

    images: NDArray[np.uint8]  # [n, channels, size, size]
    labels: NDArray[Any]  # int64 [n], or masks uint8 {0, 1} [n, structures, size, size]
    facts: Sequence[Facts]
    spacing: NDArray[np.float32] | None = None  # millimetres per pixel, [n, 2]
    originals: Sequence[Original] = ()


class Piece(Protocol):
    """One file, or one image with its mask: what is decoded in one go."""

    def block(self, size: int) -> Block:
        """Its samples at this size; BadInput if they cannot be had. Threads call this at the same time."""


@dataclass(frozen=True)
class ReadPlan:
    """A data set as a reader found it."""

    task: Task
    domains: Mapping[str, Sequence[Piece]]
    pixels: Pixels
    network: str
    augment: str
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        lowered: dict[str, str] = {}
        for name in self.domains:
            if (other := lowered.setdefault(name.lower(), name)) != name:
                raise BadInput(f"the domains {other!r} and {name!r} differ only in upper and lower case; join them or rename one")
        empty = [name for name, pieces in self.domains.items() if not pieces]
        if empty or not self.domains:
            raise BadInput(f"no samples in {listed(empty)}" if empty else "no domain was found")


def classification_plan(
    classes: Sequence[str], domains: Mapping[str, Sequence[Piece]], notes: Sequence[str] = (), **changes: Any
) -> ReadPlan:
    settings: dict[str, Any] = {"pixels": IMAGENET, "network": "resnet18", "augment": "domainbed", **changes}
    return ReadPlan(Classification(tuple(classes)), domains, notes=tuple(notes), **settings)


def segmentation_plan(
    structures: Sequence[str], domains: Mapping[str, Sequence[Piece]], notes: Sequence[str] = (), **changes: Any
) -> ReadPlan:
    settings: dict[str, Any] = {"pixels": UNIT, "network": "unet", "augment": "elcfs", **changes}
    return ReadPlan(Segmentation(tuple(structures)), domains, notes=tuple(notes), **settings)


@dataclass(frozen=True)
class ImagePiece:
    """An image file with a class."""

    source: Source
    file: str
    label: int
    facts: Facts

    def block(self, size: int) -> Block:
        image, original = decode_rgb(self.source.read(self.file), self.file, size)
        return Block(image[None], np.array([self.label]), [self.facts], originals=[original])


@dataclass(frozen=True)
class MaskedPiece:
    """An image file with a mask file of the same size."""

    source: Source
    file: str
    mask: str
    map: MaskMap
    facts: Facts
    crop: int | None = None  # pixels of the central square that is kept

    def block(self, size: int) -> Block:
        from PIL import Image

        image, original = open_image(self.source.read(self.file), self.file)
        values, _ = read_mask(self.source.read(self.mask), self.mask)
        if values.shape != (image.height, image.width):
            raise BadInput(
                f"{self.mask} is {values.shape[1]} x {values.shape[0]} pixels, its image {self.file} {image.width} x {image.height}; "
                "expected the same size"
            )
        self.map.check(values, self.mask)
        drawn = Image.fromarray(values)
        if self.crop is not None:
            image, drawn = _central(image, self.crop), _central(drawn, self.crop)
        masks = self.map.apply(np.asarray(drawn.resize((size, size), Image.Resampling.NEAREST)))
        return Block(planes(resized(to_rgb(image, self.file), size))[None], masks[None], [self.facts], originals=[original])


def _central(image: Image.Image, side: int) -> Image.Image:
    """The central square of `side` pixels, or as much of it as the image has."""
    width, height = min(side, image.width), min(side, image.height)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))
