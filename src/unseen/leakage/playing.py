"""The study, played at one site: what leaves is kept as it leaves, beside what only the site knows.

Half of the site's images train (the members), the other half never do. Attacks see the answers and their questions. Which images were
drawn is kept to compare with alone.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unseen.client import Client
from unseen.data.domain import Domain, DomainDataset, Fold, Holding, Samples
from unseen.data.partition.partitions import per_domain
from unseen.data.partition.split import Index, split
from unseen.engines.cohort import RoundCohort, scored
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place, TaskRunner, find_task, path_of
from unseen.errors import BadInput, NoReplies
from unseen.experiment import Experiment
from unseen.federation.site.policy import Privacy, Rejected
from unseen.federation.site.privacy import privatised
from unseen.method import Refused
from unseen.payload import Payload
from unseen.scoring import Model
from unseen.state import State
from unseen.world import World, assemble, refuse_obstacles

__all__ = ["SITE", "Drawn", "GivenAnswer", "Parted", "Played", "ask_once", "part", "parted", "play", "rows_of"]

SITE, STAND_IN = "this-site", "stand-in"
_FEWEST = 40
_KEPT_NUMBERS = 2**24  # numbers of drawn images that are kept of one answer


@dataclass(frozen=True, eq=False)
class Parted:
    """A site's data in three: images that train, images that never do, and those of a stand-in for other sites."""

    members: Domain
    others: Domain
    stand_in: Domain | None  # where the method cannot run with one site


@dataclass(eq=False)
class Drawn:
    """The training images behind one answer, as they were drawn."""

    batches: int = 0
    positions: list[int] = field(default_factory=list)  # among the site's training images, in order, with repetitions
    images: list[Tensor] = field(default_factory=list)  # as the network took them: the first ones
    last: Tensor | None = None  # the images of the last batch
    labels: list[Tensor] = field(default_factory=list)  # of all batches; of masks, the last batch's alone
    numbers: int = 0

    def add(self, positions: Tensor, x: Tensor, y: Tensor) -> None:
        self.batches += 1
        self.positions += positions.tolist()
        self.labels = [*(self.labels if y.ndim == 1 else ()), y.detach().cpu()]
        self.last = x.detach().cpu().contiguous()
        if self.numbers + x.numel() <= _KEPT_NUMBERS or not self.images:
            self.images.append(self.last)
            self.numbers += x.numel()


@dataclass(frozen=True, eq=False)
class GivenAnswer:
    """One answer of the site, as it left, with its question."""

    place: Place
    task: str
    down: Payload
    up: Payload
    drawn: Drawn

    @property
    def when(self) -> str:
        return f"round {self.place.round}" if self.place.round else "before round 1"


@dataclass(frozen=True, eq=False)
class Played:
    """What a played study leaves behind: of every task the first answer and the last, and the model of the last round."""

    world: World
    model: State
    first: Mapping[str, GivenAnswer]  # by task
    last: Mapping[str, GivenAnswer]
    times: Mapping[str, int]
    rounds: int
    trained: Index  # positions among the site's training images that were drawn at least once
    ended: str  # why no more rounds were played; empty: all were
    seconds: float


