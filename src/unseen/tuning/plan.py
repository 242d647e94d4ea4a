"""A plan of `unseen tune`: a file for `unseen bench` whose rows leave something open, and `[tune]`, which says how it is decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unseen.errors import BadInput, nearest
from unseen.experiment_options import options
from unseen.tuning.fitting import unfit
from unseen.tuning.tries import FREE, Row, around_the, read_row

__all__ = ["BUDGETS", "CHOICES", "RULES", "SEARCHES", "TuningBudget", "TuningPlan", "read_budget", "read_plan"]

RULES = ("source", "held-out", "held-out-worst")
CHOICES = ("one", "per-target", "new-site")
SEARCHES = ("grid", "halving-rounds", "halving-seeds")
BUDGETS = ("runs", "rounds", "minutes")
_OF_TUNE = ("rule", "choice", "search", "keep", "most", "rounds", "seeds", "targets", "budget", "set")
_NOT_AROUND = ("tune", "methods", "paper_numbers", "seeds", "seed", "targets", "target", "rounds")


@dataclass(frozen=True)
class TuningBudget:
    """What the tries may cost, in one of three units."""

    unit: str = "runs"
    amount: float = math.inf

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit}"


@dataclass(frozen=True)
class TuningPlan:
    """A plan, read and checked. Which runs it asks for is `unseen.tuning.uses`."""

    values: Mapping[str, Any]  # the whole file, with [tune]
    rows: tuple[Row, ...]
    rule: str
    choice: str
    search: str
    keep: int  # of halving: one in so many goes on
    rounds: int
    seeds: tuple[int, ...]
    targets: tuple[str, ...] | None  # whose choice is made; None: every domain's
    budget: TuningBudget
    around: Mapping[str, Any]  # keys of the experiment that all tries share, and `set`
    further: Mapping[str, Mapping[str, Any]]  # by method: fields of the tries alone

    @property
    def single_source(self) -> bool:
        return self.around.get("protocol") == "single-source"

    @property
    def holds_out(self) -> bool:
        return self.rule != "source"

    @property
    def open_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.tries)


def read_plan(values: Mapping[str, Any], budget: TuningBudget | None = None) -> TuningPlan:
    """A plan from the values of its file; `budget` goes before its own. Every mistake is told at once."""
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    how = values.get("tune", {})
    if not isinstance(how, Mapping):
        raise BadInput(f"tune is {how!r}; expected a table [tune]")
    strange = _misplaced(values, how)
    rows, problems = _read_rows(values.get("methods"), how.get("most"))
    try:
        budget = budget or read_budget(how.get("budget"))
    except BadInput as bad:
        problems += bad.problems
    around = {
        **{key: value for key, value in values.items() if key not in _NOT_AROUND},
        **{key: value for key, value in how.items() if key not in _OF_TUNE and key in _known()},
    }
    further = _tables(how.get("set"))
    problems += _idle(further, values.get("methods"))
    problems += unfit(rows, {**around, "paper_numbers": values.get("paper_numbers", {})}, further)
    if strange or budget is None:
        raise BadInput([*strange, *problems])
    plan = TuningPlan(
        values=values,
        rows=rows,
        rule=how.get("rule", "source"),
        choice=how.get("choice", "one"),
        search=how.get("search", "grid"),
        keep=how.get("keep", 3),
        rounds=how.get("rounds", values.get("rounds", 20)),
        seeds=tuple(how.get("seeds", values.get("seeds", [values.get("seed", 0)]))),
        targets=_targets(how, values),
        budget=budget,
        around=around,
        further=further,
    )
    problems += [*_contradictions(plan), *_vain(plan)]
    if problems:
        raise BadInput(problems)
    return plan


def _tables(value: Any) -> dict[str, Mapping[str, Any]]:
    """What is a table in a table of tables."""
    return {str(key): table for key, table in value.items() if isinstance(table, Mapping)} if isinstance(value, Mapping) else {}


def _idle(further: Mapping[str, Any], methods: Any) -> list[str]:
    """Fields of the tries for a method that no row has."""
    rows = methods if isinstance(methods, list) else []
    names = {str(row.get("method")) if isinstance(row, Mapping) else str(row) for row in rows}
    return [f"[tune.set.{name}]: no row has that method{nearest(name, names)}" for name in further if name not in names]


def _known() -> set[str]:
    """The keys of the experiment that [tune] may have."""
    return {*(s.name for s in options())} - {"held_out", "target", "seed", "label", "preset"}


def read_budget(value: Any) -> TuningBudget:
    """`{ minutes = 30 }`, or nothing: no bound."""
    if value is None:
        return TuningBudget()
    if isinstance(value, Mapping) and len(value) == 1:
        ((unit, amount),) = value.items()
        if unit in BUDGETS and type(amount) in (int, float) and math.isfinite(amount) and amount > 0:
            return TuningBudget(unit, amount)
    raise BadInput(f"budget is {value!r}; expected one of runs, rounds or minutes with a number above 0, such as {{ runs = 40 }}")


def _read_rows(methods: Any, most: Any) -> tuple[tuple[Row, ...], list[str]]:
    """The rows that can be read, and what is wrong with them and the others."""
    rows: list[Row] = []
    problems: list[str] = []
    unread: set[str] = set()
    for value in methods if isinstance(methods, list) else []:
        try:
            rows.append(read_row(value, most if type(most) is int else None))
        except BadInput as bad:
            problems += bad.problems
            unread.add(str(value.get("label", value.get("method")) if isinstance(value, Mapping) else value))
    labels = [row.label for row in rows]
    problems += [f"two rows are called {label!r}; give them different labels" for label in dict.fromkeys(labels) if labels.count(label) > 1]
    for row in rows:
        for key, other in (("rate_of", row.rate_of), ("choice_of", row.choice_of)):
            followed = next((r for r in rows if r.label == other), None)
            if other is None or other in unread:
                continue
            if followed is None or not followed.tries:
                with_choice = [r.label for r in rows if r.tries]
                problems.append(f"{row.label}: {key} names {other!r}, which leaves nothing open{nearest(other, with_choice)}")
            elif key == "rate_of" and followed.tries[0].rate is None:
                problems.append(f"{row.label}: rate_of names {other!r}, which has no rates")
    if rows and not problems and not any(row.tries for row in rows):
        problems.append(f"nothing to choose: no row leaves anything open; give one of them {', '.join(FREE[:-1])} or {FREE[-1]}")
    for row in rows:
        if len(row.tries) == 1:
            problems.append(f"{row.label}: only one try ({row.tries[0].name}), so there is no choice; give another value, or set it")
    return tuple(rows), problems


def _targets(how: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, ...] | None:
    given = how.get("targets", values.get("targets", [values["target"]] if "target" in values else "all"))
    return None if given == "all" else tuple(given)


def _misplaced(values: Mapping[str, Any], how: Mapping[str, Any]) -> list[str]:
    problems = []
    if not isinstance(values.get("methods"), list) or not values["methods"]:
        problems.append(
            f'methods is {values.get("methods")!r}; expected a list of rows such as {{ method = "fedavg", rates = [1e-3, 1e-2] }}'
        )
    known = {*_OF_TUNE, *_known()}
    problems += [f"[tune] has no key {key!r}{nearest(str(key), known)}" for key in how if key not in known]
    for key, allowed in (("rule", RULES), ("choice", CHOICES), ("search", SEARCHES)):
        if key in how and how[key] not in allowed:
            problems.append(f"[tune] {key} is {how[key]!r}; expected {', '.join(allowed[:-1])} or {allowed[-1]}")
    for key, low in (("keep", 2), ("most", 2), ("rounds", 1)):
        if key in how and (type(how[key]) is not int or how[key] < low):
            problems.append(f"[tune] {key} is {how[key]!r}; expected a whole number, at least {low}")
    for where, table in (("", values), ("[tune] ", how)):
        seeds = table.get("seeds", [0])
        if not isinstance(seeds, list) or not seeds or not all(type(s) is int and s >= 0 for s in seeds) or len(set(seeds)) < len(seeds):
            problems.append(f"{where}seeds is {seeds!r}; expected a list of different whole numbers, at least 0")
        targets = table.get("targets", "all")
        if targets != "all" and not (
            isinstance(targets, list) and targets and all(isinstance(t, str) for t in targets) and len(set(targets)) == len(targets)
        ):
            problems.append(f'{where}targets is {targets!r}; expected a list of different domains, or "all"')
        if not isinstance(table.get("set", {}), Mapping):
            problems.append(f"{where}set is {table['set']!r}; expected a table")
    if type(values.get("rounds", 1)) is not int or values.get("rounds", 1) < 1:
        problems.append(f"rounds is {values['rounds']!r}; expected a whole number, at least 1")
    if not isinstance(values.get("target", ""), str):
        problems.append(f"target is {values['target']!r}; expected a domain")
    further = how.get("set", {})
    if isinstance(further, Mapping) and not all(isinstance(fields, Mapping) for fields in further.values()):
        problems.append(f"[tune.set] is {further!r}; expected a table of fields by method, such as [tune.set.fedavg]")
    return problems


def _contradictions(plan: TuningPlan) -> list[str]:
    problems = []
    if plan.single_source and plan.holds_out:
        problems.append(f"rule {plan.rule} holds one of several sources out, and single-source has one; use the rule source")
    if plan.single_source and plan.choice != "one":
        problems.append(f"choice is {plan.choice!r}, and single-source names no target; use the choice one")
    if plan.holds_out and plan.around.get("held_out") is not None:
        problems.append(f"held_out is {plan.around['held_out']!r}; the rule {plan.rule} holds each source out in turn, so leave it away")
    if plan.choice == "new-site" and not plan.holds_out:
        problems.append("choice is 'new-site', for which every domain is a source; the rule source needs an unseen one: use held-out")
    if plan.choice == "new-site" and plan.around.get("sources") is not None:
        problems.append(f"sources is {plan.around['sources']!r}, and the choice new-site takes every domain as one; leave sources out")
    if plan.budget.unit == "minutes" and plan.search != "grid":
        problems.append(f"search {plan.search} is laid out before it begins; give its budget in runs or rounds, or search by grid")
    if plan.choice == "per-target" and plan.values.get("tune", {}).get("targets", "all") != "all":
        problems.append("choice per-target needs tries for every target of the table; leave targets out of [tune]")
    return problems


def _vain(plan: TuningPlan) -> list[str]:
    """Fields that are tried and then set by something else."""
    problems = []
    for row in plan.open_rows:
        tried = {key for one in row.tries for key in one.fields}
        for key in sorted(tried & plan.further.get(row.method, {}).keys()):
            problems.append(f"{row.label}: {key} is tried, and [tune.set.{row.method}] sets it as well; leave it out of one of them")
        around = sorted(tried & around_the(row.method))
        if plan.choice == "per-target" and around:
            problems.append(f"{row.label}: {', '.join(around)} cannot differ between targets in one table; use the choice one, or new-site")
        strange = [key for key in around if key in ("target", "source", "sources", "held_out", "seed", "rounds", "label", "preset", "data")]
        problems += [f"{row.label}: {key} says what is run, not how; it cannot be tried" for key in strange]
    return problems
