"""The rows of a plan held against their methods: each with everything that it may come to have, before anything is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unseen.bench.plan import BenchmarkCell, read_benchmark
from unseen.errors import BadInput
from unseen.tuning.tries import Row, at_rate

__all__ = ["cells_of", "unfit"]

_ANY = "any domain"  # stands for a target that no `by_target` names, where the data are not looked at


def unfit(rows: Sequence[Row], around: Mapping[str, Any], further: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Fields that a method does not have, and values that it does not take. What is said of every row is said once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        targets = [*dict.fromkeys([*row.given.get("by_target", {}), _ANY])]
        try:
            cells_of(row, rows, around, further, targets)
        except BadInput as bad:
            for problem in bad.problems:
                found.setdefault(problem, []).append(row.label)
    return [problem if len(labels) == len(rows) > 1 else f"{', '.join(labels)}: {problem}" for problem, labels in found.items()]


def cells_of(
    row: Row, rows: Sequence[Row], around: Mapping[str, Any], further: Mapping[str, Mapping[str, Any]], targets: Sequence[str]
) -> list[BenchmarkCell]:
    """A run of the row for each target, with everything in turn that it tries or may take from another row."""
    cells: list[BenchmarkCell] = []
    problems: list[str] = []
    for fields in _fillings(row, rows):
        filled = row.with_fields(fields)
        if row.tries:
            filled["set"] = {**filled["set"], **further.get(row.method, {})}
        beside = {key: value for key, value in around.items() if key not in filled or key == "set"}
        try:
            cells += read_benchmark({**beside, "methods": [filled], "targets": list(targets)})
        except BadInput as bad:
            problems += [problem for problem in bad.problems if problem not in problems]
    if problems:
        raise BadInput(problems)
    return cells


def _fillings(row: Row, rows: Sequence[Row]) -> Iterator[Mapping[str, Any]]:
    followed = next((one for one in rows if one.label in (row.rate_of, row.choice_of)), None)
    if row.rate_of is not None:
        rates = [one.rate for one in followed.tries if one.rate is not None] if followed else []
        yield from (at_rate(row.rate_fields, rate) for rate in dict.fromkeys(rates or [1.0]))
    else:
        tries = row.tries or (followed.tries if followed else ())
        yield from (one.fields for one in tries) if tries else ({},)
