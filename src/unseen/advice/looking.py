"""What there is to know of the data before a method is chosen. Of an unseen domain that is named, no image and no label takes part.

A folder or a table is prepared whole before that: its files are decoded, and classes and structures are named, over all domains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from unseen.data.checks.check import check
from unseen.data.checks.gap import StyleGaps, gaps_against_chance
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput, choose
from unseen.task import Classification

__all__ = ["Look", "look_at", "sources_of"]

UNEVEN = 0.2  # total variation between two sites' classes from which accuracy alone misleads
SMALL = 50  # images of a site below which its own validation says little


@dataclass(frozen=True)
class Look:
    """The source domains of a data set."""

    data: str
    task: str
    labels: tuple[str, ...]
    size: tuple[int, int]
    network: str
    images: Mapping[str, int]  # by site
    shares: Mapping[str, Sequence[float]]  # by site: of each class; empty for masks
    gaps: StyleGaps | None

    @property
    def uneven(self) -> float:
        """The largest total variation between the classes of two sites: 0 where they are alike, 1 where they share none.

        It is half the sum of |p - q|: the share of samples that would have to change their class.
        """
        pairs = combinations(self.shares.values(), 2)
        return max((float(np.abs(np.asarray(a) - np.asarray(b)).sum()) / 2 for a, b in pairs), default=0.0)


def sources_of(dataset: DomainDataset, target: str | None) -> DomainDataset:
    """The prepared data set without the domain that stays unseen: its images and labels cannot be reached from here."""
    if target is not None:
        choose(f"domain of {dataset.name}", target, dataset.names)
    kept = tuple(domain for domain in dataset.domains if domain.name != target)
    if len(kept) < 2:
        names = ", ".join(domain.name for domain in kept) or "none"
        raise BadInput(f"{dataset.name} has {len(kept)} source{'' if len(kept) == 1 else 's'} ({names}); expected two sites at least")
    return replace(dataset, domains=kept)


def look_at(sources: DomainDataset) -> Look:
    """Sizes, classes and styles. BadInput with what `unseen data check` finds wrong."""
    report = check(sources)
    if not report.ok:
        raise BadInput([f"{finding.domain}: {finding.message}" for finding in report.errors])
    task = sources.task
    shares = {}
    if isinstance(task, Classification):
        for domain in sources.domains:
            counts = np.bincount(np.asarray(domain.labels), minlength=task.outputs)
            shares[domain.name] = (counts / counts.sum()).tolist()
    images = {domain.name: len(domain) for domain in sources.domains}
    gaps = gaps_against_chance(sources.domains, sources.pixels)
    return Look(sources.name, task.name, task.labels, sources.size, sources.network, images, shares, gaps)
