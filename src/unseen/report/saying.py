"""What was found, in one sentence: who is ahead, by how much, and whether these runs can tell. Said by the page and in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from unseen.report.statistics import compare, scores_by_method
from unseen.report.tables import AVERAGE, Cell, comparison
from unseen.report.telling import ENOUGH_PAIRS, best_of

__all__ = ["what_was_found"]


def what_was_found(cells: Iterable[Cell], rule: str = "source") -> str:
    """One or two sentences on finished runs; "" where there are none that the rule can speak of."""
    cells = list(cells)
    table = comparison(cells, rule)
    if not table.columns:
        return ""
    where = f"on {table.columns[0]}" if AVERAGE not in table.columns else f"on average over {len(table.columns) - 2} unseen domains"
    scores = {name: row for name, row in _complete(scores_by_method(cells, rule)).items() if row}
    best = best_of(scores)
    assert best is not None
    mean = fmean(scores[best.name].values())
    seeds = max(len({seed for _, seed in row}) for row in scores.values())
    if not best.behind:
        alone = f"{best.name} reaches {mean:.1f} % {table.metric} {where}, {_seeds(seeds)}."
        return alone if seeds > 1 else f"{alone} How much of that is chance, one seed cannot tell."
    second = best.behind[0]
    (against,) = compare({name: scores[name] for name in (best.name, second)})
    lead = f"{best.name} has the highest {table.metric} {where}: {mean:.1f} %"
    if against.difference is None:
        return f"{lead}. It shares no unseen domain and seed with the next, {second}, so the two cannot be compared."
    by = f"{abs(against.difference):.1f} points {'more' if against.difference >= 0 else 'less'} than the next, {second}"
    if best.clear:
        told = "the two apart" if len(best.behind) == 1 else f"it from all {len(best.behind)} others"
        return f"{lead}, {by}. These runs tell {told} (paired t-test, p < 0.05)."
    if against.n < ENOUGH_PAIRS or against.low is None or against.high is None:
        return f"{lead}, {by}. {_seeds(seeds).capitalize()} cannot tell the two apart: run more."
    level = [name for name in best.behind if name not in best.told]
    apart = "the two apart" if level == [second] else f"it from {_listed(level)}"
    return f"{lead}, {by} (95 % interval {against.low:+.1f} to {against.high:+.1f}). These runs cannot tell {apart}."


def _listed(names: list[str]) -> str:
    """A few names, or the first and how many more."""
    return " and ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def _seeds(number: int) -> str:
    return "one seed" if number == 1 else f"{number} seeds"


def _complete(scores: dict[str, dict[tuple[str, int], float]]) -> dict[str, dict[tuple[str, int], float]]:
    """Of each method the seeds that have every unseen domain, as in the table's average; all where it has none."""
    columns = {domain for row in scores.values() for domain, _ in row}
    whole = {}
    for name, row in scores.items():
        seeds = {seed for _, seed in row if all((domain, seed) in row for domain in columns)}
        whole[name] = {key: value for key, value in row.items() if key[1] in seeds}
    return whole if any(whole.values()) else scores
