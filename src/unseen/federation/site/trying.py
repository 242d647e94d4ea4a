"""A site tries a study on its own data before it approves it: nothing is sent, and what would leave is measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unseen.client import Client
from unseen.data.domain import DomainDataset, Holding
from unseen.engines.cohort import scored
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import TaskRunner
from unseen.federation.cards import as_agreed, made_up_world, site_world
from unseen.federation.site.approving import experiment_of, facts_of
from unseen.federation.site.bounds import BoundedClient, TimeLimit
from unseen.federation.site.policy import Policy
from unseen.federation.study.rehearsal import BriefClient, made_up_domain
from unseen.federation.study.study import Study
from unseen.runs.traffic import Travelled
from unseen.scoring import Model

__all__ = ["Tried", "try_study"]


@dataclass(frozen=True)
class Tried:
    """One round over the site's own data."""

    left: list[Travelled]  # what would have left this site
    seconds: float
    metrics: dict[str, float]


def try_study(study: Study, dataset: DomainDataset, site: str, policy: Policy, device: str) -> Tried:
    """Round 1 with this site's data under its rules; the other sites are stand-ins with made-up images."""
    evaluates, everybody = study.participants[site].evaluates, {one.signing for one in study.participants.values()}
    policy.check_study(facts_of(study, dataset, evaluates, everybody))  # a person who approves it has seen all keys
    own = as_agreed(dataset, study.schema)
    experiment = replace(experiment_of(study, own, device), participation=1.0)
    others = [made_up_domain(name, number, study.schema) for number, name in enumerate(study.training) if name != site]
    made_up, here = made_up_world(experiment, study.schema, others), site_world(experiment, own, evaluates)
    data = replace(made_up.dataset, domains=(*made_up.dataset.domains, *own.domains))
    world = replace(here, dataset=data, holdings={**made_up.holdings, **here.holdings})
    clock = TimeLimit()
    clock.start(policy.most_minutes)

    def client(holding: Holding, **more: Any) -> Client:
        return BoundedClient(policy, clock, holding, **more) if holding.client == site else BriefClient(holding, **more)

    runner = TaskRunner(world)
    runner.client = partial(client)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
        engine = LocalEngine(world, Path(folder), runner=runner)
        rows: list[Travelled] = []
        before, cohort = engine.cohort(0), engine.cohort(1)
        state = experiment.method.start(world.fresh, before)
        before.close()
        state = experiment.method.round(state, cohort)
        cohort.close()
        scores, scoring = scored(engine, world, 1, Model(model=experiment.method.model(state)))
        rows = [*before.traffic.rows(), *cohort.traffic.rows(), *scoring.rows()]
    return Tried([*_of_site(rows, site)], time.monotonic() - began, scores[site].metrics)


def _of_site(rows: list[Travelled], site: str) -> Iterator[Travelled]:
    return (row for row in rows if row["direction"] == "sent" and site in row["clients"])
