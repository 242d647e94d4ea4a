"""What one domain consists of, on a card: counts, intensities, spacing, masks. Measured in one pass over its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.data.checks.duplicates import Looks, byte_digests, look_at
from unseen.data.domain import Domain
from unseen.task import Segmentation, Task

__all__ = ["DomainCard", "DomainScan", "Intensity", "Masks", "are_classes", "are_masks", "look_through", "plain_card"]

BINS = 16
_CHUNK = 64  # images at a time


@dataclass(frozen=True)
class Intensity:
    """The values of a domain's pixels, on the scale from 0 to 1."""

    mean: tuple[float, ...]  # per channel
    std: tuple[float, ...]  # per channel
    histogram: tuple[float, ...]  # share of all values in each of 16 bins
    constant: tuple[int, ...]  # rows of images whose pixels are all alike


@dataclass(frozen=True)
class Masks:
    """The masks of a domain. Rows are positions in its arrays."""

    values: dict[str, int]  # how many pixels have each value
    foreground: dict[str, float]  # share of all pixels, by structure
    at_border: dict[str, float]  # the same of the pixels at the image's border
    empty: dict[str, tuple[int, ...]]  # rows, by structure
    full: dict[str, tuple[int, ...]]  # rows, by structure
    inside: tuple[tuple[float, ...], ...]  # [i][j]: share of structure i that lies inside structure j


@dataclass(frozen=True)
class DomainCard:
    """A domain at a glance. What needs a look at every image is None in a cheap check."""

    domain: str
    samples: int
    channels: int
    size: tuple[int, int]  # height, width
    classes: dict[str, int]  # samples of each class; empty for segmentation
    groups: int | None = None  # patients, slides or volumes
    spacing: dict[str, tuple[float, float, float]] | None = None  # rows, columns: smallest, median, largest, in millimetres
    intensity: Intensity | None = None
    masks: Masks | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)  # what preparing found in the files

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> DomainCard:
        """The inverse of `dataclasses.asdict` after a way through JSON, which knows no tuples."""
        ready = dict(values, size=tuple(values["size"]))
        if values["spacing"] is not None:
            ready["spacing"] = {axis: tuple(summary) for axis, summary in values["spacing"].items()}
        if values["intensity"] is not None:
            ready["intensity"] = Intensity(**{name: tuple(numbers) for name, numbers in values["intensity"].items()})
        if values["masks"] is not None:
            masks = dict(values["masks"], inside=tuple(map(tuple, values["masks"]["inside"])))
            for name in ("empty", "full"):
                masks[name] = {structure: tuple(rows) for structure, rows in masks[name].items()}
            ready["masks"] = Masks(**masks)
        return DomainCard(**ready)


@dataclass(frozen=True, eq=False)
class DomainScan:
    """What a look at every image of a domain gives."""

    intensity: Intensity
    masks: Masks | None
    digests: list[bytes]
    looks: Looks


def plain_card(domain: Domain, task: Task, prepared: Mapping[str, Any]) -> DomainCard:
    """What can be said without reading an image or a mask."""
    height, width = domain.images.shape[2:]
    return DomainCard(
        domain=domain.name,
        samples=len(domain),
        channels=int(domain.images.shape[1]),
        size=(int(height), int(width)),
        classes=_class_counts(domain, task),
        groups=None if domain.groups is None else len(np.unique(domain.groups)),
        spacing=_spacing_summary(domain.spacing),
        prepared=dict(prepared),
    )


def look_through(domain: Domain, task: Task) -> DomainScan:
    """Read every image (and mask) of a domain once."""
    counts = np.zeros((domain.images.shape[1], 256), dtype=np.int64)
    constant: list[int] = []
    digests: list[bytes] = []
    looks = [look_at(domain.images[:0])]
    for start, images in _chunks(domain.images):
        counts += [np.bincount(images[:, channel].ravel(), minlength=256) for channel in range(len(counts))]
        flat = images.reshape(len(images), -1)
        constant += (start + np.flatnonzero(flat.min(1) == flat.max(1))).tolist()
        digests += byte_digests(images)
        looks.append(look_at(images))
    masks = _look_through_masks(domain, task) if isinstance(task, Segmentation) else None
    return DomainScan(_intensity(counts, constant), masks, digests, Looks.joined(looks))


