"""Runs as rows: one for each round, with its scores, what travelled, its seconds and every setting. As a pandas DataFrame, or as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.errors import BadInput
from unseen.report.collect import Run, collect
from unseen.report.spreadsheet import as_cell
from unseen.runs.record import Metrics, Record
from unseen.runs.selection import RULES
from unseen.runs.traffic import total_bytes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["rows_below", "rows_of", "rows_to_csv", "to_frame"]

Row = dict[str, Any]
_FIRST = ("run", "name", "method", "data", "target", "fold", "seed", "round", "rounds", "finished", "metric")
_LAST_OF = ("set.",)  # settings of methods differ from row to row, and come last


def rows_below(folder: Path) -> list[Row]:
    """The rows of every run below a folder, finished or not; their settings are told, so that they may differ in anything."""
    return [row for run in collect(folder, force=True, unfinished=True, repeats=True).runs for row in rows_of(run)]


def rows_of(run: Run) -> list[Row]:
    """A row for each round of a run.

    `name` is what tables call it. `source.accuracy` is the mean over the source domains' validation parts, `target.accuracy` over the
    unseen ones, `target.sketch.accuracy` one of them (the metric that counts alone); `own` and `held_out` likewise. `by_source` says
    whether that rule picks this round. The experiment's settings have their names, those of the method stand under `set.`
    """
    told, settings = run.about["experiment"], _settings(run.about)
    known: Row = {"run": run.folder, "name": run.name, **{key: told.get(key) for key in ("method", "data", "target")}, "fold": run.fold}
    picked = {rule.name: rule.picks(run.records) if run.finished else None for rule in RULES.values()}
    seconds = {timing["round"]: timing for timing in run.timings}
    rows = []
    for index, record in enumerate(run.records):
        took = seconds.get(record["round"])
        row = {**known, "seed": run.seed, "round": record["round"], "rounds": run.rounds, "finished": run.finished}
        row |= {"metric": record["metric"], **dict(_scores(record))}
        row |= {f"by_{name.replace('-', '_')}": index == at for name, at in picked.items()}
        row |= {f"{way}_bytes": total_bytes(record["travelled"], way) for way in ("sent", "received")}
        row |= {"train_seconds": took and took["train"], "score_seconds": took and took["score"], "missing": len(record["missing"])}
        rows.append({**row, **{key: value for key, value in settings.items() if key not in row}})
    return rows


def _scores(record: Record) -> Iterator[tuple[str, float]]:
    metric = record["metric"]
    means = {"source": record["source_mean"], "own": record.get("own_mean", {}), "held_out": _mean(record["held_out"])}
    for part, mean in {**means, "target": _mean(record["target"])}.items():
        yield from ((f"{part}.{name}", value) for name, value in mean.items())
    each: dict[str, Mapping[str, Metrics]] = {"source": record["source"], "own": record.get("own", {}), "target": record["target"]}
    for part, of in each.items():
        yield from ((f"{part}.{name}.{metric}", scores[metric]) for name, scores in of.items() if metric in scores)


def _mean(domains: Mapping[str, Metrics]) -> Metrics:
    """Domains alike; a metric that one of them lacks is left out."""
    rows = list(domains.values())
    names = [name for name in rows[0] if name != "samples" and all(name in row for row in rows)] if rows else []
    return {name: sum(row[name] for row in rows) / len(rows) for name in names}


def _settings(about: Mapping[str, Any]) -> Row:
    told, model = dict(about["experiment"]), about.get("model")
    fields = told.pop("set", {})
    if isinstance(model, Mapping) and "network" in model:
        told["network"] = model["network"]  # the one that was trained, where the experiment leaves it to the data set
    return {**dict(_flat(told)), **{f"set.{name}": value for name, value in _flat(fields)}}


def _flat(values: Mapping[str, Any], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """A part as its name, with its own settings below it: `sam`, `sam.rho`."""
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if not isinstance(value, Mapping) or not depth:
            yield key, value
            continue
        yield key, value.get("name")
        yield from ((f"{key}.{inner}", one) for inner, one in _flat({k: v for k, v in value.items() if k != "name"}, depth - 1))


def _columns(rows: Sequence[Row]) -> list[str]:
    """All columns of all rows: who it is, scores and traffic, then settings."""
    found = dict.fromkeys(key for row in rows for key in row)
    return [*(key for key in _FIRST if key in found), *sorted((key for key in found if key not in _FIRST), key=_place)]


def _place(column: str) -> tuple[int, str]:
    part = column.partition(".")[0]
    order = ["target", "source", "own", "held_out"]
    if column.startswith(_LAST_OF):
        return 9, column
    if "." in column and part in order:
        return order.index(part) + (0 if column.count(".") == 1 else 4), column
    return 8, ""  # the rest as it comes


def to_frame(rows: Sequence[Row]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise BadInput("a frame needs pandas, which is not installed; install it with: pip install 'unseen[pandas]'") from error
    return pd.DataFrame(rows, columns=_columns(rows))


def rows_to_csv(rows: Sequence[Row]) -> str:
    """The same rows for a spreadsheet; no cell of it is a formula."""
    columns, out = _columns(rows), io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(as_cell, columns))
    writer.writerows([as_cell(row.get(column, "")) for column in columns] for row in rows)
    return out.getvalue()
