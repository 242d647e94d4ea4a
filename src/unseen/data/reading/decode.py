"""One image file to bytes of red, green and blue, or one mask file to one number per pixel.

What is done with files that are not plain 8-bit RGB:
- grey and black-and-white images get three equal channels;
- palette images get their palette's colours;
- CMYK is converted as Pillow does, without a colour profile;
- transparency is laid over white;
- 16-bit images are scaled from 0..65535 to 0..255, the same for every file, whatever range a file happens to use;
- floating-point images are refused, since no scale is known;
- an EXIF orientation is applied, so that the image stands as its camera meant it;
- of several frames the first is taken;
- a truncated or damaged file is refused, never filled up with grey;
- so is one with more pixels than `limits.py` allows, before they are decoded.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unseen.data.reading.limits import pixel_limit, refuse_pixels
from unseen.errors import BadInput

if TYPE_CHECKING:  # training on what is prepared needs no Pillow
    from PIL import Image

__all__ = ["Original", "decode_rgb", "open_image", "open_undecoded", "planes", "read_mask", "resized", "to_rgb"]

Bytes = NDArray[np.uint8]
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # no others, whatever a file is called: one of Pillow's starts a program


@dataclass(frozen=True)
class Original:
    """What a file was before it was prepared."""

    mode: str  # as Pillow calls it: RGB, L, I;16 ...
    width: int
    height: int


def decode_rgb(data: bytes, name: str, size: int) -> tuple[Bytes, Original]:
    """An image as [3, size, size]: the whole image, squeezed to a square, bilinear."""
    image, original = open_image(data, name, at_least=size)
    return planes(resized(to_rgb(image, name), size)), original


def open_image(data: bytes, name: str, at_least: int | None = None) -> tuple[Image.Image, Original]:
    """The image, upright. A JPEG is decoded at a half, a quarter or an eighth if that still gives `at_least` pixels a side."""
    from PIL import ImageOps, UnidentifiedImageError

    try:
        image = open_undecoded(data, name)
        original = Original(image.mode, *image.size)
        if at_least is not None:
            image.draft(None, (at_least, at_least))  # type: ignore[no-untyped-call, unused-ignore]
        image.load()
        return ImageOps.exif_transpose(image), original
    except BadInput:
        raise
    except Exception as error:  # on damaged files the decoders raise whatever they happen to run into
        reason = "no known image format" if isinstance(error, UnidentifiedImageError) else error
        raise BadInput(f"{name} cannot be read: {reason}") from None


def open_undecoded(data: bytes, name: str) -> Image.Image:
    """The image as its header tells it; BadInput if it has more pixels than are decoded."""
    from PIL import Image

    if Image.MAX_IMAGE_PIXELS is not None and pixel_limit() > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = pixel_limit()  # where the user raised the limits, Pillow's own must not stand in the way
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadInput(f"{name} is refused: {error}") from None
    refuse_pixels(image.width * image.height, len(data), name)
    return image


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Any image that Pillow opens, as 8-bit RGB."""
    from PIL import Image

    if image.mode == "F":
        raise BadInput(f"{name} holds floating-point numbers of unknown scale; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = _eight_bits(image, name)
    try:
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return image.convert("RGB")
    except ValueError as error:
        raise BadInput(f"{name} cannot be read as RGB: {error}") from None


def resized(image: Image.Image, size: int) -> Image.Image:
    from PIL import Image

    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR)


def planes(image: Image.Image) -> Bytes:
    """RGB as [3, height, width]."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def read_mask(data: bytes, name: str) -> tuple[Bytes, Original]:
    """A mask's values, [height, width]: grey levels, or the palette's numbers where its colours are not greys."""
    image, original = open_image(data, name)
    if image.mode == "1":
        image = image.convert("L")
    if image.mode == "P":
        image = image.convert("L") if _grey_palette(image) else image
        return np.asarray(image), original
    values = np.asarray(image)
    if values.ndim == 3:
        values = _one_channel(values[..., : 1 if image.mode == "LA" else 3], name)
    if values.dtype != np.uint8:
        values = _small_numbers(values, name)
    return values, original


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    from PIL import Image

    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise BadInput(f"{name} has values from {values.min()} to {values.max()}; expected 8 or 16 bits")
    values = values.astype(np.int32)  # in place from here on: the image may be large
    values += 128
    values //= 257
    return Image.fromarray(values.astype(np.uint8))


def _grey_palette(image: Image.Image) -> bool:
    colours = np.asarray(image.getpalette("RGB") or [], dtype=np.uint8).reshape(-1, 3)
    used = colours[np.unique(np.asarray(image))] if len(colours) > int(np.asarray(image).max()) else colours[:0]
    return bool(len(used)) and bool((used == used[:, :1]).all())


def _one_channel(values: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    if (values != values[..., :1]).any():
        raise BadInput(f"{name} is a mask in colours; expected one value per pixel (grey, or a palette)")
    return values[..., 0]


def _small_numbers(values: NDArray[np.generic], name: str) -> Bytes:
    found = np.unique(values)
    if set(found.tolist()) <= {0, 65535}:
        return np.where(values != 0, 255, 0).astype(np.uint8)
    if found[0] < 0 or found[-1] > 255 or (found != np.floor(found)).any():
        raise BadInput(f"{name} has mask values from {found[0]} to {found[-1]}; expected whole numbers from 0 to 255")
    return values.astype(np.uint8)
