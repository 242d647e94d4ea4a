"""What the numbers can and cannot show: confidence intervals over seeds, and paired tests between methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from unseen.report.tables import Cell, Stat
from unseen.report.telling import holm, paired

__all__ = ["Comparison", "bootstrap", "compare", "holm", "interval", "interval_of", "interval_within", "paired", "scores_by_method"]

Scores = Mapping[tuple[str, int], float]  # by unseen domain and seed


@dataclass(frozen=True)
class Comparison:
    """Method `first` against `second` over the (target, seed) pairs that both have. None: undefined for these numbers."""

    first: str
    second: str
    n: int
    difference: float | None  # mean of first - second
    low: float | None  # 95 % interval of the difference, by Student's t
    high: float | None
    t: float | None  # p-value of the paired t-test, two-sided
    wilcoxon: float | None  # of the Wilcoxon signed-rank test, two-sided
    adjusted: float | None = None  # the t-test's after Holm's correction for the number of comparisons


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean; None for fewer than two values.

    >>> low, high = interval([1.0, 2.0, 3.0]) or (0, 0)
    >>> round(low, 4), round(high, 4)  # 2 -+ 4.3027 / sqrt(3)
    (-0.4841, 4.4841)
    """
    stat = Stat.of(values) if len(values) > 1 else None
    return interval_of(stat, level) if stat else None


def interval_of(stat: Stat, level: float = 0.95) -> tuple[float, float] | None:
    """The same from a mean and a standard deviation."""
    from scipy import stats

    if stat.std is None:
        return None
    half = float(stats.t.ppf((1 + level) / 2, stat.n - 1)) * stat.std / math.sqrt(stat.n)
    return stat.mean - half, stat.mean + half


def interval_within(stat: Stat, low: float = 0.0, high: float = 100.0, level: float = 0.95) -> tuple[float, float] | None:
    """The same, but inside the range of a metric: Student's t on the logit scale (on the log scale where there is no highest value).

    For small deviations it is `interval_of`. A mean outside the range, as a metric of one's own may have, gets that one.

    >>> [round(x, 1) for x in interval_within(Stat(50.0, 10.0, 2)) or ()]  # Student's t alone would say -39.8 to 139.8
    [2.7, 97.3]
    """
    from scipy import stats

    if stat.std is None or stat.std == 0 or not low < stat.mean < high:
        return interval_of(stat, level)
    half = float(stats.t.ppf((1 + level) / 2, stat.n - 1)) * stat.std / math.sqrt(stat.n)
    above = stat.mean - low
    if math.isinf(high):
        return low + above * math.exp(-half / above), low + above * math.exp(min(half / above, 700.0))
    share = above / (high - low)
    scaled = half / (high - low) / (share * (1 - share))  # the logit's slope at the mean is 1 / (share (1 - share))
    logit = math.log(share / (1 - share))
    ends = [1 / (1 + math.exp(-max(-700.0, min(700.0, logit + step)))) for step in (-scaled, scaled)]
    return low + (high - low) * ends[0], low + (high - low) * ends[1]


def bootstrap(
    statistic: Callable[[NDArray[np.int64]], Mapping[str, float]],
    cases: int,
    groups: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of what `statistic` says of drawn cases, by their positions.

    With `groups` (patients), whole groups are drawn: the cases of one are not independent. Nothing for fewer than two.

    >>> bootstrap(lambda drawn: {"share": float((drawn < 3).mean())}, 3)
    {'share': (1.0, 1.0)}
    """
    names, where = np.unique(list(groups) if groups is not None else np.arange(cases), return_inverse=True)
    if len(names) < 2:
        return {}
    members = [np.flatnonzero(where == number) for number in range(len(names))]
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {}
    for _ in range(draws):
        drawn = np.concatenate([members[number] for number in rng.integers(0, len(names), len(names))])
        for name, value in statistic(drawn).items():
            found.setdefault(name, []).append(value)
    tails = [(1 - level) / 2, (1 + level) / 2]
    return {name: (float(np.quantile(v, tails[0])), float(np.quantile(v, tails[1]))) for name, v in found.items()}


def scores_by_method(cells: Iterable[Cell], rule: str, metric: str | None = None) -> dict[str, dict[tuple[str, int], float]]:
    """The score of every method on each unseen domain under each seed, in percent; or another metric of the records."""
    table: dict[str, dict[tuple[str, int], float]] = {}
    for cell in cells:
        row = table.setdefault(cell.method, {})
        row |= {(target, cell.seed): value for target, value in cell.scores(rule, metric).items()}
    return table


def compare(scores: Mapping[str, Scores], against: str | None = None) -> list[Comparison]:
    """Every two methods, or all against one, paired by unseen domain and seed."""
    pairs = combinations(scores, 2) if against is None else ((against, other) for other in scores if other != against)
    rows = []
    for first, second in pairs:
        both = sorted(scores[first].keys() & scores[second].keys())
        a, b = [scores[first][key] for key in both], [scores[second][key] for key in both]
        t, wilcoxon = paired(a, b)
        differences = [x - y for x, y in zip(a, b, strict=True)]
        low, high = interval(differences) or (None, None)
        mean = float(np.mean(differences)) if differences else None
        rows.append(Comparison(first, second, len(both), mean, low, high, t, wilcoxon))
    return [replace(row, adjusted=p) for row, p in zip(rows, holm([row.t for row in rows]), strict=True)]
