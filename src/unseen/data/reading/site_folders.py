"""Data sets that are folders of images and masks: `<site>/images/...` and `<site>/masks/...`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from unseen.data.reading.class_folders import SPLIT_NAMES
from unseen.data.reading.decode import read_mask
from unseen.data.reading.masks import MaskMap, deduce_map
from unseen.data.reading.piece import Facts, MaskedPiece, ReadPlan, segmentation_plan
from unseen.data.reading.source import Source, WrongLayout, is_image, listed
from unseen.errors import BadInput

__all__ = ["SITE_LAYOUT", "Pair", "find_pairs", "has_masks", "histograms", "read_sites", "site_plan"]

SITE_LAYOUT = (
    "<site>/images/<image> and <site>/masks/<mask>, a mask named like its image; a folder train, val or test may stand below the site"
)
IMAGE_FOLDERS = ("images", "image", "imgs", "img")
# In order of preference: beside `1st_manual`, DRIVE's folder `mask` holds the field of view.
MASK_FOLDERS = ("masks", "1st_manual", "manual", "labels", "label", "segmentations", "ground_truth", "gt", "annotations", "mask")
_SECOND_OBSERVER = re.compile(r"(2ndho|manual2|\.vk)$", re.IGNORECASE)
_ENDS = re.compile(
    r"[-_. ]?(masks?|seg|segmentation|labels?|gt|ground_?truth|manual1?|1stho|ah|annotations?|vessels?|training|test|image|img)$",
    re.IGNORECASE,
)
_STARTS = re.compile(r"^(masks?|seg|segmentation|labels?|gt|image|img)[-_. ]", re.IGNORECASE)


@dataclass(frozen=True)
class Pair:
    """An image, its mask and where they come from."""

    site: str
    split: str
    image: str
    mask: str


def read_sites(source: Source) -> ReadPlan:
    """A user's own images and masks; what the masks' values mean is deduced from the masks."""
    pairs, notes = find_pairs(source)
    mask_map, note = deduce_map(histograms(source, [p.mask for p in pairs]))
    return site_plan(source, pairs, mask_map, [*notes, *([note] if note else [])])


def site_plan(
    source: Source, pairs: Sequence[Pair], mask_map: MaskMap, notes: Iterable[str] = (), group: Callable[[str], str] | None = None
) -> ReadPlan:
    """The plan for these pairs; `group` tells the patient from an image's name."""
    pieces: dict[str, list[MaskedPiece]] = {}
    for p in pairs:
        facts = Facts(p.image, group(p.image) if group else "", p.split)
        pieces.setdefault(p.site, []).append(MaskedPiece(source, p.image, p.mask, mask_map, facts))
    return segmentation_plan(mask_map.names, pieces, list(notes))


def has_masks(source: Source) -> bool:
    """Whether this is a data set of images and masks."""
    folders = {part.lower() for name in source.names if is_image(name) for part in name.split("/")[:-1]}
    return bool(folders & set(IMAGE_FOLDERS)) and bool(folders & set(MASK_FOLDERS))


def find_pairs(source: Source) -> tuple[list[Pair], list[str]]:
    """Every image with its mask, by site, and notes on masks without an image."""
    images, masks = _by_place(source, IMAGE_FOLDERS), _by_place(source, MASK_FOLDERS)
    places = sorted(images)
    if not places or not masks:
        raise WrongLayout("there are no images beside masks")
    sites = _site_names(places, source)
    pairs, alone, unused = [], [], []
    for place in places:
        matched, left = _matched(images[place], masks.get(place, []))
        alone += [image for image, mask in matched.items() if mask is None]
        unused += left
        site, split = sites[place]
        pairs += [Pair(site, split, image, mask) for image, mask in matched.items() if mask is not None]
    if alone:
        raise BadInput(f"{source.label}: {len(alone)} images have no mask of the same name: {listed(alone)}")
    return pairs, [f"{len(unused)} masks have no image and are left out: {listed(unused)}"] if unused else []


def histograms(source: Source, masks: Sequence[str]) -> list[NDArray[np.int64]]:
    """How often each mask has each value. A mask that cannot be read counts for nothing here: preparing will name it."""

    def count(name: str) -> NDArray[np.int64]:
        try:
            return np.bincount(read_mask(source.read(name), name)[0].ravel(), minlength=256)
        except BadInput:
            return np.zeros(256, dtype=np.int64)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(count, masks))


def _by_place(source: Source, names: Sequence[str]) -> dict[str, list[str]]:
    """The images in folders of these names, by the folder above; only the most preferred name counts in each place."""
    found: dict[str, dict[int, list[str]]] = {}
    for name in source.images():
        parts = name.split("/")
        for level in range(len(parts) - 2, -1, -1):
            if parts[level].lower() in names:
                ranked = found.setdefault("/".join(parts[:level]), {})
                ranked.setdefault(names.index(parts[level].lower()), []).append(name)
                break
    return {place: ranked[min(ranked)] for place, ranked in found.items()}


def _site_names(places: Sequence[str], source: Source) -> dict[str, tuple[str, str]]:
    """A site's name and split from the folder that holds `images`, less what all sites share."""
    parts = {place: place.split("/") if place else [] for place in places}
    splits = {place: SPLIT_NAMES.get(p[-1].lower(), "") if p else "" for place, p in parts.items()}
    sites = {place: p[:-1] if splits[place] else p for place, p in parts.items()}
    shared = 0
    while all(len(p) > shared + 1 for p in sites.values()) and len({p[shared] for p in sites.values()}) == 1:
        shared += 1
    alone = PurePosixPath(source.label).name
    return {place: ("/".join(p[shared:]) or alone, splits[place]) for place, p in sites.items()}


def _matched(images: Sequence[str], masks: Sequence[str]) -> tuple[dict[str, str | None], list[str]]:
    """Each image's mask: the one with the same name, else the one that is the same but for words like `_mask`."""
    first = [m for m in masks if not _SECOND_OBSERVER.search(PurePosixPath(m).stem)]
    by_stem = {PurePosixPath(m).stem.lower(): m for m in first}
    by_core: dict[str, list[str]] = {}
    for mask in first:
        by_core.setdefault(_core(mask), []).append(mask)
    result: dict[str, str | None] = {}
    for image in images:
        near = by_core.get(_core(image), [])
        if PurePosixPath(image).stem.lower() not in by_stem and len(near) > 1:
            raise BadInput(f"{image} has several masks, {listed(near)}; keep one")
        result[image] = by_stem.get(PurePosixPath(image).stem.lower()) or (near[0] if near else None)
    used = set(result.values())
    return result, [m for m in first if m not in used]


def _core(name: str) -> str:
    """
    >>> _core("images/21_training.tif") == _core("masks/21_manual1.gif") == "21"
    True
    >>> _core("Image_01L.jpg") == _core("Image_01L_1stHO.png") == _core("mask_01L.png")
    True
    """
    stem = PurePosixPath(name).stem
    while (shorter := _STARTS.sub("", _ENDS.sub("", stem))) != stem and shorter:
        stem = shorter
    return stem.lower()
