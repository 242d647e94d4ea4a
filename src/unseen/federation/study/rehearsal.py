"""A rehearsal: the study's method runs on made-up images, so that what will leave is seen before anybody is asked.

The networks and the images have their real sizes; each training takes one small batch. A method may change its ways at a round that one
of its settings names (a warm-up), so the rehearsal goes some rounds beyond the largest of these, or as far as a minute goes. What left in
the last rehearsed round is then taken to leave in all later ones.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from unseen.client import Batch, Client
from unseen.data.domain import Domain
from unseen.engines.checking import outline_of, outline_to_plain
from unseen.engines.cohort import SCORING_ASK, scored
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place, TaskRunner, path_of
from unseen.experiment import Experiment
from unseen.federation.cards import Schema, made_up_world
from unseen.federation.study.study import Leaving, Phase, phase_of
from unseen.federation.sums.summable import is_summed
from unseen.method import Refused, task_types
from unseen.payload import Payload, State, carried, declarations
from unseen.scoring import Model
from unseen.settings import values_of
from unseen.world import World

__all__ = ["BriefClient", "Rehearsed", "hash_of_state", "made_up_domain", "rehearse"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)
_IMAGES, _BATCH = 12, 4
_SECONDS = 60.0
_BEYOND = 20  # rounds after the last one that a setting may name


@dataclass(frozen=True)
class Rehearsed:
    """What was seen: what leaves, and the hashes of the weights that the first question of round 1 brings."""

    plan: tuple[Leaving, ...]
    weights: dict[str, str]
    passed_on: tuple[str, ...]  # kinds that other sites got of a site's answers
    rounds: int  # how many were rehearsed


class BriefClient(Client):
    """A client whose every training is one small batch, of public images too."""

    def batches(
        self, *, size: int, epochs: float | None = None, steps: int | None = None, shuffle: bool = True, drop_last: bool = False
    ) -> Iterator[Batch]:
        return itertools.islice(super().batches(size=min(size, _BATCH), steps=1, shuffle=shuffle), 1)

    def domain_batches(
        self, *, size: int, epochs: float | None = None, steps: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return super().domain_batches(size=min(size, _BATCH), steps=1)

    def public(self, name: str, number: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return itertools.islice(super().public(name, number, min(size, _BATCH)), 1)

    @torch.no_grad()
    def said_of_public(self, net: nn.Module, name: str, number: int, size: int) -> Tensor:
        """As many answers as there are images, of a few of them."""
        images = self._public(name, number)
        few = net.eval()(self._shown(images[:_BATCH])).float()
        return few[torch.arange(len(images)) % len(few)]  # type: ignore[no-any-return]


class _NotingEngine(LocalEngine):
    """Notes every question and answer."""

    def __init__(self, world: World, folder: Path, sums: bool) -> None:
        runner = TaskRunner(world)
        runner.client = BriefClient
        super().__init__(world, folder, runner=runner)
        self.rows: dict[tuple[Phase, int, str, str], Leaving] = {}
        self.first: dict[str, str] = {}
        self.passed_on: set[str] = set()
        self._sums = sums

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]:
        path = path_of(task, self.world.experiment.method)
        self.passed_on |= {told.kind for told in declarations(task_types(task)[0]).values() if told.passed_on}
        if place == Place(1, 1) and downs:
            self.first = self._known_weights(next(iter(downs.values())))
        for name, answer in super().answers(task, downs, place, shared):
            if isinstance(answer, Payload):
                holding = self.world.holdings.get(name)
                self._note(path, place, answer, len(holding.train) if holding else 1)
            yield name, answer

    def _known_weights(self, down: Payload) -> dict[str, str]:
        """The models in the first question that are networks as they begin."""
        known = {}
        for field, told in declarations(type(down)).items():
            value = getattr(down, field)
            if told.kind == "model" and value is not None and told.role in self.world.builders:
                stated = hash_of_state(value)
                if stated == hash_of_state(self.world.fresh(told.role)):
                    known[field] = stated
        return known

    def _note(self, path: str, place: Place, answer: Payload, images: int) -> None:
        phase, told, shapes = phase_of(place.round, place.ask), declarations(type(answer)), outline_to_plain(outline_of(answer))
        summed = self._sums and phase != "score" and is_summed(type(answer))
        sizes = {one.field: -(-one.bytes // images) if one.grows else one.bytes for one in carried(answer) if one.bytes}
        for field, size in (sizes or {"": 0}).items():
            say = told.get(field)
            row = Leaving(
                phase=phase,
                ask=place.ask,
                task=path,
                field=field,
                kind=say.kind if say else "nothing",
                role=say.role if say else "",
                part=say.part if say else "",
                bytes=size,
                grows=say.grows if say else False,
                summed=summed,
                shape=shapes.get(field),
                first=place.round,
                last=place.round,
            )
            known = self.rows.setdefault((phase, place.ask, path, field), row)
            self.rows[phase, place.ask, path, field] = replace(known, bytes=max(known.bytes, size), last=place.round)


def rehearse(experiment: Experiment, schema: Schema, training: list[str], sums: bool, seconds: float = _SECONDS) -> Rehearsed:
    """Run the method over made-up images of these sites and note what leaves."""
    experiment = replace(experiment, participation=1.0)  # in a rehearsal everyone takes part
    world = made_up_world(experiment, schema, [made_up_domain(name, number, schema) for number, name in enumerate(training)])
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
        engine, method, number = _NotingEngine(world, Path(folder), sums), experiment.method, 0
        cohort = engine.cohort(0)
        state: Any = method.start(world.fresh, cohort)
        cohort.close()
        while number < _rounds(experiment) and time.monotonic() < until:
            number += 1
            cohort = engine.cohort(number)
            state = method.round(state, cohort)
            cohort.close()
            if number == 1:
                scored(engine, world, number, Model(model=method.model(state)))
    rows = [_until_the_end(row, number, experiment.rounds) for row in engine.rows.values()]
    rows.sort(key=lambda row: (row.phase != "start", row.phase == "score", row.ask, row.task, row.field))
    return Rehearsed(tuple(rows), engine.first, tuple(sorted(engine.passed_on)), number)


def _rounds(experiment: Experiment) -> int:
    named = [value for value in values_of(experiment.method).values() if type(value) is int and value < experiment.rounds]
    return min(experiment.rounds, max(named, default=0) + _BEYOND)


def _until_the_end(row: Leaving, rehearsed: int, rounds: int) -> Leaving:
    if row.ask == SCORING_ASK:
        return replace(row, first=1, last=rounds)
    return replace(row, last=rounds) if row.last == rehearsed and row.phase == "round" else row


def made_up_domain(name: str, number: int, schema: Schema) -> Domain:
    """Noise of the right shape, with every class as far as the images go."""
    rng, (height, width), outputs = np.random.default_rng(number), schema["size"], len(schema["classes"])
    images = rng.integers(0, 256, (_IMAGES, schema["channels"], height, width), dtype=np.uint8)
    if schema["task"] == "classification":
        return Domain(name, images, np.arange(_IMAGES, dtype=np.int64) % outputs)
    masks = np.zeros((_IMAGES, outputs, height, width), np.uint8)
    masks[:, :, height // 4 : 3 * height // 4, width // 4 : 3 * width // 4] = 1
    return Domain(name, images, masks)


def hash_of_state(state: State) -> str:
    """One hash of a network's weights: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)} ".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
