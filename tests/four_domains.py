"""A file as a user would write it: four small domains, and a method that declares variants to choose among."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from unseen import Classification, FedAvg
from unseen.data.domain import UNIT, Domain, DomainDataset


def _striped(names: str) -> DomainDataset:
    """Three classes of stripes on noise; domains differ in brightness. Alone in its file, since worker processes import it too."""
    rng = np.random.default_rng(0)
    domains = []
    for number, name in enumerate(names):
        labels = np.arange(18) % 3
        images = rng.integers(0, 60, (18, 3, 8, 8)) + 15 * number
        for image, label in zip(images, labels, strict=True):
            image[:, 2 * label : 2 * label + 2] += 120
        domains.append(Domain(name, images.astype(np.uint8), labels.astype(np.int64)))
    return DomainDataset("striped", Classification(("top", "middle", "bottom")), tuple(domains), pixels=UNIT, network="small_cnn:width=4")


@functools.cache
def four() -> DomainDataset:
    return _striped("abcd")


@functools.cache
def three() -> DomainDataset:
    return _striped("abc")


@dataclass(frozen=True)
class Recipe(FedAvg):
    """FedAvg under two rates, one of which moves nothing."""

    variants = {"still": {"lr": 0.0}, "moving": {"lr": 0.05, "average": None}}
