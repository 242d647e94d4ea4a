"""Data sets of several domains, by name."""

from __future__ import annotations

from unseen.data.cache import Prepared, cache_root
from unseen.data.domain import IMAGENET, UNIT, Domain, DomainDataset, Fold, Holding, Pixels, Samples
from unseen.data.loading import load, prepare, prepared, recognise
from unseen.data.sets.entry import DatasetEntry
from unseen.data.sets.registry import DATASETS

__all__ = [
    "DATASETS",
    "IMAGENET",
    "UNIT",
    "DatasetEntry",
    "Domain",
    "DomainDataset",
    "Fold",
    "Holding",
    "Pixels",
    "Prepared",
    "Samples",
    "cache_root",
    "load",
    "prepare",
    "prepared",
    "recognise",
]
