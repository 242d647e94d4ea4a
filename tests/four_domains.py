"""A file as a user would write it: four small domains, and a method that declares variants to choose among."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from conftest import tiny_classification
from unseen import FedAvg
from unseen.data.domain import DomainDataset


@functools.cache
def four() -> DomainDataset:
    return tiny_classification((18, 18, 18, 18))


@functools.cache
def three() -> DomainDataset:
    return tiny_classification((18, 18, 18))


@dataclass(frozen=True)
class Recipe(FedAvg):
    """FedAvg under two rates, one of which moves nothing."""

    variants = {"still": {"lr": 0.0}, "moving": {"lr": 0.05, "average": None}}
