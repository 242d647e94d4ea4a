"""What runs decide about two rows: the paired difference with its intervals, Holm over several, and the seeds that are still wanting.

Runs are paired by unseen domain and seed. With the difference turned so that the claim is positive, and h half of what was claimed:
  better, reproduced     the 95 % interval (Student's t over all pairs) lies above 0
  worse, not reproduced  it lies below 0, or below h where a difference was claimed
  undecided              neither. Fewer than three seeds of any domain decide nothing
The t-test behind it is two-sided, against 0 or against h, whichever lies farther off. Holm's correction is over all that are asked at once.
What an interval speaks of depends on what is counted:
  seeds    a number for each, its average over the domains: would it hold on these domains under other seeds?
  domains  a number for each, its average over the seeds: would it hold on other domains like these?
  pairs    a number for each domain and seed. It speaks of these domains, and is wide where the difference is not the same on all of them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from unseen.report.statistics import Scores, holm, interval

__all__ = ["FEWEST_SEEDS", "UNITS", "Over", "Verdict", "corrected", "judge", "pairs_needed", "sentence"]

FEWEST_SEEDS = 3
FEWEST_DOMAINS = 3  # where they are what is counted
FEWEST_DRAWN, DRAWS = 6, 4000  # numbers for a bootstrap, and how often they are drawn
POWER = 0.8  # of a difference as large as the one seen: found four times in five
MOST_SEEDS = 1000  # beyond which nobody will run them
Over = Literal["pairs", "seeds", "domains"]
UNITS: tuple[Over, ...] = get_args(Over)
Decision = Literal["better", "worse", "reproduced", "not reproduced", "undecided"]


@dataclass(frozen=True)
class Verdict:
    """Row `first` against `second`. Differences are first minus second, in the metric's own direction; None: undefined."""

    first: str
    second: str
    n: int  # numbers that the interval is of: pairs, seeds or domains
    pairs: int
    seeds: int
    fewest: tuple[str, int]  # the domain with the fewest seeds, and how many
    targets: dict[str, float]  # the mean difference on each unseen domain
    difference: float | None
    low: float | None  # 95 % interval, Student's t
    high: float | None
    drawn: tuple[float, float] | None  # the same by bootstrap; of a handful it would be too narrow, and is left out
    beside: dict[Over, tuple[float, float] | None]  # Student's t over the other units
    p: float | None  # of the decision; two-sided
    decision: Decision
    needed: int | None = None  # seeds (or domains) that would decide, if the difference is the one seen; None: decided, or beyond reach
    claimed: float | None = None
    adjusted: float | None = None  # p after Holm
    over: Over = "pairs"

    @property
    def stands(self) -> bool:
        """Whether the decision holds among all that were asked at once."""
        return self.decision != "undecided" and self.adjusted is not None and self.adjusted < 0.05


def judge(
    first: str, second: str, a: Scores, b: Scores, *, claimed: float | None = None, higher: bool = True, over: Over = "pairs"
) -> Verdict:
    """The verdict over what both rows have. `claimed`: the difference that a paper prints; its sign is the direction."""
    both = {key: a[key] - b[key] for key in sorted(a.keys() & b.keys())}
    targets = sorted({target for target, _ in both})
    by_domain = {target: [d for (t, _), d in both.items() if t == target] for target in targets}
    by_seed = {seed: [d for (_, s), d in both.items() if s == seed] for seed in sorted({seed for _, seed in both})}
    whole = [float(np.mean(found)) for found in by_seed.values() if len(found) == len(targets)]
    units: dict[Over, list[float]] = {"pairs": [*both.values()], "seeds": whole, "domains": [float(np.mean(d)) for d in by_domain.values()]}
    numbers = units[over]
    low, high = interval(numbers) or (None, None)
    sign = (1.0 if higher else -1.0) if claimed is None else math.copysign(1.0, claimed)
    seeds = len(whole) if over == "seeds" else len(by_seed)
    fewest = min(((target, len(found)) for target, found in by_domain.items()), key=lambda one: one[1], default=("", 0))
    enough = min(seeds, fewest[1]) >= FEWEST_SEEDS and (over != "domains" or len(targets) >= FEWEST_DOMAINS)
    decision, p = _decided(sign, numbers, claimed, enough)
    a_seed = len(targets) if over == "pairs" else 1
    return Verdict(
        first=first,
        second=second,
        n=len(numbers),
        pairs=len(both),
        seeds=seeds,
        fewest=fewest,
        targets={target: float(np.mean(found)) for target, found in by_domain.items()},
        difference=float(np.mean(numbers)) if numbers else None,
        low=low,
        high=high,
        drawn=_drawn(numbers),
        beside={unit: interval(found) for unit, found in units.items() if unit != over},
        p=p,
        decision=decision,
        needed=_needed(sign, numbers, claimed, a_seed) if decision == "undecided" else None,
        claimed=claimed,
        over=over,
    )


def _drawn(numbers: Sequence[float]) -> tuple[float, float] | None:
    """The percentile interval of the mean of numbers drawn with replacement."""
    if len(numbers) < FEWEST_DRAWN:
        return None
    at = np.random.default_rng(0).integers(0, len(numbers), (DRAWS, len(numbers)))
    low, high = np.quantile(np.asarray(numbers)[at].mean(1), (0.025, 0.975))
    return float(low), float(high)


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """With Holm's correction for being asked at once."""
    return [replace(v, adjusted=p) for v, p in zip(verdicts, holm([v.p for v in verdicts]), strict=True)]


