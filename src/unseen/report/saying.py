"""A table in words: what its numbers are, who is ahead, and whether that can be told."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from unseen.report.statistics import Comparison, compare, scores_by_method
from unseen.report.tables import AVERAGE, WORST, Cell
from unseen.runs.selection import RULES

__all__ = ["LEVEL", "best_told", "leader_of", "seeds_in_words", "what_the_numbers_are", "who_is_ahead"]

LEVEL = 0.05  # a difference counts where the paired t-test's p-value, after Holm's correction, is below this


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Seeds as one says them.

    >>> seeds_in_words([0]), seeds_in_words([2, 0, 1]), seeds_in_words([1, 5])
    ('seed 0', 'seeds 0 to 2', 'seeds 1 and 5')
    """
    found = sorted(set(seeds))
    if len(found) == 1:
        return f"seed {found[0]}"
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"seeds {found[0]} to {found[-1]}"
    return f"seeds {_listed([str(seed) for seed in found])}"


def what_the_numbers_are(cells: Sequence[Cell], rule: str) -> str:
    """The metric, where it was measured, the rule that chose the round, and the seeds."""
    metric = next((cell.records[0]["metric"] for cell in cells if cell.records), "score")
    seeds = [cell.seed for cell in cells]
    over = f"mean ± standard deviation over {seeds_in_words(seeds)}" if len(set(seeds)) > 1 else seeds_in_words(seeds)
    return f"{metric[0].upper()}{metric[1:]} in percent on the unseen domain, in the {RULES[rule].heading}; {over}."


def leader_of(cells: Sequence[Cell], rule: str) -> str | None:
    """The row with the highest mean where all rows have a score; None where there is none."""
    scores = [(row, method) for method, row in scores_by_method(cells, rule).items() if row]
    shared = set.intersection(*(set(row) for row, _ in scores)) if scores else set()
    return max(scores, key=lambda one: statistics.fmean(one[0][key] for key in shared))[1] if shared else None


def who_is_ahead(cells: Sequence[Cell], rule: str) -> str:
    """One sentence: which row is ahead, of whom, and whether these runs can tell.

    Rows are compared where all of them have a score: the same unseen domains under the same seeds.
    """
    scores = {method: row for method, row in scores_by_method(cells, rule).items() if row}
    if not scores:
        return "No run has a score on its unseen domain."
    shared = set.intersection(*(set(row) for row in scores.values()))
    if not shared:
        return "No unseen domain and seed is common to all rows, so they cannot be compared."
    alike = {method: {key: row[key] for key in shared} for method, row in scores.items()}
    means = {method: statistics.fmean(row.values()) for method, row in alike.items()}
    leader = max(means, key=lambda method: means[method])
    where = _where(sorted({domain for domain, _ in shared}))
    if len(scores) == 1:
        return f"{leader} reaches {means[leader]:.1f} {where}; with one row there is nothing to compare it with."
    others = sorted((method for method in means if method != leader), key=lambda method: -means[method])
    margin = means[leader] - means[others[0]]
    if f"{margin:.2f}" == "0.00":
        return f"{leader} and {others[0]} are level at {means[leader]:.1f} {where}."
    highest = f"{leader} is highest with {means[leader]:.1f} {where}, {_points(margin)} above {others[0]}"
    if len({seed for _, seed in shared}) < 2:
        return f"{highest}; with one seed it cannot be told from chance."
    rows = {row.second: row for row in compare(alike, against=leader)}
    told = [method for method in others if _can_be_told(rows[method])]
    if len(told) == len(others):
        whom = others[0] if len(others) == 1 else "every other row"
        return f"{leader} is ahead of {whom}: {means[leader]:.1f} {where}, {_points(margin)} above {others[0]} ({_test(rows[others[0]])})."
    apart = [method for method in others if method not in told]
    ahead = f"; it is ahead of {_listed(told)}" if told else ""
    return f"{highest}{ahead}, but cannot be told from {_listed(apart)} ({_test(rows[apart[0]])}): more seeds may tell."


def best_told(cells: Sequence[Cell], rule: str) -> set[tuple[str, str]]:
    """Of a table's columns, the best row where these runs can tell: ahead of every other row in a paired test over the seeds."""
    by_column: dict[str, dict[str, dict[tuple[str, int], float]]] = {}
    for method, row in scores_by_method(cells, rule).items():
        for (column, seed), value in {**row, **_over_domains(row)}.items():
            by_column.setdefault(column, {}).setdefault(method, {})[column, seed] = value
    found = set()
    for column, rows in by_column.items():
        shared = set.intersection(*(set(row) for row in rows.values()))
        alike = {method: {key: row[key] for key in shared} for method, row in rows.items()}
        if len(alike) > 1 and len(shared) > 1:
            leader = max(alike, key=lambda method: sum(alike[method].values()))
            if all(_can_be_told(row) and (row.difference or 0) > 0 for row in compare(alike, against=leader)):
                found.add((leader, column))
    return found


def _over_domains(row: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    """A method's average and worst domain under each seed that has all of its domains."""
    domains = {domain for domain, _ in row}
    seeds = {seed for _, seed in row}
    whole = {seed: [row[domain, seed] for domain in domains] for seed in seeds if all((domain, seed) in row for domain in domains)}
    if len(domains) < 2:
        return {}
    return {(AVERAGE, seed): statistics.fmean(v) for seed, v in whole.items()} | {(WORST, seed): min(v) for seed, v in whole.items()}


def _can_be_told(row: Comparison) -> bool:
    return row.adjusted is not None and row.adjusted < LEVEL


def _test(row: Comparison) -> str:
    """What the paired test says of a row, over pairs of unseen domain and seed."""
    if row.low is None or row.high is None or row.adjusted is None:
        return f"{row.n} pairs"
    p = "p < 0.001" if row.adjusted < 0.001 else f"p = {row.adjusted:.2g}"
    return f"difference {row.low:+.1f} to {row.high:+.1f} with 95 % confidence, {p}, {row.n} pairs"


def _where(domains: Sequence[str]) -> str:
    return f"on {domains[0]}" if len(domains) == 1 else f"on average over {len(domains)} unseen domains"


def _points(margin: float) -> str:
    """
    >>> _points(2.14), _points(0.04)
    ('2.1 points', '0.04 points')
    """
    return f"{margin:.1f} points" if margin >= 0.095 else f"{margin:.2g} points"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
