"""Data sets of several domains, by name."""

from __future__ import annotations

from unseen.data.domain import IMAGENET, UNIT, Domain, DomainDataset, Fold, Holding, Pixels, Samples

__all__ = ["IMAGENET", "UNIT", "Domain", "DomainDataset", "Fold", "Holding", "Pixels", "Samples"]
