"""One JSON line per round: everything a table, a figure or a selection rule needs, and no clocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unseen.runs.traffic import Traffic
from unseen.scoring import Scores
from unseen.world import World

__all__ = ["Record", "make_record", "read_records", "to_line"]

Record = dict[str, Any]


def make_record(
    world: World,
    number: int,
    scores: Mapping[str, Scores],
    travelled: list[dict[str, Any]],
    scoring: Traffic,
    missing: Mapping[str, str],
    notes: Mapping[str, Any],
) -> Record:
    """`source` is by client, `target` and `held_out` by domain; `source_mean` averages a domain's clients, then the domains."""
    experiment = world.experiment
    held_out = {d.name for d in world.fold.held_out}
    table = {name: {**s.metrics, "samples": s.samples} for name, s in sorted(scores.items())}
    return {
        "fold": world.fold.name,
        "round": number,
        "seed": experiment.seed,
        "method": experiment.name,
        "metric": world.dataset.task.metric,
        "source": {name: table[name] for name in world.clients if name in table},
        "source_mean": _mean_over_domains(world, scores),
        "target": {name: row for name, row in table.items() if name in world.evaluators and name not in held_out},
        "held_out": {name: row for name, row in table.items() if name in held_out},
        "travelled": travelled,
        "scoring": scoring.rows(),
        "missing": dict(missing),
        "notes": dict(notes),
    }


def _mean_over_domains(world: World, scores: Mapping[str, Scores]) -> dict[str, float]:
    """Clients weighted by their validation samples within a domain, domains alike: a large site does not select alone."""
    by_domain: dict[str, list[Scores]] = {}
    for name in world.clients:
        if name in scores and scores[name].samples:
            by_domain.setdefault(world.holdings[name].domain, []).append(scores[name])
    metrics = sorted({metric for group in by_domain.values() for s in group for metric in s.metrics})
    means = {}
    for metric in metrics:
        domains = []
        for group in by_domain.values():
            rows = [(s.metrics[metric], s.samples) for s in group if metric in s.metrics]
            if rows:
                domains.append(sum(v * n for v, n in rows) / sum(n for _, n in rows))
        means[metric] = sum(domains) / len(domains)
    return means


def to_line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def read_records(file: Path) -> list[Record]:
    """The rounds of a run, in order, up to the first line that is cut short or out of order."""
    records: list[Record] = []
    if not file.exists():
        return records
    for line in file.read_bytes().split(b"\n")[:-1]:  # a line without its end was not finished
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict) or record.get("round") != len(records) + 1:
            break
        records.append(record)
    return records
