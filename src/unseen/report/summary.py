"""What runs did besides their scores, gathered by method: learning curves, traffic, time, partitions, settings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unseen.report.charts import Line
from unseen.report.collect import Run
from unseen.runs.selection import RULES, source_score
from unseen.runs.traffic import total_bytes

__all__ = [
    "Division",
    "RunRow",
    "Sent",
    "client_bytes",
    "curves",
    "partitions",
    "round_bytes",
    "run_rows",
    "settings",
    "settings_beside",
    "time_split",
    "traffic",
]


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    return groups


def curves(runs: Sequence[Run], numbers: Mapping[str, int]) -> dict[str, list[Line]]:
    """By unseen domain: each method's mean over its finished seeds with their range, and every unfinished run alone.

    A mean is of one round: a round that lacks the metric in one of the seeds is left out.
    """
    finished: dict[tuple[str, str], list[dict[int, float]]] = {}
    charts: dict[str, list[Line]] = {}
    for run in runs:
        for target in run.about["targets"]:
            title = target if target == run.fold else f"{run.fold} → {target}"
            lines = charts.setdefault(title, [])
            values = {r["round"]: 100 * r["target"][target][r["metric"]] for r in run.records if r["metric"] in r["target"].get(target, {})}
            if run.finished:
                finished.setdefault((title, run.name), []).append(values)
            else:
                label = f"{run.name}, seed {run.seed}: {len(values)} of {run.rounds} rounds"
                lines.append(Line(label, numbers[run.name], list(values.items()), open=True))
    for (title, name), rows in finished.items():
        rounds = [number for number in rows[0] if all(number in row for row in rows)]  # those that every seed has
        steps = [[row[number] for row in rows] for number in rounds]
        points = [(number, statistics.fmean(values)) for number, values in zip(rounds, steps, strict=True)]
        band = [(min(values), max(values)) for values in steps] if len(rows) > 1 else []
        charts[title].append(Line(f"{name} ({len(rows)} seed{'s' if len(rows) > 1 else ''})", numbers[name], points, band))
    return charts


@dataclass(frozen=True)
class Sent:
    """What one field carried, over the runs of a method. Bytes a message are one client's, bytes in all are those of one whole run."""

    method: str
    direction: str
    kind: str
    field: str
    grows: bool
    a_message: float
    in_all: float


def traffic(runs: Sequence[Run]) -> list[Sent]:
    rows = []
    for name, group in by_method(runs).items():
        totals: dict[tuple[str, str, str, bool], int] = {}
        messages: dict[tuple[str, str, str, bool], int] = {}
        for row in (row for run in group for record in run.records for row in record["travelled"]):
            key = (row["direction"], row["kind"], f"{row['task']}: {row['field']}", row["grows"])
            totals[key] = totals.get(key, 0) + row["bytes"] * len(row["clients"])
            messages[key] = messages.get(key, 0) + len(row["clients"])
        rows += [
            Sent(name, *key, a_message=totals[key] / messages[key], in_all=totals[key] / len(group))
            for key in sorted(totals, key=lambda key: (key[0] == "received", -totals[key]))
        ]
    return rows


def client_bytes(runs: Sequence[Run]) -> dict[str, dict[str, tuple[float, float]]]:
    """By method and client: bytes that left it and that reached it, the mean over the runs in which it took part."""
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for name, group in by_method(runs).items():
        sums: dict[str, list[float]] = {}
        part_in: dict[str, int] = {}
        for run in group:
            here: set[str] = set()
            for row in (row for record in run.records for row in record["travelled"]):
                for client in row["clients"]:
                    sums.setdefault(client, [0.0, 0.0])[row["direction"] != "sent"] += row["bytes"]
                    here.add(client)
            for client in here:
                part_in[client] = part_in.get(client, 0) + 1
        table[name] = {client: (sums[client][0] / part_in[client], sums[client][1] / part_in[client]) for client in sorted(sums)}
    return table


def round_bytes(runs: Sequence[Run], numbers: Mapping[str, int]) -> list[Line]:
    """Bytes that left all clients in each round, in MB: the mean over a method's runs."""
    lines = []
    for name, group in by_method(runs).items():
        rows = [[total_bytes(record["travelled"], "sent") / 1e6 for record in run.records] for run in group]
        points = [(number, statistics.fmean(values)) for number, values in enumerate(zip(*rows, strict=False), 1)]
        lines.append(Line(name, numbers[name], points))
    return lines


