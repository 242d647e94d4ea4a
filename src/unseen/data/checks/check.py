"""Look at a data set before round 1: a card per domain, and what is wrong with it, errors and warnings told apart."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from unseen.data.checks.check_view import show_card, show_findings
from unseen.data.checks.domain_card import DomainCard, look_through, plain_card
from unseen.data.checks.findings import Finding, findings_in_images, findings_in_labels, findings_in_splits
from unseen.data.domain import Domain, DomainDataset, Holding
from unseen.files import write_atomically

__all__ = ["DomainCard", "Finding", "Report", "check", "check_cached", "data_fingerprint"]

REPORT_FILE = "check.json"
_VERSION = 1  # of what a check looks for: one more whenever that changes, so that stored reports are made anew
Preparation = Mapping[str, Mapping[str, Any]]  # by domain: sizes or width and height, modes, unreadable, mask_values


@dataclass(frozen=True)
class Report:
    """What a check found, errors first."""

    dataset: str
    cards: tuple[DomainCard, ...]
    findings: tuple[Finding, ...]
    cheap: bool = False

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings are allowed."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == "warning")

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return {"ok": self.ok, **values}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Report:
        cards = tuple(DomainCard.from_json(card) for card in values["cards"])
        findings = tuple(Finding(**finding) for finding in values["findings"])
        return Report(values["dataset"], cards, findings, values["cheap"])

    def render(self, console: Console) -> None:
        for card in self.cards:
            show_card(console, card)
        show_findings(console, self.dataset, self.errors, self.warnings)


def check(
    dataset: DomainDataset,
    holdings: Sequence[Holding] | None = None,
    *,
    cheap: bool = False,
    preparation: Preparation | None = None,
) -> Report:
    """Check a prepared data set, and how clients hold it where `holdings` are given.

    `cheap` reads no image and no mask. `preparation` is what preparing found in the files, any of: sizes or modes (to counts), width
    and height ([smallest, largest]), unreadable (names), mask_values (to counts). Domains of it that this data set has not (a user
    may leave some out) are passed over.
    """
    cards = [plain_card(d, dataset.task, (preparation or {}).get(d.name, {})) for d in dataset.domains]
    findings = [*findings_in_labels(dataset, cards), *findings_in_splits(dataset, holdings)]
    if not cheap:
        seen = {d.name: look_through(d, dataset.task) for d in dataset.domains}
        cards = [dataclasses.replace(c, intensity=seen[c.domain].intensity, masks=seen[c.domain].masks) for c in cards]
        findings += findings_in_images(dataset, seen)
    return Report(dataset.name, tuple(cards), tuple(sorted(findings, key=lambda f: f.severity)), cheap)


def check_cached(dataset: DomainDataset, folder: Path, *, preparation: Preparation | None = None) -> Report:
    """The full check, stored in `folder` beside the prepared data: asked again about the same data, it answers at once."""
    key, path = data_fingerprint(dataset, preparation), folder / REPORT_FILE
    stored = _stored_report(path, key)
    if stored is not None:
        return stored
    report = check(dataset, preparation=preparation)
    with contextlib.suppress(OSError):  # a folder that this user may not write to can still be checked
        write_atomically(path, json.dumps({"key": key, "report": report.to_json()}))
    return report


def data_fingerprint(dataset: DomainDataset, preparation: Preparation | None = None) -> str:
    """A key that changes with the data: memory-mapped files by size and time of change, other arrays by their bytes."""
    parts: list[Any] = [_VERSION, dataset.name, repr(dataset.task), json.dumps(preparation, sort_keys=True, default=str)]
    for domain in dataset.domains:
        parts += [domain.name, [_array_key(array) for array in _arrays(domain)]]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _stored_report(path: Path, key: str) -> Report | None:
    """The report in this file if it is one, whole, and about these data."""
    try:
        stored = json.loads(path.read_text())
        return Report.from_json(stored["report"]) if stored["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _arrays(domain: Domain) -> list[NDArray[Any] | None]:
    return [domain.images, domain.labels, domain.groups, domain.split, domain.spacing]


def _array_key(array: NDArray[Any] | None) -> tuple[Any, ...] | None:
    if array is None:
        return None
    form = (str(array.dtype), array.shape)
    if isinstance(array, np.memmap) and array.filename is not None and array.flags.c_contiguous:
        stat = Path(array.filename).stat()
        if array.offset + array.nbytes == stat.st_size:  # else it is a part of the file, and the file does not say which
            return (*form, stat.st_size, stat.st_mtime_ns)
    return (*form, hashlib.sha256(array.tobytes()).hexdigest())
