"""One JSON line per round: everything a table, a figure or a selection rule needs, and no clocks."""

from __future__ import annotations

import functools
import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from unseen.runs.traffic import Traffic, Travelled
from unseen.scoring import Scores
from unseen.world import World

__all__ = ["Metrics", "Record", "Timing", "make_record", "read_records", "read_timings", "to_line"]

T = TypeVar("T")
Metrics = dict[str, float]  # by name; one client's or domain's also has its number of samples


class Record(TypedDict):
    """One round. `source` is by client, `target` and `held_out` by domain; `source_mean` averages a domain's clients, then the domains.

    Where one client holds all domains (`pooled`), `source` also has its validation samples domain by domain, and `source_mean` is theirs.

    `own` and `own_mean` are there where clients have models of their own: the metrics of each client's, at that client, and their mean. In
    the mean, a client that has none yet counts with the global model, which it would use.
    """

    fold: str
    round: int
    seed: int
    method: str
    metric: str  # which of the metrics counts
    source: dict[str, Metrics]
    source_mean: Metrics
    target: dict[str, Metrics]
    held_out: dict[str, Metrics]
    travelled: list[Travelled]
    scoring: list[Travelled]
    missing: dict[str, str]  # client -> why
    notes: dict[str, Any]  # what the method and the engine tell
    own: NotRequired[dict[str, Metrics]]
    own_mean: NotRequired[Metrics]


class Timing(TypedDict):
    """Seconds of one round. They are kept out of its record."""

    round: int
    train: float
    score: float


def make_record(
    world: World,
    number: int,
    scores: Mapping[str, Scores],
    travelled: list[Travelled],
    scoring: Traffic,
    missing: Mapping[str, str],
    notes: Mapping[str, Any],
) -> Record:
    """The record of round `number`."""
    experiment = world.experiment
    held_out = {d.name for d in world.fold.held_out}
    table: dict[str, Metrics] = {name: {**s.metrics, "samples": s.samples} for name, s in sorted(scores.items())}
    own: dict[str, Metrics] = {
        name: {**s.own, "samples": s.samples} for name, s in sorted(scores.items()) if s.own and name in world.holdings
    }
    record: Record = {
        "fold": world.fold.name,
        "round": number,
        "seed": experiment.seed,
        "method": experiment.name,
        "metric": world.dataset.task.metric,
        "source": {name: table[name] for name in (*world.clients, *world.validated) if name in table},
        "source_mean": _mean_over_domains(world, table, world.validated or world.clients),
        "target": {name: table[name] for name in sorted(d.name for d in world.fold.targets) if name in table},
        "held_out": {name: row for name, row in table.items() if name in held_out},
        "travelled": travelled,
        "scoring": scoring.rows(),
        "missing": dict(missing),
        "notes": dict(notes),
    }
    if own:
        record["own"], record["own_mean"] = own, _mean_over_domains(world, {**table, **own}, world.clients)
    return record


def _mean_over_domains(world: World, table: Mapping[str, Metrics], names: Sequence[str]) -> Metrics:
    """Clients weighted by their validation samples within a domain, domains alike: a large site does not select alone."""
    by_domain: dict[str, list[Metrics]] = {}
    for name in names:
        if name in table and table[name]["samples"]:
            by_domain.setdefault((world.holdings.get(name) or world.evaluators[name]).domain, []).append(table[name])
    metrics = sorted({metric for group in by_domain.values() for row in group for metric in row if metric != "samples"})
    means = {}
    for metric in metrics:
        domains = []
        for group in by_domain.values():
            rows = [(row[metric], row["samples"]) for row in group if metric in row]
            if rows:
                domains.append(sum(v * n for v, n in rows) / sum(n for _, n in rows))
        means[metric] = sum(domains) / len(domains)
    return means


def to_line(record: Record | Timing) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def read_records(file: Path) -> list[Record]:
    """The rounds of a run, in order, up to the first line that is cut short, out of order or no record."""
    return _read(file, Record)


def read_timings(file: Path) -> list[Timing]:
    """The seconds of a run's rounds, read in the same way."""
    return _read(file, Timing)


def _read(file: Path, kind: type[T]) -> list[T]:
    found: list[T] = []
    if not file.exists():
        return found
    for line in file.read_bytes().split(b"\n")[:-1]:  # a line without its end was not finished
        try:
            value = json.loads(line)
        except ValueError:
            break
        if not _fits(value, kind) or value["round"] != len(found) + 1:
            break
        found.append(value)
    return found


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value that came from JSON is of the declared kind.

    >>> _fits({"round": 1, "train": 2, "score": 0.5}, Timing), _fits({"round": 1, "train": "2"}, Timing)
    (True, False)
    """
    if typing.is_typeddict(kind):
        return isinstance(value, dict) and all(
            _fits(value[key], of) if key in value else typing.get_origin(of) is NotRequired for key, of in _hints(kind).items()
        )
    of, inner = typing.get_origin(kind), typing.get_args(kind)
    if of is NotRequired:
        return _fits(value, inner[0])
    if of is dict:
        return isinstance(value, dict) and all(_fits(one, inner[1]) for one in value.values())
    if of is list:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if of is Literal:
        return value in inner
    return kind is Any or type(value) is kind or (kind is float and type(value) is int)
