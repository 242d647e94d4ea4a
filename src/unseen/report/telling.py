"""What numbers can tell: paired tests, their correction, and whether the best of several methods is clearly above the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

__all__ = ["ENOUGH_PAIRS", "LEVEL", "Foremost", "best_of", "holm", "paired"]

LEVEL = 0.05
ENOUGH_PAIRS = 3  # with two, a t-test can be certain by chance alone

Key = TypeVar("Key")


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """Two-sided p-values of the paired t-test and of Wilcoxon's signed-rank test (zero differences dropped, as scipy does).

    All differences zero: both are 1. All the same, and not zero: the t-test has no doubt left, and its p is 0. Fewer than two pairs: None.
    """
    from scipy import stats

    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if len(difference) < 2:
        return None, None
    if not difference.any():
        return 1.0, 1.0
    spread = float(np.ptp(difference)) > 1e-12 * float(np.abs(difference).max())
    t = float(stats.ttest_1samp(difference, 0.0).pvalue) if spread else 0.0
    return t, float(stats.wilcoxon(difference).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction of several p-values; None stays None.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    order = sorted((p, i) for i, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class Foremost:
    """The method with the highest mean, and those that these numbers put it above: paired t-tests, Holm's correction, p < 0.05."""

    name: str
    behind: tuple[str, ...]  # the others, the next best first
    told: frozenset[str]  # those of them that are clearly behind over what both have

    @property
    def clear(self) -> bool:
        """Clearly above every other method."""
        return bool(self.behind) and self.told == set(self.behind)


def best_of(scores: Mapping[str, Mapping[Key, float]]) -> Foremost | None:
    """The best of several methods by the mean of its scores, each compared with it over the keys that both have.

    Methods may have different keys. The highest mean alone tells nothing then: over the common keys, too, it must be above the other.

    >>> best_of({"a": {0: 80.0, 1: 82.0, 2: 84.0}, "b": {0: 70.0, 1: 71.0, 2: 75.0}}).clear
    True
    >>> best_of({"a": {0: 80.0, 1: 82.0}, "b": {0: 70.0, 1: 71.0}}).clear  # two pairs are not enough
    False
    >>> best_of({"a": {0: 60.0, 1: 62.0, 2: 64.0, 3: 99.0}, "b": {0: 70.0, 1: 71.0, 2: 72.0}}).told  # a is the best by 3 alone
    frozenset()
    """
    means = {name: float(np.mean(list(row.values()))) for name, row in scores.items() if row}
    if not means:
        return None
    name, *behind = sorted(means, key=lambda one: -means[one])
    above: set[str] = set()
    tests = []
    for other in behind:
        both = [key for key in scores[name] if key in scores[other]]
        ours, theirs = [scores[name][key] for key in both], [scores[other][key] for key in both]
        above |= {other} if sum(ours) > sum(theirs) else set()
        tests.append(paired(ours, theirs)[0] if len(both) >= ENOUGH_PAIRS else None)
    told = {other for other, p in zip(behind, holm(tests), strict=True) if other in above and p is not None and p < LEVEL}
    return Foremost(name, tuple(behind), frozenset(told))
