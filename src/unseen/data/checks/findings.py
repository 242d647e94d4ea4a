"""What can be wrong with a data set, one function each: they read cards and arrays, and say what was found and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unseen.data.checks.domain_card import DomainCard, DomainScan, Masks, are_classes, are_masks
from unseen.data.checks.duplicates import copies_of_earlier, near_pairs
from unseen.data.domain import Domain, DomainDataset, Holding
from unseen.task import Segmentation

__all__ = ["Finding", "findings_in_images", "findings_in_labels", "findings_in_splits"]

FEW_SAMPLES = 20  # below this a validation part of 10 % is one image or two
_INVERTED_BY = 0.4  # difference in foreground from which masks may be inverted rather than just larger
_INSIDE = 0.95  # share of a structure from which it counts as lying inside another one
_EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """Something wrong: an error makes results wrong, a warning deserves a look. `domain` joins two domains by '+'."""

    severity: Literal["error", "warning"]
    domain: str
    kind: str  # a word for programs, such as 'near duplicates'
    message: str


def findings_in_labels(dataset: DomainDataset, cards: Sequence[DomainCard]) -> Iterator[Finding]:
    """What can be found without reading images or masks."""
    if not dataset.domains:
        yield Finding("error", dataset.name, "few samples", "has no domains; expected at least one")
    for domain, card in zip(dataset.domains, cards, strict=True):
        yield from _few_samples(card)
        yield from _label_form(domain, dataset)
        yield from _label_range(domain, dataset)
        yield from _bad_spacing(domain)
        yield from _unreadable(card)
    yield from _lacking_classes({card.domain: card.classes for card in cards if card.samples})
    yield from _other_mask_values(cards)


def findings_in_splits(dataset: DomainDataset, holdings: Sequence[Holding] | None) -> Iterator[Finding]:
    """Patients, or samples, on both sides of an official split or of the clients' training and validation parts."""
    for domain in dataset.domains:
        if domain.split is not None and domain.groups is not None:
            parts = {str(name): np.flatnonzero(domain.split == name) for name in np.unique(domain.split)}
            for (a, rows), (b, others) in combinations(parts.items(), 2):
                yield from _on_both_sides(domain, rows, others, f"the {a} and the {b} part of its official split")
    for domain, train, validation in _held(holdings or ()):
        yield from _on_both_sides(domain, train, validation, "the clients' training and validation parts")


def findings_in_images(dataset: DomainDataset, seen: Mapping[str, DomainScan]) -> Iterator[Finding]:
    """What can only be found by reading every image and mask."""
    for domain in dataset.domains:
        yield from _constant_images(domain.name, seen[domain.name])
        yield from _copies_within(domain, seen[domain.name])
    for a, b in combinations(dataset.domains, 2):
        yield from _copies_across(a, b, seen[a.name], seen[b.name])
    masks = {name: found.masks for name, found in seen.items() if found.masks is not None}
    for name, found in masks.items():
        yield from _mask_contents(name, found)
    if isinstance(dataset.task, Segmentation):
        yield from _lacking_classes({name: _shown(found, len(seen[name].digests)) for name, found in masks.items() if seen[name].digests})
        yield from _inverted_masks(masks, dataset.task.structures)
        yield from _swapped_structures(masks, dataset.task.structures)


def _few_samples(card: DomainCard) -> Iterator[Finding]:
    if card.samples == 0:
        yield Finding("error", card.domain, "few samples", "has no samples; expected some: check its folder, or leave the domain out")
    elif card.samples < FEW_SAMPLES:
        text = f"has {card.samples} samples; expected at least {FEW_SAMPLES}: its validation part will be too small to select by"
        yield Finding("warning", card.domain, "few samples", text)


def _label_form(domain: Domain, dataset: DomainDataset) -> Iterator[Finding]:
    got = f"labels are {domain.labels.dtype} {list(domain.labels.shape)}"
    if isinstance(dataset.task, Segmentation):
        if not are_masks(domain, dataset.task):
            expected = [len(domain), len(dataset.task.structures), *domain.images.shape[2:]]
            yield Finding(
                "error", domain.name, "label form", f"{got}; expected masks, uint8 {expected}: one per structure, as large as the image"
            )
    elif not are_classes(domain):
        yield Finding("error", domain.name, "label form", f"{got}; expected whole numbers, one for each image")


def _label_range(domain: Domain, dataset: DomainDataset) -> Iterator[Finding]:
    if isinstance(dataset.task, Segmentation) or not are_classes(domain):
        return
    labels, known = np.asarray(domain.labels), dataset.task.outputs
    outside = np.flatnonzero((labels < 0) | (labels >= known))
    if len(outside):
        values = ", ".join(map(str, np.unique(labels[outside])[:_EXAMPLES]))
        text = (
            f"{len(outside)} labels are out of range ({values}; {_rows(outside)}); expected 0 to {known - 1}: correct them or the classes"
        )
        yield Finding("error", domain.name, "label range", text)