def are_classes(domain: Domain) -> bool:
    """Whether the labels have the form of classes: one whole number per image."""
    return domain.labels.ndim == 1 and domain.labels.dtype.kind in "iu"


def are_masks(domain: Domain, task: Segmentation) -> bool:
    """Whether the labels have the form of masks: bytes, one mask per structure, as large as the image."""
    return domain.labels.dtype == np.uint8 and domain.labels.shape == (len(domain), len(task.structures), *domain.images.shape[2:])


def _chunks(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    for start in range(0, len(array), _CHUNK):
        yield start, np.asarray(array[start : start + _CHUNK])


def _class_counts(domain: Domain, task: Task) -> dict[str, int]:
    classes = getattr(task, "classes", ())
    labels = np.asarray(domain.labels) if are_classes(domain) else np.empty(0, dtype=np.int64)
    return {name: int((labels == number).sum()) for number, name in enumerate(classes)}


def _spacing_summary(spacing: NDArray[np.float32] | None) -> dict[str, tuple[float, float, float]] | None:
    if spacing is None:
        return None
    millimetres = np.asarray(spacing, dtype=np.float64)
    millimetres = millimetres[np.isfinite(millimetres).all(1)]
    if not len(millimetres):
        return None
    summary = {}
    for axis, values in zip(("rows", "columns"), millimetres.T, strict=True):
        summary[axis] = (float(values.min()), float(np.median(values)), float(values.max()))
    return summary


def _intensity(counts: NDArray[np.int64], constant: list[int]) -> Intensity:
    """Moments from the histogram of bytes: exact, and no second pass."""
    values = np.arange(256) / 255
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    mean = shares @ values
    variance = (shares * (values - mean[:, None]) ** 2).sum(1)
    histogram = shares.mean(0).reshape(BINS, -1).sum(1)
    return Intensity(tuple(mean.tolist()), tuple(np.sqrt(variance).tolist()), tuple(histogram.tolist()), tuple(constant))


def _look_through_masks(domain: Domain, task: Segmentation) -> Masks | None:
    if not are_masks(domain, task):
        return None
    number = len(task.structures)
    values = np.zeros(256, dtype=np.int64)
    overlap = np.zeros((number, number))
    covered, at_border = [], np.zeros(number)
    border = _border(domain.labels.shape[2:])
    for _, labels in _chunks(domain.labels):
        values += np.bincount(labels.ravel(), minlength=256)
        shown = (labels != 0).reshape(len(labels), number, -1)
        covered.append(shown.mean(2))
        at_border += shown[:, :, border].mean(2).sum(0)
        overlap += [[np.count_nonzero(shown[:, i] & shown[:, j]) for j in range(number)] for i in range(number)]
    shares = np.concatenate([np.empty((0, number)), *covered])
    columns = dict(zip(task.structures, shares.T, strict=True))
    return Masks(
        values={str(value): int(values[value]) for value in np.flatnonzero(values)},
        foreground={name: float(share.mean()) if len(share) else 0.0 for name, share in columns.items()},
        at_border=dict(zip(task.structures, (at_border / max(len(domain), 1)).tolist(), strict=True)),
        empty={name: tuple(np.flatnonzero(share == 0).tolist()) for name, share in columns.items()},
        full={name: tuple(np.flatnonzero(share == 1).tolist()) for name, share in columns.items()},
        inside=tuple(map(tuple, (overlap / np.maximum(overlap.diagonal()[:, None], 1)).tolist())),
    )


def _border(size: tuple[int, ...]) -> NDArray[np.bool_]:
    """The outermost pixels of an image, flat."""
    border = np.ones(size, dtype=bool)
    border[1:-1, 1:-1] = False
    return border.ravel()
