"""How well two groups of images are told apart, and how sure that is.

Intervals are of 99 %: a page holds many figures, and one in forty would look like a finding by chance at 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from unseen.report.statistics import bootstrap

__all__ = ["CHANCE", "LEVEL", "Separation", "alike_by_chance", "area_under_curve", "clopper_pearson", "few_by_chance", "separation"]

LEVEL = 0.99
CHANCE = (1 - LEVEL) / 2  # a one-sided p-value below this counts as no chance
_FALSE = 0.01  # of the images that were not trained on, how many may be mistaken

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Separation:
    """How well a score tells members from others: over all, and where hardly anybody is mistaken."""

    auc: float
    low: float | None
    high: float | None
    found: float  # share of the members above the limit that at most 1 % of the others pass
    found_low: float
    found_high: float
    by_chance: float  # p-value of so many above it


def area_under_curve(inside: Floats, outside: Floats) -> float:
    """The chance that a member's score is above another's; a tie counts half (Mann and Whitney).

    >>> area_under_curve(np.array([3.0, 2.0]), np.array([1.0, 2.0]))  # 3 > 1, 3 > 2, 2 > 1, and a tie
    0.875
    """
    ranks = stats.rankdata(np.concatenate([inside, outside]))[: len(inside)]
    return float((ranks.sum() - len(inside) * (len(inside) + 1) / 2) / (len(inside) * len(outside)))


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval of a share.

    >>> low, high = clopper_pearson(0, 10, 0.95)
    >>> low, round(high, 4)  # 1 - 0.025 ** 0.1
    (0.0, 0.3085)
    """
    tail = (1 - level) / 2
    low = float(stats.beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(stats.beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high


def few_by_chance(found: int, inside: int, outside: int, mistaken: int) -> float:
    """How likely so many members come before the next of the others if the order means nothing.

    >>> round(few_by_chance(2, 3, 3, 0), 4)  # 3/6 * 2/5
    0.2
    """
    return float(stats.nhypergeom(inside + outside, inside, mistaken + 1).sf(found - 1)) if found else 1.0


def alike_by_chance(table: Floats, inside: int, draws: int = 2000) -> float:
    """How likely found images resemble those that trained so much more than the others if who trained means nothing.

    The table is [found, images], those that trained first. Who trained is drawn again and again; found images that are alike do not
    count as independent that way.
    """

    def gap(order: NDArray[np.int64]) -> float:
        return float((table[:, order[:inside]].max(1) - table[:, order[inside:]].max(1)).mean())

    rng, seen = np.random.default_rng(0), gap(np.arange(table.shape[1]))
    as_much = sum(gap(rng.permutation(table.shape[1])) >= seen - 1e-12 for _ in range(draws))
    return (1 + as_much) / (1 + draws)


def separation(inside: Sequence[float] | Floats, outside: Sequence[float] | Floats, groups: Sequence[str] | None = None) -> Separation:
    """Of scores that are larger for members. `groups` names the patient of each image, members first: they are drawn whole."""
    a, b = (np.nan_to_num(np.asarray(values, dtype=np.float64), nan=-1e300) for values in (inside, outside))
    together, split = np.concatenate([a, b]), len(a)

    def area(drawn: NDArray[np.int64]) -> dict[str, float]:
        first, second = together[drawn[drawn < split]], together[drawn[drawn >= split]]
        return {"auc": area_under_curve(first, second)} if len(first) and len(second) else {}

    low, high = bootstrap(area, len(together), groups, level=LEVEL).get("auc", (None, None))
    mistaken = int(_FALSE * len(b))
    limit = np.sort(b)[::-1][mistaken]
    found = int((a > limit).sum())
    share = clopper_pearson(found, len(a))
    return Separation(area_under_curve(a, b), low, high, found / len(a), *share, few_by_chance(found, len(a), len(b), mistaken))
