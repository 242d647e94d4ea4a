"""The in-process engine: clients of this process, or of worker processes on this machine. Same numbers either way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from unseen.client import Client
from unseen.codec import CodecError
from unseen.device.streams import OneBehind
from unseen.engines.checking import Checker
from unseen.engines.cohort import RoundCohort, scored
from unseen.engines.kept import Kept
from unseen.engines.onlooker import Onlooker
from unseen.engines.tasks import Place, TaskRunner, answer_type, path_of
from unseen.engines.telling import Asked, Look
from unseen.engines.workers import Workers
from unseen.errors import BadInput, ClientFailed, OutOfRange, RefusedReply
from unseen.method import Method, Refused
from unseen.payload import Payload, refuse_unusable
from unseen.runs.memory import MemoryStore
from unseen.runs.traffic import Traffic
from unseen.runs.writing import Writer
from unseen.scoring import Model, Passes, Scores
from unseen.world import World

__all__ = ["LocalEngine"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)


def _overlaps(world: World) -> bool:
    method, task = type(world.experiment.method), world.dataset.task.name
    return world.device.type == "cuda" and task == "classification" and method.local_model is Method.local_model


class LocalEngine:
    """Answers a method's questions with the clients of one world."""

    def __init__(
        self,
        world: World,
        memory_folder: Path,
        workers: Workers | None = None,
        through_bytes: bool = False,
        runner: TaskRunner | None = None,
        writer: Writer | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.world = world
        self.memory = MemoryStore(memory_folder, writer if workers is None else None)
        self.look: Look | None = None
        self._checker, self._checks = Checker(world), OneBehind(world.device if workers is None else torch.device("cpu"))
        self._workers = workers
        self._through_bytes = through_bytes
        self._runner = (runner or TaskRunner(world, kept)) if workers is None else None
        self._looked: dict[int, Callable[[], dict[str, Passes]]] = {}  # by round: passes that scoring has only to read

    def cohort(self, round_number: int) -> RoundCohort:
        return RoundCohort(self, self.world, round_number)

    def notes(self) -> dict[str, Any]:
        return {}

    @property
    def looks_ahead(self) -> bool:
        """Whether a model can be looked at while the next round trains. That is so for a classifier on a GPU.

        It is not so where clients have models of their own: they are made of what clients remember, and the next round changes that.
        Nor for masks: their loss is computed batch by batch, and a batch of the onlooker holds images of several domains.
        """
        return self._runner is not None and _overlaps(self.world)

    @cached_property
    def _onlooker(self) -> Onlooker:
        assert self._runner is not None
        return Onlooker(self.world, self._runner.kept)

    def look_ahead(self, round_number: int, model: Model) -> None:
        """Begin to look at a round's model. `score` then has only to read what was seen, whatever was trained in between."""
        self._looked[round_number] = self._onlooker.look(round_number, model.model)

    def score(self, round_number: int, model: Model) -> tuple[dict[str, Scores], Traffic]:
        read = self._looked.pop(round_number, dict)
        return scored(self, self.world, round_number, model, read())

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]:
        """The clients' answers in name order, each checked before it and the client's memory count."""
        path = path_of(task, self.world.experiment.method)
        up_type = answer_type(task, path, downs)
        for (name, up, staged), beside in self._checks.one_behind(self._run(task, path, downs, place, shared)):
            try:
                with beside:
                    answer = up if isinstance(up, Payload) else up_type.from_bytes(up)
                    refuse_unusable(answer, up_type)
                    self._refuse_undeclared(path, name, answer, downs[name])
            except (RefusedReply, CodecError) as refusal:
                yield name, Refused(str(refusal))
            else:
                self.memory.commit(name, staged)
                yield name, answer  # type: ignore[misc]

    def _refuse_undeclared(self, path: str, name: str, answer: Payload, down: Payload) -> None:
        """What no server would take from a site is the method's mistake here: told at once, not between hospitals.

        Numbers out of range are a run that diverges, as numbers that are not finite are.
        """
        holding = self.world.holdings.get(name) or self.world.evaluators[name]
        try:
            self._checker.refuse_misfit(answer, down, len(holding.train) + len(holding.validation))
        except OutOfRange:
            raise
        except RefusedReply as refusal:
            raise TypeError(f"{path} answers otherwise than {type(answer).__name__} declares: {refusal}") from refusal

    def _run(
        self, task: Callable[[D, Client], U], path: str, downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, Payload | bytes | memoryview, dict[str, str]]]:
        asked = Asked(self.look, place, path, len(downs)) if self.look is not None else None
        if self._workers is not None:
            yield from self._workers.run(self.world.as_built, path, downs, place, self.memory, shared, asked)
            return
        assert self._runner is not None
        self._runner.tell = asked.batch if asked is not None else None
        for name in sorted(downs):
            down: Payload = downs[name]
            if self._through_bytes:
                down = type(down).from_bytes(down.to_bytes())
            try:
                up, staged = self._runner.run(task, down, name, place, self.memory)
            except (BadInput, OSError):
                raise
            except Exception as error:
                raise ClientFailed(f"client {name!r} failed in {path}: {type(error).__name__}: {error}") from error
            if asked is not None:
                asked.answer(name)
            yield name, up.to_bytes() if self._through_bytes else up, staged
