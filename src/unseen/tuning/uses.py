"""Which trainings a plan needs, and which score of each a choice may rest on.

By held-out source, a try for the target t is trained without t and without h, one of the sources, and scored on h. Trained without the
same two domains, it serves the target h as well, by its score on t: the run is made once. A `Use` names the one score that it may
read, and cannot be made for the target's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unseen.bench.plan import BenchmarkCell, read_benchmark
from unseen.data.domain import DomainDataset
from unseen.data.own import open_data
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.experiment_options import options
from unseen.runs.record import read_records
from unseen.runs.selection import source_score
from unseen.tuning.plan import TuningPlan
from unseen.tuning.tries import Row

__all__ = ["Use", "data_of", "score_of", "uses_of"]

_FEWEST = 3  # sources of a target, where one of them is held out: two are left to train on


@dataclass(frozen=True)
class Use:
    """One score for one choice: of which try, for which target (None: one choice for all), on which domain (None: source validation)."""

    row: str
    number: int  # of the try
    target: str | None
    on: str | None
    seed: int
    cell: BenchmarkCell

    def __post_init__(self) -> None:
        if self.on is not None and self.on == self.target:
            raise ValueError(f"the choice for {self.target!r} would rest on its own score")


def uses_of(plan: TuningPlan) -> list[Use]:
    """Every score that the plan asks for. Runs that are alike have one folder."""
    domains = tuple(data_of(plan).names) if plan.holds_out or (plan.targets is None and not plan.single_source) else ()
    if plan.holds_out:
        _refuse_few(plan, domains)
    used = [use for row in plan.open_rows for number in range(len(row.tries)) for use in _uses(plan, row, number, domains)]
    return _with_folders(plan, used)


def score_of(use: Use, out: Path, rounds: int) -> float | None:
    """The score in that round; None where there is none. Nothing else of the unseen domains is read for a choice."""
    records = read_records(out / use.cell.folder / "records.jsonl")
    if len(records) < rounds:
        return None
    record = records[rounds - 1]
    if use.on is None:
        return source_score(record)
    return {**record["target"], **record["held_out"]}.get(use.on, {}).get(record["metric"])


def data_of(plan: TuningPlan) -> DomainDataset:
    """The data of the tries."""
    data, problem = next(s for s in options() if s.name == "data").read(plan.around.get("data", "styled-digits"))
    if problem:
        raise BadInput(problem)
    return open_data(data, plan.around.get("size"))


def _sources(plan: TuningPlan, domains: Sequence[str]) -> list[str]:
    """The domains that may train: all, or those that the plan names."""
    named = plan.around.get("sources")
    return [name.strip() for name in str(named).split(",")] if named else list(domains)


def _refuse_few(plan: TuningPlan, domains: Sequence[str]) -> None:
    sources = _sources(plan, domains)
    for target in (None,) if plan.choice == "new-site" else plan.targets or domains:
        others = [name for name in sources if name != target]
        if len(others) < _FEWEST:
            whose = f"{target!r} has" if target else "there are"
            names = f" ({', '.join(others)})" if others else ""
            raise BadInput(
                f"the rule {plan.rule} needs {_FEWEST} sources, one held out and two to train on; {whose} {len(others)}{names}. "
                "Use the rule source"
            )


def _uses(plan: TuningPlan, row: Row, number: int, domains: Sequence[str]) -> Iterator[Use]:
    """With the experiment of each as its target needs it; folders are given later."""
    tried = row.with_fields(row.tries[number].fields)
    tried["set"] = {**tried["set"], **plan.further.get(row.method, {})}
    tried["label"] = f"{row.label} @ {row.tries[number].name}"
    around = {key: value for key, value in plan.around.items() if key not in tried or key == "set"}  # a row's `set` adds to the plan's
    one = {**around, "methods": [tried], "rounds": plan.rounds, "seeds": list(plan.seeds)}
    nobody = plan.choice != "per-target"
    if not plan.holds_out:
        targets = {} if plan.single_source else {"targets": list(plan.targets or domains)}
        for cell in read_benchmark({**one, **targets}):
            target = cell.experiment.target
            yield Use(row.label, number, None if nobody else target, None, cell.experiment.seed, cell)
        return
    sources = _sources(plan, domains)
    if plan.choice == "new-site":
        for cell in read_benchmark({**one, "targets": sources}):
            yield Use(row.label, number, None, cell.experiment.target, cell.experiment.seed, cell)
        return
    for target in plan.targets or domains:
        for held_out in (name for name in sources if name != target):
            for cell in read_benchmark({**one, "targets": [target], "held_out": held_out}):
                yield Use(row.label, number, None if nobody else target, held_out, cell.experiment.seed, cell)


def _with_folders(plan: TuningPlan, used: Sequence[Use]) -> list[Use]:
    """The same uses, each with its run in one order and one place: what is trained alike is run once."""
    rows = {row.label: place for place, row in enumerate(plan.rows, 1)}
    names = {(row.label, n): one.name for row in plan.rows for n, one in enumerate(row.tries)}
    placed: list[Use] = []
    alike: dict[str, Experiment] = {}
    for use in used:
        experiment, pair = _in_one_order(use.cell.experiment)
        kind = f"from-{_slug(experiment.source)}" if experiment.source else f"without-{'+'.join(map(_slug, pair))}"
        where = f"{rows[use.row]:02d}-{_slug(use.row)}/{use.number + 1:02d}-{_slug(names[use.row, use.number])}/{kind}"
        endings = (
            "",
            f"-as-for-{_slug(use.cell.experiment.target)}",
            *(f"-{n}" for n in range(2, 100)),
        )  # by_target, or names that look alike
        folders = (f"{where}{ending}/seed-{use.seed}" for ending in endings)
        folder = next(folder for folder in folders if alike.setdefault(folder, experiment) == experiment)
        placed.append(replace(use, cell=BenchmarkCell(experiment, folder)))
    return placed


def _in_one_order(experiment: Experiment) -> tuple[Experiment, tuple[str, ...]]:
    """Of the two domains that do not train, the first by name is called the target: which is which decides nothing in training."""
    if experiment.target is None or experiment.held_out is None:
        return experiment, (experiment.target,) if experiment.target else ()
    first, second = sorted((experiment.target, experiment.held_out))
    trained = [name for name in (experiment.sources or "").split(",") if name.strip() not in ("", first, second)]
    return replace(experiment, target=first, held_out=second, sources=",".join(trained) or None), (first, second)


def _slug(name: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", name or "")[:60].strip(".-") or "x"
