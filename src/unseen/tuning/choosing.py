"""From scores to a choice, and what is to be known about it: how close it was, what lay at an edge, what an oracle would have taken."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from unseen.tuning.tries import Row
from unseen.tuning.uses import Use

__all__ = ["Choice", "at_an_edge", "best_of", "lost_to_the_oracle", "standing"]


@dataclass(frozen=True)
class Choice:
    """What one row takes for one target (None: for all)."""

    row: str
    target: str | None
    number: int  # of the try
    standings: Mapping[int, float | None]  # by try: what it was chosen by
    rounds: Mapping[int, int]  # by try: the round in which it stood so
    seeds: tuple[int, ...]  # of the last comparison


def standing(rule: str, scores: Iterable[tuple[Use, float | None]]) -> float | None:
    """What a try is judged by: the mean over domains, or the worst of them, of the mean over seeds. None if any score is missing.

    For one choice, a domain is scored without each other target in turn; every such case counts as a domain of its own.
    """
    cases: dict[tuple[str | None, str], list[float]] = {}
    for use, score in scores:
        if score is None:
            return None
        cases.setdefault((use.on, use.cell.folder.rsplit("/", 1)[0]), []).append(score)
    means = [statistics.fmean(values) for values in cases.values()]
    if not means:
        return None
    return min(means) if rule == "held-out-worst" else statistics.fmean(means)


def best_of(standings: Mapping[int, float | None], number: int) -> list[int]:
    """The best tries, best first; of equal ones that which the plan names first."""
    known = [(-score, one) for one, score in standings.items() if score is not None]
    return [one for _, one in sorted(known)[:number]]


def at_an_edge(row: Row, choice: Choice) -> list[str]:
    """Ordered choices that ended at the first or last value tried: a better one may lie beyond."""
    told = []
    for name, value in row.tries[choice.number].numbers.items():
        values = row.ranges[name]
        if value in (values[0], values[-1]):
            side = "lowest" if value == values[0] else "highest"
            told.append(f"{name} {value:g} is the {side} of {len(values)} tried")
    return told


def lost_to_the_oracle(choice: Choice, on_target: Callable[[int], float | None]) -> tuple[int, float] | None:
    """The try that is best on the target itself, and by how much more than the one that was chosen. Only after the choice."""
    found = {number: on_target(number) for number in choice.standings}
    best, chosen = best_of(found, 1), found.get(choice.number)
    if not best or chosen is None:
        return None
    return best[0], float(found[best[0]] or 0.0) - chosen
