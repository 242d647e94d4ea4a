"""Training and validation samples of one domain."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.data.domain import Domain
from unseen.errors import BadInput
from unseen.randomness import derived

__all__ = ["Index", "apportion", "class_codes", "group_codes", "histogram", "split"]

Index = NDArray[np.int64]
_PARTS = ("train", "val", "test")


def split(domain: Domain, share: float, seed: int) -> tuple[Index, Index]:
    """The positions that train and those that validate, each in rising order.

    Official lists come first and `share` is then not asked: "train" trains and "val" validates, while "test" is in neither
    part; where there is no "val", "test" validates. A list that puts a whole domain into one part (hospitals that another
    protocol keeps unseen) or has no "train" does not divide the domain, so the split is drawn as if there were no list.

    A drawn split validates `share` of the samples, class by class, from the seed and the domain's name alone. A patient,
    slide or volume stays whole on one side, so the share is met as nearly as whole groups allow. Every class keeps a
    training sample. A share above 0 gives at least one validation sample, unless each would cost a class its last one.
    """
    if not 0 <= share < 1:
        raise BadInput(f"validation share is {share}; expected a number from 0 to below 1, such as 0.1")
    official = None if domain.split is None else _official(domain.name, np.asarray(domain.split))
    if official is not None:
        return official
    rng = np.random.default_rng(derived(seed, "split", domain.name))
    classes = class_codes(domain)
    if share == 0 or not len(domain):
        validates = np.zeros(len(domain), dtype=bool)
    elif domain.groups is None:
        validates = _stratified(classes, share, rng)
    else:
        validates = _whole_groups(classes, group_codes(domain), share, rng)
    return np.flatnonzero(~validates), np.flatnonzero(validates)


def class_codes(domain: Domain) -> Index:
    """The class of every sample, counted from 0 over the classes that the domain has. Masks have none: all 0."""
    if domain.labels.ndim > 1:
        return np.zeros(len(domain), dtype=np.int64)
    return _codes(np.asarray(domain.labels))


def group_codes(domain: Domain) -> Index:
    """What must stay together: the number of every sample's group, or of the sample itself where no group is known."""
    return np.arange(len(domain)) if domain.groups is None else _codes(np.asarray(domain.groups))


def histogram(rows: Index, columns: Index) -> NDArray[np.int64]:
    """How often each pair of codes occurs: [rows, columns]."""
    shape = (rows.max(initial=-1) + 1, columns.max(initial=-1) + 1)
    return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)


def apportion(quota: NDArray[np.float64], rng: np.random.Generator, owed: NDArray[np.float64] | float = 0.0) -> Index:
    """Whole numbers that add up to the rounded sum of the quotas, each its quota rounded down or up.

    The largest remainders are rounded up, ties by chance; what is `owed` from earlier roundings is added to the remainder.
    A quota that is a whole number stays what it is.

    >>> apportion(np.array([2.5, 0.0, 1.25, 1.25]), np.random.default_rng(0)).tolist()
    [3, 0, 1, 1]
    """
    whole = np.floor(quota)
    rest = quota - whole
    wish = np.where(rest > 0, rest + owed, -np.inf)
    first = np.lexsort((rng.random(len(quota)), -wish))[: round(rest.sum())]
    whole[first] += 1
    return whole.astype(np.int64)


def _official(name: str, part: NDArray[Any]) -> tuple[Index, Index] | None:
    """The listed parts, or None where the list does not divide the domain."""
    strange = sorted(set(part.tolist()) - set(_PARTS))
    if strange:
        raise BadInput(f"domain {name!r}: split holds {', '.join(map(repr, strange))}; expected {', '.join(_PARTS)}")
    train = np.flatnonzero(part == "train")
    validation = np.flatnonzero(part == ("val" if (part == "val").any() else "test"))
    return (train, validation) if len(train) and len(validation) else None


def _stratified(classes: Index, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    sizes = np.bincount(classes)
    counts = apportion(np.minimum(share * sizes, sizes - 1), rng)
    if not counts.any() and sizes.max() > 1:
        counts[sizes.argmax()] = 1
    validates = np.zeros(len(classes), dtype=bool)
    for number, count in enumerate(counts):
        validates[rng.permutation(np.flatnonzero(classes == number))[:count]] = True
    return validates


def _whole_groups(classes: Index, groups: Index, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Groups in random order; one moves to validation if that brings its class counts nearer to the share (least squares)."""
    by_class = histogram(groups, classes)
    content = np.column_stack([by_class, by_class.sum(1)])  # the last column makes the size of the whole part count too
    left = content.sum(0)
    wanted = share * left
    taken = np.zeros_like(wanted)
    chosen: list[int] = []
    nearest_miss, least = -1, np.inf
    for group in rng.permutation(len(content)):
        inside = content[group]
        if np.any((inside > 0) & (left <= inside)):
            continue  # it would take a class away from training
        change = float(inside @ (2 * (taken - wanted) + inside))
        if change < 0:
            chosen.append(group)
            taken, left = taken + inside, left - inside
        elif change < least:
            nearest_miss, least = group, change
    if not chosen and nearest_miss >= 0:
        chosen.append(nearest_miss)
    return np.isin(groups, chosen)


def _codes(values: NDArray[Any]) -> Index:
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
