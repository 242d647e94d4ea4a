"""Image files as a model takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unseen.data.reading.decode import open_image, open_undecoded, planes, to_rgb
from unseen.data.reading.source import is_hidden, is_image
from unseen.deploy.card import ModelCard
from unseen.errors import BadInput

__all__ = ["ImageFile", "Size", "as_input", "find_image_files"]

Size = tuple[int, int]  # width, height
_ORIENTATION, _LYING = 0x0112, (5, 6, 7, 8)  # EXIF: orientations that swap width and height


@dataclass(frozen=True)
class ImageFile:
    """A file, and the name below the folder that was asked for, by which its mask is called."""

    path: Path
    name: str


def find_image_files(paths: Sequence[Path], listed: Iterable[str] = ()) -> list[ImageFile]:
    """Every image named, or below a folder that is named; `listed` are lines such as a program writes. Files keep their order."""
    found = [file for path in paths for file in _below(path)]
    found += [ImageFile(Path(line.strip()), Path(line.strip()).name) for line in listed if line.strip()]
    missing = [f"no image {file.path}" for file in found if not file.path.is_file()]
    if missing:
        raise BadInput(missing[:20])
    if not found:
        raise BadInput(
            f"no images in {', '.join(map(str, paths)) or 'the list'}; give image files, folders of them, or - for a list of names"
        )
    return found


def _below(path: Path) -> Iterator[ImageFile]:
    if not path.is_dir():
        yield ImageFile(path, path.name)
        return
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and is_image(name) and not is_hidden(name):
            yield ImageFile(file, name)


def as_input(data: bytes, name: str, card: ModelCard) -> tuple[NDArray[np.uint8], Size]:
    """An image [channels, height, width] at the model's size, squeezed to it as in training, and its own size, upright."""
    height, width = card.size
    image, original = open_image(data, name, at_least=max(height, width))
    lying = open_undecoded(data, name).getexif().get(_ORIENTATION) in _LYING
    own = (original.height, original.width) if lying else (original.width, original.height)
    rgb = to_rgb(image, name)
    if rgb.size != (width, height):
        rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
    if card.channels == 1:
        return np.asarray(rgb.convert("L"))[None], own
    if card.channels != 3:
        raise BadInput(f"this model takes {card.channels} channels; image files have 1 or 3")
    return planes(rgb), own
