"""MIDOG 2022: mitotic figures against look-alikes in five kinds of tumour. Aubreville et al., 2022; images 355 to 405 have no labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from unseen.data.reading.decode import open_image, planes, resized, to_rgb
from unseen.data.reading.piece import Block, Facts, ReadPlan, classification_plan
from unseen.data.reading.source import Source, WrongLayout, listed
from unseen.errors import BadInput

__all__ = ["CLASSES", "DOMAINS", "read_midog"]

CLASSES = ("hard negative", "mitotic figure")
PATCH = 128  # pixels of the square around a cell, at the image's own resolution
_LAST_IMAGE = {150: "human breast", 194: "canine lung", 249: "canine lymphoma", 299: "canine mast cell", 354: "human neuroendocrine"}
DOMAINS = tuple(_LAST_IMAGE.values())
_TUMOUR_KEYS = ("tumor_type", "tumortype", "tumor", "tumour_type")

Box = tuple[float, float, float, float]  # left, top, right, bottom


def read_midog(source: Source) -> ReadPlan:
    """`MIDOG2022_training.json` (or the one for PNG) with its images anywhere below."""
    tables = [n for n in source.names if PurePosixPath(n).name.upper().startswith("MIDOG") and n.endswith(".json")]
    if len(tables) != 1:
        raise WrongLayout(f"there are {len(tables)} files MIDOG*.json")
    table = _parsed(source.text(tables[0]), tables[0])
    files = {PurePosixPath(name).name: name for name in source.images()}
    labels = {c["id"]: int(c["name"].strip().lower() == "mitotic figure") for c in table["categories"]}
    boxes = _boxes(table["annotations"])
    wanted = [image for image in table["images"] if image["id"] in boxes]
    missing = [image["file_name"] for image in wanted if image["file_name"] not in files]
    if missing:
        raise BadInput(f"{tables[0]} names {len(missing)} images that are not there: {listed(missing)}")
    pieces: dict[str, list[_CellsPiece]] = {}
    for image in wanted:
        cells = [(box, labels[category]) for box, category in boxes[image["id"]]]
        pieces.setdefault(_tumour(image), []).append(_CellsPiece(source, files[image["file_name"]], cells))
    return classification_plan(CLASSES, pieces)


@dataclass(frozen=True)
class _CellsPiece:
    """One large image: a patch around every cell that was marked in it."""

    source: Source
    file: str
    cells: Sequence[tuple[Box, int]]

    def block(self, size: int) -> Block:
        image, original = open_image(self.source.read(self.file), self.file)
        image = to_rgb(image, self.file)
        patches = [planes(resized(_patch(image, box), size)) for box, _ in self.cells]
        case = PurePosixPath(self.file).stem
        facts = [Facts(f"{case}/{number}", group=case) for number in range(len(self.cells))]
        return Block(np.stack(patches), np.array([label for _, label in self.cells]), facts, originals=[original])


def _patch(image: Image.Image, box: Box) -> Image.Image:
    """The square around the middle of the box, moved inwards where it would leave the image."""
    side = min(PATCH, *image.size)
    middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    left, top = (min(max(round(m - side / 2), 0), length - side) for m, length in zip(middle, image.size))
    return image.crop((left, top, left + side, top + side))


def _parsed(text: str, name: str) -> dict[str, list[dict[str, Any]]]:
    try:
        table = json.loads(text)
        for key, fields in (
            ("images", ("id", "file_name")),
            ("annotations", ("image_id", "category_id", "bbox")),
            ("categories", ("id", "name")),
        ):
            for entry in table[key]:
                for field in fields:
                    entry[field]
        known = {c["id"] for c in table["categories"]}
        strange = sorted({a["category_id"] for a in table["annotations"]} - known)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{name} is no table of images, annotations and categories: {type(error).__name__} {error}") from None
    if strange:
        raise BadInput(f"{name} uses the categories {strange}, which it does not define")
    if not any(c["name"].strip().lower() == "mitotic figure" for c in table["categories"]):
        raise BadInput(f"{name} has no category 'mitotic figure'; it has {', '.join(c['name'] for c in table['categories'])}")
    return table  # type: ignore[no-any-return]


def _boxes(annotations: Sequence[Mapping[str, Any]]) -> dict[int, list[tuple[Box, int]]]:
    """The boxes by image. MIDOG writes two corners; a file in which these would be inside out has COCO's widths and heights."""
    try:
        corners = [tuple(float(v) for v in a["bbox"]) for a in annotations]
        sizes = any(right <= left or bottom <= top for left, top, right, bottom in corners)
    except (TypeError, ValueError) as error:
        raise BadInput(f"a bbox is not four numbers: {error}") from None
    boxes: dict[int, list[tuple[Box, int]]] = {}
    for annotation, (a, b, c, d) in zip(annotations, corners):
        box = (a, b, a + c, b + d) if sizes else (a, b, c, d)
        boxes.setdefault(annotation["image_id"], []).append((box, annotation["category_id"]))
    return boxes


def _tumour(image: Mapping[str, Any]) -> str:
    """The tumour type, from the table if it says so, else by the number of the image as the challenge's page lists them."""
    for key in _TUMOUR_KEYS:
        if image.get(key):
            return str(image[key])
    digits = PurePosixPath(image["file_name"]).stem
    number = int(digits) if digits.isascii() and digits.isdigit() else 0
    for last, tumour in _LAST_IMAGE.items():
        if 0 < number <= last:
            return tumour
    raise BadInput(
        f"the tumour type of {image['file_name']} is not known: its entry has no tumor_type, and its number is not from 1 to 354"
    )
