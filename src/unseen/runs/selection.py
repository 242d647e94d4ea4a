"""Which round of a run is reported: named rules, applied after the run, over its records. The oracle is always marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from unseen.runs.record import Record

__all__ = ["DEFAULT_RULE", "RULES", "Rule", "better", "source_score"]

DEFAULT_RULE = "source"  # what tables show where nobody names a rule: the round that one could have chosen without the unseen domain


@dataclass(frozen=True)
class Rule:
    """A way to choose a round. `picks` gives its index, or None where the records cannot say."""

    name: str
    heading: str
    oracle: bool
    picks: Callable[[Sequence[Record]], int | None]


def source_score(record: Record) -> float | None:
    """The mean source-validation metric, by which `best.safetensors` is kept too.

    Of the clients' own models, where the method gives them some (`own_mean`); else of the global one (`source_mean`).
    """
    return record.get("own_mean", record["source_mean"]).get(record["metric"])


def better(score: float | None, best: float | None) -> bool:
    """Strictly better, so that of equal rounds the first is kept."""
    return score is not None and (best is None or score > best)


def _mean_of(record: Record, part: Literal["target", "held_out"]) -> float | None:
    values = [row[record["metric"]] for row in record[part].values() if record["metric"] in row]
    return sum(values) / len(values) if values else None


def _best(score: Callable[[Record], float | None]) -> Callable[[Sequence[Record]], int | None]:
    def picks(records: Sequence[Record]) -> int | None:
        found, best = None, None
        for index, record in enumerate(records):
            value = score(record)
            if better(value, best):
                found, best = index, value
        return found

    return picks


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("last", "last round", False, lambda records: len(records) - 1 if records else None),
        Rule("source", "best round by source validation", False, _best(source_score)),
        Rule("held-out", "best round by the held-out source domain", False, _best(lambda r: _mean_of(r, "held_out"))),
        Rule("oracle", "best round on the target itself (oracle: not available in practice)", True, _best(lambda r: _mean_of(r, "target"))),
    )
}
