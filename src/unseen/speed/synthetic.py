"""Made-up data of any size for measurements: three source domains and one that stays unseen."""

from __future__ import annotations

import numpy as np

from unseen.data.domain import Domain, DomainDataset
from unseen.task import Classification, Segmentation

__all__ = ["TARGET", "synthetic"]

TARGET = "unseen"
_CLASSES = 7


def synthetic(train: int, validation: int, size: int, segmentation: bool = False, sources: int = 3) -> DomainDataset:
    """Noise with labels by chance: each source has exactly `train` images to train on and `validation` beside them."""
    rng = np.random.default_rng(0)
    part = np.array(["train"] * train + ["val"] * validation)

    def domain(name: str, samples: int, parts: np.ndarray | None) -> Domain:
        images = rng.integers(0, 256, (samples, 3, size, size), dtype=np.uint8)
        if segmentation:
            return Domain(name, images, (rng.random((samples, 2, size, size)) < 0.5).astype(np.uint8), split=parts)
        return Domain(name, images, np.arange(samples) % _CLASSES, split=parts)

    domains = [domain(f"site{number}", train + validation, part) for number in range(1, sources + 1)]
    task = Segmentation(("disc", "cup")) if segmentation else Classification(tuple("abcdefg"[:_CLASSES]))
    return DomainDataset("synthetic", task, (*domains, domain(TARGET, validation, None)))
