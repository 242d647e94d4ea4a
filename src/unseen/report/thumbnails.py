"""A few small images of each domain for the page, where the data are at hand.

Data of a federation's sites are never shown. Neither is a path that a run's file names: whoever sent the folder wrote it. So images come
from a data set of that name in the cache, from embedded data, or from `data`, which the reader of the page gives.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from unseen.data import DATASETS, Domain, DomainDataset, load
from unseen.errors import BadInput
from unseen.report.collect import Run

__all__ = ["Strip", "strips"]

_SIDE, _MOST = 56, 8  # pixels of an image, images of a domain


@dataclass(frozen=True)
class Strip:
    """Images of a domain side by side, as an address that holds them, and what they show in words."""

    domain: str
    address: str
    words: str
    width: int
    height: int
    unseen: bool


def strips(runs: Sequence[Run], data: str | None = None) -> list[Strip]:
    """The domains of these runs, those without images left out. `data` says where they lie; what cannot be opened there is an error."""
    if not runs or any(run.about.get("between_sites") for run in runs):
        return []
    experiment = runs[0].about["experiment"]
    spec, size = str(data or experiment.get("data")), experiment.get("size")
    if (data is None and spec not in DATASETS) or not isinstance(size, int | None):
        return []
    unseen = {str(target) for run in runs for target in run.about["targets"]}
    names = unseen | {str(client["domain"]) for run in runs for client in run.about.get("clients", {}).values()}
    try:
        found = _of(spec, size)
    except BadInput:
        if data is None:
            return []  # not prepared here
        raise
    return [Strip(domain, address, words, w, h, domain in unseen) for domain, address, words, w, h in found if domain in names]


@lru_cache(maxsize=4)  # `unseen watch` makes the page again and again
def _of(spec: str, size: int | None) -> list[tuple[str, str, str, int, int]]:
    dataset = load(spec, size=size)
    return [(domain.name, *_drawn(domain, dataset)) for domain in dataset.domains if len(domain)]


def _drawn(domain: Domain, dataset: DomainDataset) -> tuple[str, str, int, int]:
    """The strip as a data address, its words, width and height."""
    from PIL import Image

    rows = _rows(domain)
    sheet = Image.new("RGB", (len(rows) * (_SIDE + 2) - 2, _SIDE), "white")
    for number, row in enumerate(rows):
        pixels = np.asarray(domain.images[row])
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels[:3].transpose(1, 2, 0)))
        sheet.paste(picture.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), (number * (_SIDE + 2), 0))
    out = io.BytesIO()
    sheet.save(out, "JPEG", quality=85)
    address = "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
    labels = dataset.task.labels if domain.labels.ndim == 1 else ()
    shown = f": {', '.join(str(labels[int(domain.labels[row])]) for row in rows)}" if labels else ""
    return address, f"{len(rows)} images of {domain.name}{shown}", *sheet.size


def _rows(domain: Domain) -> list[int]:
    """A few samples: the first of each class in turn, or evenly spread where there are masks."""
    count = min(_MOST, len(domain))
    if domain.labels.ndim > 1:
        return [round(place) for place in np.linspace(0, len(domain) - 1, count)]
    labels = np.asarray(domain.labels)
    place = np.empty(len(labels), dtype=np.int64)  # how many of the same class come before it
    for label in np.unique(labels):
        here = np.flatnonzero(labels == label)
        place[here] = np.arange(len(here))
    return [int(row) for row in np.lexsort((labels, place))[:count]]