class _WatchedClient(Client):
    """A client whose draws are noted."""

    def __init__(self, *args: Any, drawn: Drawn, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._drawn = drawn

    def _made(self, samples: Samples, positions: Tensor, augment: bool) -> tuple[Tensor, Tensor]:
        x, y = super()._made(samples, positions, augment)
        if augment:  # training alone
            self._drawn.add(positions, x, y)
        return x, y


class _Recording:
    """An engine of this process whose answers of the site are made private, if its policy says so, and kept."""

    def __init__(self, engine: LocalEngine, runner: TaskRunner, privacy: Privacy | None) -> None:
        self._engine, self._runner, self._privacy = engine, runner, privacy
        self.first: dict[str, GivenAnswer] = {}
        self.last: dict[str, GivenAnswer] = {}
        self.times: dict[str, int] = {}
        self.trained: set[int] = set()

    def answers(
        self, task: Callable[[Any, Client], Any], downs: Mapping[str, Any], place: Place, shared: bool
    ) -> Iterator[tuple[str, Any | Refused]]:
        path = path_of(task, self._engine.world.experiment.method)
        for name in sorted(downs):
            drawn = Drawn()
            self._runner.client = functools.partial(_WatchedClient, drawn=drawn)
            for _, answer in self._engine.answers(task, {name: downs[name]}, place, shared):
                yield name, answer if isinstance(answer, Refused) else self._let_out(name, path, place, downs[name], answer, drawn)

    def _let_out(self, name: str, path: str, place: Place, down: Payload, up: Payload, drawn: Drawn) -> Payload | Refused:
        asked = type(down).from_bytes(down.to_bytes())  # as it travels: on no device, and nobody else's
        if self._privacy is not None and self._privacy.on:
            try:
                up = privatised(up, asked, self._privacy)
            except Rejected as rejected:
                return Refused(str(rejected))
        if name == SITE:
            given = GivenAnswer(place, path, asked, up, drawn)
            self.first.setdefault(path, given)
            self.last[path] = given
            self.times[path] = self.times.get(path, 0) + 1
            self.trained |= set(drawn.positions)
        return up


def part(experiment: Experiment, dataset: DomainDataset, seed: int) -> Parted:
    """The site's images for this study: in two parts, or in three where the method needs a second site.

    Some methods do, to take its styles or to have their models assessed. What stands in the way of both is told.
    """
    alone = parted(dataset.domains[0], seed)
    try:
        refuse_obstacles(_world(experiment, dataset, alone))
    except BadInput:
        together = parted(dataset.domains[0], seed, stand_in=True)
        refuse_obstacles(_world(experiment, dataset, together))
        return together
    return alone


def parted(domain: Domain, seed: int, stand_in: bool = False) -> Parted:
    """The images in halves, class by class and patient by patient; with a stand-in, the second half in halves again."""
    if len(domain) < _FEWEST:
        raise BadInput(f"{len(domain)} images; the meter needs at least {_FEWEST}: half of them train, the others are compared with")
    inside, outside = split(dataclasses.replace(domain, split=None), 0.5, seed)
    members, others = rows_of(domain, inside, SITE), rows_of(domain, outside, "others")
    if min(len(members), len(others)) < _FEWEST // 4:
        raise BadInput(f"the images are of too few patients to be halved: {len(members)} and {len(others)} images")
    if not stand_in:
        return Parted(members, others, None)
    kept, given = split(others, 0.5, seed)
    return Parted(members, rows_of(others, kept, "others"), rows_of(others, given, STAND_IN))


def rows_of(domain: Domain, rows: Index, name: str) -> Domain:
    """Some rows of a domain as a domain of its own."""

    def some(array: Any) -> Any:
        return None if array is None else np.asarray(array)[rows]

    return Domain(name, some(domain.images), some(domain.labels), some(domain.groups), None, some(domain.spacing))


def _world(experiment: Experiment, dataset: DomainDataset, parts: Parted) -> World:
    """The world of the played study. The split into training and validation is the study's own."""
    domains = tuple(d for d in (parts.members, parts.stand_in) if d is not None)
    holdings = {held.client: held for held in per_domain(experiment.validation)(domains, experiment.seed)}
    return assemble(experiment, dataclasses.replace(dataset, domains=domains), Fold("site", domains, ()), holdings)


def play(
    experiment: Experiment,
    dataset: DomainDataset,
    parts: Parted,
    *,
    privacy: Privacy | None = None,
    rounds: int | None = None,
    seconds: float = float("inf"),
) -> Played:
    """The study's rounds, or as many as fit into the time. Everybody takes part in each."""
    experiment = dataclasses.replace(experiment, participation=1.0)
    began, world = time.monotonic(), _world(experiment, dataset, parts)
    refuse_obstacles(world)
    method, wanted, ended, number = experiment.method, min(rounds or experiment.rounds, experiment.rounds), "", 0
    with tempfile.TemporaryDirectory(prefix="unseen-leakage-") as folder:
        runner = TaskRunner(world)
        engine = _Recording(LocalEngine(world, Path(folder), through_bytes=True, runner=runner), runner, privacy)
        model, average, averaged = world.fresh("task"), method.averaging(world.dataset.task.name), list[State]()
        try:
            cohort = RoundCohort(engine, world, 0)
            state = method.start(world.fresh, cohort)
            cohort.close()
            while number < wanted and not ended:
                cohort = RoundCohort(engine, world, number + 1)
                state = method.round(state, cohort)
                cohort.close()
                number += 1
                averaged = average.keep(averaged, method.model(state)) if average else []
                model = average.model(averaged) if average else method.model(state)
                scored(engine, world, number, Model(model=model))
                if time.monotonic() - began > seconds and number < wanted:
                    ended = f"the time was spent after {number} rounds"
        except NoReplies as error:
            ended = f"nothing more left after round {number} ({error}: {'; '.join(cohort.missing.values())})"
    if number < experiment.rounds and not ended:
        ended = f"{wanted} rounds were asked for"
    trained = np.array(sorted(engine.trained), dtype=np.int64)
    plain = {name: value.detach().cpu().clone() for name, value in model.items()}
    return Played(world, plain, engine.first, engine.last, engine.times, number, trained, ended, time.monotonic() - began)


def ask_once(played: Played, given: GivenAnswer, train: Index) -> GivenAnswer:
    """The same question again, answered by a site that holds these of its training images alone: an attack's control, without noise."""
    world = played.world
    held = world.holdings[SITE]
    domain, index = held.train.parts[0]
    fewer = dataclasses.replace(world, holdings={SITE: Holding(SITE, SITE, Samples(((domain, index[train]),)), held.validation)})
    with tempfile.TemporaryDirectory(prefix="unseen-leakage-") as folder:
        runner = TaskRunner(fewer)
        engine = _Recording(LocalEngine(fewer, Path(folder), through_bytes=True, runner=runner), runner, None)
        task = find_task(given.task, world.experiment.method)
        for _, answer in engine.answers(task, {SITE: given.down}, given.place, True):
            if isinstance(answer, Refused):
                raise BadInput(f"the control's answer is not usable: {answer.reason}")
    return engine.first[given.task]
