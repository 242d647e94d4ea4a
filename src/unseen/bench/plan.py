"""A benchmark: methods x folds x seeds, each cell a run of its own that can be skipped, resumed or fail alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.data.own import open_data
from unseen.errors import BadInput, choose
from unseen.experiment import Experiment, read_experiment
from unseen.experiment_options import options
from unseen.files import write_atomically
from unseen.methods import METHODS
from unseen.runs.listing import BENCH_FILE
from unseen.world import build_world

__all__ = ["BenchmarkCell", "read_benchmark", "refuse_early", "rounds_of", "write_plan"]


_OF_THE_BENCHMARK = ("methods", "targets", "seeds", "set", "method", "target", "seed", "paper_numbers")


@dataclass(frozen=True)
class BenchmarkCell:
    """One run of a benchmark, and its folder below the benchmark's."""

    experiment: Experiment
    folder: str


def rounds_of(cells: Sequence[BenchmarkCell]) -> dict[str, int]:
    """How many rounds each run has, by its folder."""
    return {cell.folder: cell.experiment.rounds for cell in cells}


def read_benchmark(values: Mapping[str, Any], seeds: Sequence[int] | None = None, rows: Sequence[str] | None = None) -> list[BenchmarkCell]:
    """The cells that a file asks for, of all seeds and rows or of some. Every mistake in it is reported at once."""
    values = {key.replace("-", "_"): value for key, value in values.items()}
    common = {k: v for k, v in values.items() if k not in _OF_THE_BENCHMARK}
    problems = _misplaced(values)
    variants = values.get("methods", [values["method"]] if "method" in values else [])
    wanted = list(seeds) if seeds is not None else values.get("seeds", [values.get("seed", 0)])
    cells: list[BenchmarkCell] = []
    for variant in variants if isinstance(variants, list) else []:
        try:
            row = _variant(variant, values.get("set", {}))
            by_target = row.pop("by_target", {})  # fields that differ from one unseen domain to the next, such as an equal share of work
            for fold in _folds(values) if not problems else []:
                own = {**row["set"], **by_target.get(fold.get("target", ""), {})}
                for seed in wanted:
                    experiment = read_experiment({**common, **fold, **row, "set": own, "seed": seed}, own_code=True)
                    name = experiment.target or experiment.source or "all"
                    cells.append(BenchmarkCell(experiment, f"{_slug(experiment.name)}/{_slug(name)}/seed-{seed}"))
        except BadInput as bad:
            problems += [p for p in bad.problems if p not in problems]
    folders = [cell.folder for cell in cells]
    for folder in sorted({f for f in folders if folders.count(f) > 1}):
        problems.append(f"two rows of the table would both be written to {folder}; give them different labels")
    if not problems and not cells:
        problems.append("nothing to run: give methods = [...], targets = [...] and seeds = [...]")
    if problems:
        raise BadInput(problems)
    return cells if rows is None else _of_rows(cells, rows)


def refuse_early(cells: Sequence[BenchmarkCell], out: Path) -> None:
    """What would stop many runs is said once, before any of them begins: data, domains, networks and weights that are not there.

    One run of each kind is looked at. Runs that have begun were looked at then.
    """
    problems: list[str] = []
    looked: set[str] = set()
    for cell in cells:
        experiment = cell.experiment
        around = (experiment.data, experiment.size, experiment.network, experiment.weights)
        kinds = {str(around), str((*around[:2], experiment.target, experiment.source))}  # a network on data, and a fold of them
        if kinds <= looked or (out / cell.folder / "run.json").exists():
            continue
        looked |= kinds
        try:
            world = build_world(experiment)
            if experiment.weights is not None:
                world.fresh("task")
        except BadInput as bad:
            problems += [problem for problem in bad.problems if problem not in problems]
    if problems:
        raise BadInput(problems)


def _of_rows(cells: list[BenchmarkCell], rows: Sequence[str]) -> list[BenchmarkCell]:
    labels = list(dict.fromkeys(cell.experiment.name for cell in cells))
    for row in rows:
        choose("row", row, labels)
    return [cell for cell in cells if cell.experiment.name in rows]


def _misplaced(values: Mapping[str, Any]) -> list[str]:
    problems = []
    for key, kind in (("methods", list), ("seeds", list)):
        if key in values and not isinstance(values[key], kind):
            problems.append(f"{key} is {values[key]!r}; expected a list")
    if "targets" in values and not isinstance(values["targets"], list) and values["targets"] != "all":
        problems.append(f'targets is {values["targets"]!r}; expected a list of domains, or "all"')
    seeds = values.get("seeds", [])
    if isinstance(seeds, list) and not all(type(s) is int for s in seeds):
        problems.append(f"seeds is {seeds!r}; expected whole numbers")
    if not isinstance(values.get("set", {}), Mapping):
        problems.append(f"set is {values['set']!r}; expected a table")
    return problems + _wrong_numbers(values.get("paper_numbers", {}))


def _wrong_numbers(printed: Any) -> list[str]:
    """`[paper_numbers]` is a table of rows: a row's label in our table, and what the paper prints in each of its columns."""
    example = '"FedSB" = { photo = 95.1, average = 83.4 }'
    if not isinstance(printed, Mapping):
        return [f"paper_numbers is {printed!r}; expected a table of rows such as {example}"]
    wrong = [label for label, row in printed.items() if not _is_row(row)]
    return [f"paper_numbers.{label} is {printed[label]!r}; expected numbers by column, such as {example}" for label in wrong]


def _is_row(row: Any) -> bool:
    return isinstance(row, Mapping) and all(type(value) in (int, float) for value in row.values())


def _variant(variant: Any, common: Any) -> dict[str, Any]:
    """One row of the table: a method's name, or a table {method, label, preset, set, by_target}."""
    row: dict[str, Any] = {"method": variant} if isinstance(variant, str) else dict(variant) if isinstance(variant, Mapping) else {}
    if not isinstance(row.get("method"), str):
        raise BadInput(f'methods holds {variant!r}; expected a name, or a table such as {{ method = "fedsb", label = "..." }}')
    tables = {k: v for k, v in common.items() if isinstance(v, Mapping) and k in METHODS}
    shared = {k: v for k, v in common.items() if k not in tables}
    return {**row, "set": {**shared, **tables.get(str(row["method"]), {}), **row.get("set", {})}}


def _folds(values: Mapping[str, Any]) -> list[dict[str, str]]:
    if values.get("protocol") == "single-source":
        sources = values.get("source")
        return [{"source": s} for s in (sources if isinstance(sources, list) else [sources])] if sources else [{}]
    targets = values.get("targets", [values["target"]] if "target" in values else "all")
    if targets == "all":
        data, _ = next(s for s in options() if s.name == "data").read(values.get("data", "styled-digits"))
        targets = open_data(data, values.get("size")).names
    return [{"target": t} for t in targets]


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-") or "run"


def write_plan(values: Mapping[str, Any], cells: Sequence[BenchmarkCell], out: Path) -> None:
    """Beside the runs: which there are to be, and what the paper prints, for the report."""
    printed = values.get("paper_numbers", values.get("paper-numbers", {}))
    plan = {"runs": [cell.folder for cell in cells], "paper_numbers": printed}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / BENCH_FILE, json.dumps(plan, indent=1) + "\n")
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        raise BadInput(f"{out} cannot be written ({error.strerror}); choose another --out") from error
