"""How the tries are gone through: in rungs, each of which keeps some of them.

A grid has one rung: every try, every round, every seed. Halving (Jamieson and Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", AISTATS 2016) begins with few rounds or few seeds, keeps one try in `keep`, and goes on with those alone. A
run that goes on is resumed, to the same bits as if it had been long from the beginning.

The layout follows from the plan and its budget before anything is run. A budget of minutes is looked at between the seeds of a grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from unseen.errors import BadInput
from unseen.training import goes_by_the_last_round
from unseen.tuning.plan import TuningPlan
from unseen.tuning.uses import Use

__all__ = ["Expense", "Rung", "lay_out"]


@dataclass(frozen=True)
class Rung:
    """One pass over the tries that are left: to this round, under these seeds; then one in `keep` goes on (1: all do)."""

    rounds: int
    seeds: tuple[int, ...]
    keep: int = 1


@dataclass(frozen=True)
class Expense:
    """What a layout costs at most: runs that are begun, and rounds in all."""

    runs: int
    rounds: int

    def within(self, unit: str, amount: float) -> bool:
        return unit == "minutes" or (self.runs if unit == "runs" else self.rounds) <= amount


def lay_out(plan: TuningPlan, uses: Sequence[Use]) -> list[Rung]:
    """The rungs: as few as the budget allows, since each one drops tries on less evidence. BadInput where none fits."""
    if plan.search == "grid":
        return _grid(plan, uses)
    if plan.search == "halving-rounds":
        _refuse_falling_rates(uses)
    layouts = [_halving(plan, rungs) for rungs in range(2, _deepest(plan) + 1)] or [_halving(plan, 1)]
    for rungs in layouts:
        if cost_of(rungs, uses).within(plan.budget.unit, plan.budget.amount):
            return rungs
    raise BadInput(_too_small(plan, cost_of(layouts[-1], uses)))


def cost_of(rungs: Sequence[Rung], uses: Sequence[Use]) -> Expense:
    """Exact in the first rung; later at most, since two targets that keep the same try share its runs."""
    first = {use.cell.folder for use in uses if use.seed in rungs[0].seeds}
    runs, rounds = len(first), len(first) * rungs[0].rounds
    cases: dict[tuple[str, str | None], list[Use]] = {}
    for use in uses:
        cases.setdefault((use.row, use.target), []).append(use)
    for mine in cases.values():
        left, of_a_try = len({use.number for use in mine}), [use.seed for use in mine if use.number == mine[0].number]
        for before, rung in itertools.pairwise(rungs):
            left = survivors(left, before.keep)
            if left == 1:
                break
            for seed in of_a_try:
                known = seed in before.seeds
                runs += left * (seed in rung.seeds and not known)
                rounds += left * (seed in rung.seeds) * (rung.rounds - before.rounds * known)
    return Expense(runs, rounds)


def _refuse_falling_rates(uses: Sequence[Use]) -> None:
    falling = sorted({use.row for use in uses if goes_by_the_last_round(use.cell.experiment)})
    if falling:
        raise BadInput(
            f"{', '.join(falling)}: the learning rate falls until the last round, so that a short run is not the beginning of a long one; "
            "search by halving-seeds or grid"
        )


def survivors(tries: int, keep: int) -> int:
    """How many go on.

    >>> survivors(7, 3), survivors(2, 3), survivors(4, 1)
    (3, 1, 4)
    """
    return math.ceil(tries / keep)


def _grid(plan: TuningPlan, uses: Sequence[Use]) -> list[Rung]:
    if plan.budget.unit == "minutes":  # seed by seed, with a look at the clock between them
        return [Rung(plan.rounds, plan.seeds[:number]) for number in range(1, len(plan.seeds) + 1)]
    for number in range(len(plan.seeds), 0, -1):
        rungs = [Rung(plan.rounds, plan.seeds[:number])]
        if cost_of(rungs, uses).within(plan.budget.unit, plan.budget.amount):
            return rungs
    raise BadInput(_too_small(plan, cost_of([Rung(plan.rounds, plan.seeds[:1])], uses)))


def _deepest(plan: TuningPlan) -> int:
    """As many rungs as leave the first a round, or a seed, and no more than bring the longest row down to one try."""
    whole = plan.rounds if plan.search == "halving-rounds" else len(plan.seeds)
    most, tries = 1, max(len(row.tries) for row in plan.open_rows)
    while plan.keep**most <= whole and tries > 1:
        most, tries = most + 1, survivors(tries, plan.keep)
    return most


def _halving(plan: TuningPlan, rungs: int) -> list[Rung]:
    """Each rung has `keep` times as much of what is saved as the one before; the last has all of it."""
    layout = []
    for place in range(rungs):
        share = plan.keep ** (rungs - 1 - place)
        if plan.search == "halving-rounds":
            layout.append(Rung(math.ceil(plan.rounds / share), plan.seeds, plan.keep))
        else:
            layout.append(Rung(plan.rounds, plan.seeds[: math.ceil(len(plan.seeds) / share)], plan.keep))
    return [*layout[:-1], Rung(layout[-1].rounds, layout[-1].seeds)]


def _too_small(plan: TuningPlan, least: Expense) -> str:
    needed = least.runs if plan.budget.unit == "runs" else least.rounds
    tries = sum(len(row.tries) for row in plan.open_rows)
    other = ", or search by halving-rounds" if plan.search == "grid" and plan.budget.unit == "rounds" else ""
    return (
        f"the budget of {plan.budget} is too small for one try each: {tries} tries need {needed} {plan.budget.unit} at least. "
        f"Raise it, try less{other}"
    )
