"""What would stop the tries, or the table that comes of them, looked for before the first run and before a folder is claimed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from unseen.bench import plan as bench
from unseen.bench.plan import BenchmarkCell
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput, nearest
from unseen.tuning.fitting import cells_of
from unseen.tuning.plan import TuningPlan
from unseen.tuning.uses import Use, data_of
from unseen.world import build_world

__all__ = ["refuse_early"]


def refuse_early(plan: TuningPlan, uses: Sequence[Use], out: Path) -> None:
    """Domains, networks and weights that are not there. Runs that have begun were looked at then."""
    data = data_of(plan)
    problems = list(dict.fromkeys(_strangers(plan, data)))
    closed = [row for row in plan.rows if not row.tries]  # their first run comes after all tries, with the table
    left = [cell for row in closed for cell in cells_of(row, plan.rows, plan.around, {}, data.names[:1])]
    try:
        bench.refuse_early([*(use.cell for use in uses), *left], out)
    except BadInput as bad:
        problems += [problem for problem in bad.problems if problem not in problems]
    if problems:
        raise BadInput(problems)
    if plan.rule == "source":
        _refuse_unvalidated([use.cell for use in uses])


def _refuse_unvalidated(cells: Sequence[BenchmarkCell]) -> None:
    """Validation 0 leaves nothing to choose by, unless the data bring a validation part of their own."""
    looked: set[str] = set()
    for experiment in (cell.experiment for cell in cells if not cell.experiment.validation):
        kind = str((experiment.data, experiment.target, experiment.source, experiment.partition))
        if kind in looked:
            continue
        looked.add(kind)
        if not any(len(holding.validation) for holding in build_world(experiment).holdings.values()):
            raise BadInput(
                "validation is 0, and the rule source judges tries by the validation parts of the domains that train; "
                "expected a share above 0, such as 0.1, or the rule held-out"
            )


def _strangers(plan: TuningPlan, data: DomainDataset) -> Iterator[str]:
    """Names of domains that the data do not have, in the words of a run."""
    for name in _named(plan):
        if name not in data.names:
            yield f"no domain of {data.name} {name!r}{nearest(name, data.names)}"


def _named(plan: TuningPlan) -> Iterator[str]:
    yield from plan.targets or ()
    yield from (name.strip() for name in str(plan.around.get("sources") or "").split(",") if name.strip())
    if "data" not in plan.values.get("tune", {}):  # the table is over the same data as the tries
        targets = plan.values.get("targets", "all")
        yield from targets if targets != "all" else ()
        yield from (name for row in plan.rows for name in row.given.get("by_target", {}))