def time_split(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """By method: mean seconds of a round, by what they were spent on."""
    table = {}
    for name, group in by_method(runs).items():
        timings = [timing for run in group for timing in run.timings]
        if timings:
            table[name] = {part: statistics.fmean(timing[part] for timing in timings) for part in ("train", "score")}
    return table


@dataclass(frozen=True)
class Division:
    """Who holds what, in some folds and seeds. Counts by class are known of clients on one machine: `by_class` is empty elsewhere."""

    heading: str
    clients: dict[str, dict[str, Any]]
    labels: tuple[str, ...]

    @property
    def by_class(self) -> dict[str, list[int]]:
        known = {name: client["classes"] for name, client in self.clients.items() if "classes" in client}
        return known if len(known) == len(self.clients) else {}


def partitions(runs: Sequence[Run]) -> list[Division]:
    """Every division of the samples that occurs, with the folds and seeds it was used in."""
    found: dict[str, tuple[Run, list[int]]] = {}
    for run in runs:
        _, seeds = found.setdefault(f"{run.fold} {run.about.get('clients', {})}", (run, []))
        seeds += [run.seed] if run.seed not in seeds else []
    return [
        Division(
            f"unseen: {run.fold}; {_listed(sorted(seeds))}",
            run.about.get("clients", {}),
            tuple(run.about.get("model", {}).get("labels", ())),
        )
        for run, seeds in sorted(found.values(), key=lambda one: (one[0].fold, min(one[1])))
    ]


def _listed(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


@dataclass(frozen=True)
class RunRow:
    """One run in the page's list. A score is the mean over its unseen domains, in percent."""

    name: str
    fold: str
    seed: int
    rounds: str
    finished: bool
    scores: dict[str, float | None]  # by selection rule
    picked: int | None  # the round that source validation picks
    source: float | None  # source validation in that round
    seconds: float | None
    sent: float
    folder: str


def run_rows(runs: Sequence[Run]) -> list[RunRow]:
    """Every run as a row, the unfinished ones with what they have so far."""
    rows = []
    for run in runs:
        count, picked = len(run.records), RULES["source"].picks(run.records)
        scores = {rule: list(run.cell.scores(rule).values()) for rule in ("last", "source", "oracle")} if run.records else {}
        source = source_score(run.records[picked]) if picked is not None else None
        rows.append(
            RunRow(
                run.name,
                run.fold,
                run.seed,
                str(count) if run.finished else f"{count} of {run.rounds}",
                run.finished,
                {rule: statistics.fmean(values) if values else None for rule, values in scores.items()},
                None if picked is None else run.records[picked]["round"],
                None if source is None else 100 * source,
                sum(timing["train"] + timing["score"] for timing in run.timings) if run.timings else None,
                sum(total_bytes(record["travelled"], "sent") for record in run.records),
                run.folder,
            )
        )
    return rows


def settings_beside(runs: Sequence[Run]) -> dict[str, str]:
    """By method, what stands behind our numbers where a paper's stand beside them: network, pixels, rounds, seeds, and departures."""
    told = {}
    for name, group in by_method(runs).items():
        flat, about = _flat(group[0]), group[0].about
        seeds = len({run.seed for run in group})
        size = f", {flat['size']} px" if flat.get("size", "none") != "none" else ""
        rounds = f"{group[0].rounds} round{'' if group[0].rounds == 1 else 's'}, {seeds} seed{'' if seeds == 1 else 's'}"
        departures = [f"{key} {_text(here)} (paper: {_text(paper)})" for key, (paper, here) in about.get("departures", {}).items()]
        told[name] = f"{flat.get('network', 'none')}{size}, {rounds}" + (f"; departs in {', '.join(departures)}" if departures else "")
    return told


_VARIES = ("seed", "target", "source", "label")  # what a table's columns and seeds vary by design


def settings(runs: Sequence[Run]) -> tuple[dict[str, str], dict[str, dict[str, str]], dict[str, dict[str, tuple[str, str]]]]:
    """What all runs share; by method, what is its own (all values that occur); by method, where it departs from its paper."""
    flat = {name: [_flat(run) for run in group] for name, group in by_method(runs).items()}
    tables = [table for group in flat.values() for table in group]
    common = {key: value for key, value in tables[0].items() if all(table.get(key) == value for table in tables)}
    own = {
        name: {
            key: " | ".join(dict.fromkeys(table[key] for table in group if key in table))
            for key in dict.fromkeys(key for table in group for key in table)
            if key not in common
        }
        for name, group in flat.items()
    }
    departures = {
        name: {key: (_text(a), _text(b)) for run in group for key, (a, b) in run.about.get("departures", {}).items()}
        for name, group in by_method(runs).items()
    }
    return common, own, departures


def _flat(run: Run) -> dict[str, str]:
    experiment = run.about["experiment"]
    values = {key: value for key, value in experiment.items() if key not in (*_VARIES, "set")}
    model = run.about.get("model", {})  # what "none" and "auto" came to
    known = {"network": model.get("network"), "size": max(model["size"]) if "size" in model else None, "augment": run.about.get("augment")}
    values |= {key: value for key, value in known.items() if value is not None and values.get(key) in (None, "auto")}
    values |= {f"set.{key}": value for key, value in experiment["set"].items()}
    values |= {f"version of {key}": value for key, value in run.about.get("versions", {}).items()}
    return {key: _text(value) for key, value in values.items()}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        options = ", ".join(f"{k}={_text(v)}" for k, v in value.items() if k != "name")
        return f"{value.get('name', '')}({options})" if options else str(value.get("name", ""))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