def _bad_spacing(domain: Domain) -> Iterator[Finding]:
    if domain.spacing is None:
        return
    spacing = np.asarray(domain.spacing)
    bad = np.flatnonzero(~(np.isfinite(spacing) & (spacing > 0)).all(1))
    if len(bad):
        text = f"{len(bad)} samples have an impossible pixel spacing ({_rows(bad)}); expected millimetres above 0: correct their headers"
        yield Finding("error", domain.name, "spacing", text)


def _unreadable(card: DomainCard) -> Iterator[Finding]:
    files = list(card.prepared.get("unreadable", ()))
    if files:
        names = ", ".join(map(str, files[:_EXAMPLES])) + (", ..." if len(files) > _EXAMPLES else "")
        text = f"{len(files)} files could not be read and are left out ({names}); replace them and prepare again, or delete them"
        yield Finding("warning", card.domain, "unreadable", text)


def _lacking_classes(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Classes (or structures) that some domains have and others lack."""
    somewhere = {name for classes in counts.values() for name, count in classes.items() if count}
    for domain, classes in counts.items():
        lacking = [name for name, count in classes.items() if not count]
        if lacking:
            elsewhere = "which other domains have" if somewhere.issuperset(lacking) else "of which some occur nowhere"
            text = f"lacks {', '.join(lacking)}, {elsewhere}; expected every class: check its folders, and read its scores with care"
            yield Finding("warning", domain, "lacking classes", text)


def _other_mask_values(cards: Sequence[DomainCard]) -> Iterator[Finding]:
    """Files of one site whose masks hold other values than those of the other sites: the label maps disagree."""
    values = {card.domain: frozenset(map(str, card.prepared["mask_values"])) for card in cards if card.prepared.get("mask_values")}
    if len(set(values.values())) > 1:
        usual = max(values.values(), key=lambda found: (list(values.values()).count(found), sorted(found)))
        for domain, found in values.items():
            if found != usual:
                text = f"its mask files hold the values {_values(found)}; other sites {_values(usual)}: check that they mean the same"
                yield Finding("warning", domain, "label maps", text)


def _held(holdings: Sequence[Holding]) -> Iterator[tuple[Domain, NDArray[np.int64], NDArray[np.int64]]]:
    """Every domain with the rows that any client trains on and validates on."""
    domains: dict[str, Domain] = {}
    rows: dict[tuple[str, str], list[NDArray[np.int64]]] = {}
    for holding in holdings:
        for side, samples in (("train", holding.train), ("validation", holding.validation)):
            for domain, index in samples.parts:
                domains[domain.name] = domain
                rows.setdefault((domain.name, side), []).append(index)
    nothing = np.empty(0, dtype=np.int64)
    for name, domain in domains.items():
        train, validation = (np.concatenate([nothing, *rows.get((name, side), [])]) for side in ("train", "validation"))
        yield domain, train, validation


def _on_both_sides(domain: Domain, rows: NDArray[np.int64], others: NDArray[np.int64], sides: str) -> Iterator[Finding]:
    known = domain.groups is not None
    ids = np.asarray(domain.groups) if known else np.arange(len(domain))
    both = np.intersect1d(ids[rows], ids[others])
    if len(both):
        what = "patients (or slides, volumes)" if known else "samples"
        names = ", ".join(map(str, both[:_EXAMPLES]))
        text = f"{len(both)} {what} are on both sides of {sides} (such as {names}); expected each on one side: split by patient"
        yield Finding("error", domain.name, "both sides", text)


def _constant_images(name: str, seen: DomainScan) -> Iterator[Finding]:
    rows = seen.intensity.constant
    if rows:
        text = f"{len(rows)} images are one even colour ({_rows(rows)}); expected pictures: check how they were made, or remove them"
        yield Finding("warning", name, "constant images", text)


def _copies_within(domain: Domain, seen: DomainScan) -> Iterator[Finding]:
    even = set(seen.intensity.constant)  # even images equal each other without being copies, and are reported already
    copies = [(a, b) for a, b in copies_of_earlier(seen.digests) if a not in even]
    if not copies:
        return
    contradictions = sum(domain.labels[a] != domain.labels[b] for a, b in copies) if domain.labels.ndim == 1 else 0
    named = f", {contradictions} of them under another class" if contradictions else ""
    text = f"{len(copies)} images are exact copies of others of this site{named} ({_pairs(copies)}); expected each once: remove the copies"
    yield Finding("warning", domain.name, "exact duplicates", text)


def _copies_across(a: Domain, b: Domain, seen_a: DomainScan, seen_b: DomainScan) -> Iterator[Finding]:
    """Copies of one site's images at another: the unseen domain would be seen in training."""
    even = set(seen_a.intensity.constant)
    where = {digest: row for row, digest in reversed(list(enumerate(seen_b.digests)))}
    exact = [(row, where[digest]) for row, digest in enumerate(seen_a.digests) if digest in where and row not in even]
    both = f"{a.name}+{b.name}"
    advice = "a model trained on one has seen part of the other; remove them from one"
    if exact:
        text = f"{len(exact)} images of {a.name} are also in {b.name}, byte for byte ({_pairs(exact)}); expected none: {advice}"
        yield Finding("error", both, "exact duplicates", text)
    copied = {row for row, _ in exact}
    near = [(row, other) for row, other in near_pairs(seen_a.looks, seen_b.looks) if row not in copied]
    if near:
        text = (
            f"{len(near)} images of {a.name} look the same as images of {b.name} ({_pairs(near)}); expected none: look at them, as {advice}"
        )
        yield Finding("warning", both, "near duplicates", text)


def _mask_contents(name: str, masks: Masks) -> Iterator[Finding]:
    odd = sorted(set(masks.values) - {"0", "1"}, key=int)
    if odd:
        text = f"masks hold the values {', '.join(odd[:8])}; expected 0 and 1 alone: prepare it again with the right mask values"
        yield Finding("error", name, "mask values", text)
    for structure, rows in masks.empty.items():
        if rows:
            text = f"{len(rows)} masks of {structure} are empty ({_rows(rows)}); right where it is absent, else correct or remove them"
            yield Finding("warning", name, "empty masks", text)
    for structure, rows in masks.full.items():
        if rows:
            text = (
                f"{len(rows)} masks of {structure} cover the whole image ({_rows(rows)}); expected background too: correct or remove them"
            )
            yield Finding("warning", name, "full masks", text)


def _inverted_masks(masks: Mapping[str, Masks], structures: Sequence[str]) -> Iterator[Finding]:
    """A site whose foreground is what the other sites call background, in all and at the border (a large organ stays off it)."""
    for structure in structures:
        shares = {name: found.foreground[structure] for name, found in masks.items()}
        borders = {name: found.at_border[structure] for name, found in masks.items()}
        usual, usual_border = _lower_median(shares.values()), _lower_median(borders.values())
        for name, share in shares.items():
            if _flipped(share, usual) and _flipped(borders[name], usual_border):
                text = (
                    f"masks of {structure} cover {share:.0%} of the image, at other sites {usual:.0%}: they look inverted; "
                    "expected one meaning at all sites: invert them when preparing"
                )
                yield Finding("error", name, "label maps", text)


def _flipped(share: float, usual: float) -> bool:
    """Far from the usual share, and near it once inverted."""
    return abs(share - usual) > _INVERTED_BY and abs(1 - share - usual) < abs(share - usual) / 4


def _lower_median(values: Iterable[float]) -> float:
    """Of two sites the one with less foreground: that is the usual thing."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0


def _swapped_structures(masks: Mapping[str, Masks], structures: Sequence[str]) -> Iterator[Finding]:
    """A site where, say, the disc lies inside the cup, while at the others the cup lies inside the disc."""
    for i, j in combinations(range(len(structures)), 2):
        within = {name: (found.inside[i][j] >= _INSIDE, found.inside[j][i] >= _INSIDE) for name, found in masks.items()}
        one_way = [name for name, nested in within.items() if nested == (True, False)]
        other_way = [name for name, nested in within.items() if nested == (False, True)]
        if one_way and other_way:
            odd = min(one_way, other_way, key=len)
            a, b = (structures[i], structures[j]) if odd is one_way else (structures[j], structures[i])
            for name in odd:
                text = f"{a} lies inside {b}, at other sites {b} inside {a}: they look swapped; expected one order: prepare it again"
                yield Finding("error", name, "label maps", text)


def _shown(masks: Masks, samples: int) -> dict[str, int]:
    """How many samples show each structure."""
    return {structure: samples - len(rows) for structure, rows in masks.empty.items()}


def _rows(rows: Sequence[int] | NDArray[Any]) -> str:
    """`row 3, 5, 8, ...`"""
    return "row " + ", ".join(map(str, rows[:_EXAMPLES])) + (", ..." if len(rows) > _EXAMPLES else "")


def _pairs(pairs: Sequence[tuple[int, int]]) -> str:
    """`rows 3 = 17, 5 = 18, ...`"""
    return "rows " + ", ".join(f"{a} = {b}" for a, b in pairs[:_EXAMPLES]) + (", ..." if len(pairs) > _EXAMPLES else "")


def _values(values: frozenset[str]) -> str:
    return ", ".join(sorted(values, key=lambda value: (len(value), value)))
