"""What is known of a data set before its files are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from unseen.data.domain import DomainDataset
from unseen.data.reading.piece import ReadPlan
from unseen.data.reading.source import Source

__all__ = ["DatasetEntry", "ReadFiles"]

ReadFiles = Callable[[Source], ReadPlan]


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name: one that is read from a user's files, or one that is made on the spot."""

    name: str
    task: Literal["classification", "segmentation"]
    about: str  # one line
    layout: str = ""  # where its files are expected, in words
    size: int = 224  # pixels of a side unless the user says otherwise
    classes: tuple[str, ...] | None = None  # classes or structures, where they are the same for everyone
    domains: tuple[str, ...] | None = None
    marks: tuple[str, ...] = ()  # regular expressions for file names that no other data set has
    read: ReadFiles | None = None
    make: Callable[[], DomainDataset] | None = None

    @property
    def embedded(self) -> bool:
        """Whether it needs no files."""
        return self.make is not None
