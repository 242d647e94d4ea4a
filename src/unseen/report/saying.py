"""What was found, in one sentence: who is ahead, by how much, and whether these runs can tell. Said by the page and in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from unseen.report.statistics import compare, scores_by_method
from unseen.report.tables import AVERAGE, Cell, comparison, in_words
from unseen.report.telling import ENOUGH_PAIRS, best_of
from unseen.runs.selection import RULES

__all__ = ["scores_compared", "seeds_in_words", "what_the_numbers_are", "what_was_found"]


def what_was_found(cells: Iterable[Cell], rule: str = "source") -> str:
    """One or two sentences on finished runs; "" where there are none that the rule can speak of."""
    cells = list(cells)
    table = comparison(cells, rule)
    if not table.columns:
        return ""
    where = f"on {table.columns[0]}" if AVERAGE not in table.columns else f"on average over {len(table.columns) - 2} unseen domains"
    scores = scores_compared(cells, rule)
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
    if (below := round(-against.difference, 1)) > 0:
        over = "Over the unseen domains and seeds that both have"
        return f"{lead}. {over}, it is {below:.1f} points below the next, {second}: run the two on the same."
    by = f"{abs(against.difference):.1f} points more than the next, {second}"
    if seeds == 1:
        return f"{lead}, {by}. One seed cannot tell {'the two' if len(best.behind) == 1 else 'them'} apart: run more."
    if best.clear:
        told = "the two apart" if len(best.behind) == 1 else f"it from all {len(best.behind)} others"
        return f"{lead}, {by}. These runs tell {told} (paired t-test, p < 0.05)."
    if against.n < ENOUGH_PAIRS or against.low is None or against.high is None:
        return f"{lead}, {by}. {_seeds(seeds).capitalize()} cannot tell the two apart: run more."
    level = [name for name in best.behind if name not in best.told]
    apart = "the two apart" if level == [second] else f"it from {_listed(level)}"
    return f"{lead}, {by} (95 % interval {against.low:+.1f} to {against.high:+.1f}). These runs cannot tell {apart}."


def scores_compared(cells: Iterable[Cell], rule: str) -> dict[str, dict[tuple[str, int], float]]:
    """The scores that say who is ahead: of each method the seeds that have every unseen domain, as in the table's average.

    Methods without such a seed are left out. Where none has one, all scores count.
    """
    scores = scores_by_method(cells, rule)
    columns = {domain for row in scores.values() for domain, _ in row}
    whole = {}
    for name, row in scores.items():
        seeds = {seed for _, seed in row if all((domain, seed) in row for domain in columns)}
        whole[name] = {key: value for key, value in row.items() if key[1] in seeds}
    return {name: row for name, row in (whole if any(whole.values()) else scores).items() if row}


def what_the_numbers_are(cells: Iterable[Cell], rule: str) -> str:
    """The metric, where it was measured, the rule that chose the round, and the seeds."""
    cells = list(cells)
    metric = in_words(next((cell.records[0]["metric"] for cell in cells if cell.records), "score"))
    seeds = sorted({cell.seed for cell in cells})
    over = f"mean ± standard deviation over {seeds_in_words(seeds)}" if len(seeds) > 1 else seeds_in_words(seeds)
    return f"{metric[0].upper()}{metric[1:]} in percent on the unseen domain, in the {RULES[rule].heading}; {over}."


def seeds_in_words(seeds: list[int]) -> str:
    """Seeds as one says them.

    >>> seeds_in_words([0]), seeds_in_words([0, 1, 2]), seeds_in_words([1, 5])
    ('seed 0', 'seeds 0 to 2', 'seeds 1, 5')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def _listed(names: list[str]) -> str:
    """A few names, or the first and how many more."""
    return " and ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def _seeds(number: int) -> str:
    return "one seed" if number == 1 else f"{number} seeds"