def _decided(sign: float, differences: Sequence[float], claimed: float | None, enough: bool) -> tuple[Decision, float | None]:
    bounds = interval([sign * d for d in differences])
    if bounds is None:
        return "undecided", None
    low, high = bounds
    half = 0.0 if claimed is None else abs(claimed) / 2
    p = min(_p_of([sign * d for d in differences], 0.0, above=True), _p_of([sign * d for d in differences], half, above=False))
    if not enough:
        return "undecided", p
    if low > 0:
        return ("better" if claimed is None else "reproduced"), p
    if high < half:
        return ("worse" if claimed is None else "not reproduced"), p
    return "undecided", p


def _p_of(differences: Sequence[float], bound: float, *, above: bool) -> float:
    """Two-sided p of the mean lying above, or below, the bound: twice the one-sided one, at most 1."""
    from scipy import stats

    values = np.asarray(differences, dtype=np.float64) - bound
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    if error <= 1e-12 * float(np.abs(values).max()):  # all alike
        return 0.0 if (values.mean() > 0) == above and values.mean() != 0 else 1.0
    t = float(values.mean()) / error
    return min(1.0, 2 * float(stats.t.sf(t if above else -t, len(values) - 1)))


def pairs_needed(effect: float, power: float = POWER, level: float = 0.05, most: int = 1_000_000) -> int | None:
    """The fewest pairs with which a two-sided paired t-test finds a difference of `effect` standard deviations so often.

    >>> pairs_needed(0.5), pairs_needed(0.8), pairs_needed(0.2)
    (34, 15, 199)
    """
    if not effect > 0:
        return None
    low, high = 1, 2
    while _power(high, effect, level) < power:
        low, high = high, 2 * high
        if low >= most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, effect, level) >= power else (middle, high)
    return high


def _power(pairs: int, effect: float, level: float) -> float:
    from scipy import stats

    critical = float(stats.t.ppf(1 - level / 2, pairs - 1))
    found = float(stats.nct.sf(critical, pairs - 1, effect * math.sqrt(pairs)))
    return found if math.isfinite(found) else 1.0  # scipy gives nan where the power is 1


def _needed(sign: float, differences: Sequence[float], claimed: float | None, a_seed: int) -> int | None:
    """Seeds, or domains, that would decide, were the true difference the one seen: it lies off 0, or off half the claim.

    `a_seed` says how many numbers one seed gives.
    """
    if len(differences) < 2:
        return None
    values = sign * np.asarray(differences)
    spread, mean = float(values.std(ddof=1)), float(values.mean())
    off = abs(mean) if claimed is None else max(mean, abs(claimed) / 2 - mean)
    if spread == 0 or off <= 0:
        return FEWEST_SEEDS if off > 0 else None
    numbers = pairs_needed(off / spread)
    seeds = None if numbers is None else max(FEWEST_SEEDS, math.ceil(numbers / a_seed))
    return seeds if seeds is not None and seeds <= MOST_SEEDS else None


def sentence(verdict: Verdict, unit: str = "points") -> str:
    """The verdict in plain words."""
    v = verdict
    if not v.pairs:
        return f"Not run: {v.first} and {v.second} have no unseen domain and seed in common."
    if v.difference is None:
        return f"Undecided: no seed has both {v.first} and {v.second} on all {len(v.targets)} unseen domains. Take --over pairs."
    size = f"{v.first} minus {v.second} is {v.difference:+.2f} {unit}"
    spread = f" (95 % interval {v.low:+.2f} to {v.high:+.2f})" if v.low is not None and v.high is not None else ""
    over = f", over {_count(len(v.targets), 'unseen domain')} and {_count(v.seeds, 'seed')}"
    if v.decision == "undecided":
        return f"Undecided: {size}{spread}{over}. {_advice(v)}"
    if v.claimed is not None:
        told = f"{v.decision[0].upper()}{v.decision[1:]}: {size}{spread}{over}; the paper has {v.claimed:+.2f}."
    else:
        told = f"{v.first} is {v.decision} than {v.second}: {size}{spread}{over}."
    if v.adjusted is not None and not v.stands:
        told += f" Among all that were asked at once it does not stand (p {v.adjusted:.3f} after Holm)."
    return told


def _advice(v: Verdict) -> str:
    what = "domain" if v.over == "domains" else "seed"
    if v.seeds < FEWEST_SEEDS:
        more = f"; if the difference is the one seen, {v.needed} {what}s would decide" if v.needed and v.needed > FEWEST_SEEDS else ""
        return f"{_count(v.seeds, 'seed')} decide{'s' if v.seeds == 1 else ''} nothing: run {FEWEST_SEEDS} at least{more}."
    if v.fewest[1] < FEWEST_SEEDS:
        return (
            f"On {v.fewest[0]} {_count(v.fewest[1], 'seed')} decide{'s' if v.fewest[1] == 1 else ''} nothing: run {FEWEST_SEEDS} at least."
        )
    if v.over == "domains" and v.n < FEWEST_DOMAINS:
        return f"{_count(v.n, 'unseen domain')} decide{'s' if v.n == 1 else ''} nothing about others: {FEWEST_DOMAINS} at least."
    if v.needed is None:
        return f"It is so small against its spread that {MOST_SEEDS} {what}s would not decide it."
    if v.needed <= (v.n if v.over == "domains" else v.seeds):
        return f"It is close: a few more {what}s may decide it."
    return f"If the difference is the one seen, {v.needed} {what}s would decide it, four times in five."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
