"""Runs between sites, site by site: who took part in which round, what left it, why it was left out, and what is waited for now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from unseen.report.collect import Run
from unseen.runs.record import Record
from unseen.runs.traffic import Travelled

__all__ = ["BetweenSites", "RoundAtSite", "SiteInRun", "Stands", "between_sites"]

_SHOWN_ROUNDS = 60  # the last ones


class Stands(Protocol):
    """How a study stands, as the federation's folder tells it (`unseen.federation.server.standing`)."""

    study: str
    state: str
    round: int
    waiting: dict[str, float]

    @property
    def waits_for(self) -> str: ...


@dataclass(frozen=True)
class RoundAtSite:
    """One round at one site. `why` says why it was left out; a site that was not drawn, or only evaluates, sends nothing in training."""

    number: int
    sent: int
    why: str = ""


@dataclass(frozen=True)
class SiteInRun:
    """One site over a run."""

    name: str
    trains: bool
    sent: int  # bytes, scoring included
    received: int
    score: float | None  # of the last round, in percent
    epsilon: float | None  # that it says it has spent
    rounds: list[RoundAtSite]

    @property
    def left_out(self) -> list[RoundAtSite]:
        return [one for one in self.rounds if one.why]


@dataclass(frozen=True)
class BetweenSites:
    """One run between sites."""

    title: str
    study: str
    done: int
    rounds: int
    sites: list[SiteInRun]
    seconds: float | None  # of a round, on average
    now: str  # what it waits for, where the federation's folder is known

    @property
    def first_shown(self) -> int:
        return max(1, self.done - _SHOWN_ROUNDS + 1)


def between_sites(runs: Sequence[Run], standings: Sequence[Stands] = ()) -> list[BetweenSites]:
    """The runs that were between sites, with how their studies stand."""
    waits = {one.study: one.waits_for for one in standings}
    return [_of(run, waits) for run in runs if run.about.get("between_sites")]


def _of(run: Run, waits: Mapping[str, str]) -> BetweenSites:
    names = [*sorted(run.about.get("clients", {})), *run.about["targets"]]
    study = str(run.about.get("partition", ""))
    times = [timing["train"] + timing["score"] for timing in run.timings]
    return BetweenSites(
        title=f"{run.name}, seed {run.seed} ({run.folder})",
        study=study,
        done=len(run.records),
        rounds=run.rounds,
        sites=[_site(run, name, name in run.about.get("clients", {})) for name in dict.fromkeys(names)],
        seconds=sum(times) / len(times) if times else None,
        now=waits.get(study, ""),
    )


def _site(run: Run, name: str, trains: bool) -> SiteInRun:
    last: Record | None = run.records[-1] if run.records else None
    scores = {**last["source"], **last["target"]}.get(name, {}) if last else {}
    score = scores.get(last["metric"]) if last else None
    spent = last["notes"].get("epsilon", {}) if last else {}
    epsilon = spent.get(name) if isinstance(spent, Mapping) else None
    return SiteInRun(
        name=name,
        trains=trains,
        sent=sum(_bytes(record, name, "sent") for record in run.records),
        received=sum(_bytes(record, name, "received") for record in run.records),
        score=None if score is None else 100 * score,
        epsilon=float(epsilon) if isinstance(epsilon, int | float) else None,
        rounds=[RoundAtSite(r["round"], _bytes(r, name, "sent"), r["missing"].get(name, "")) for r in run.records[-_SHOWN_ROUNDS:]],
    )


def _bytes(record: Record, name: str, direction: str) -> int:
    rows: list[Travelled] = [*record["travelled"], *record["scoring"]]
    return sum(row["bytes"] for row in rows if row["direction"] == direction and name in row["clients"])
