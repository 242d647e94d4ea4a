"""The in-process engine: clients of this process, or of worker processes on this machine. Same numbers either way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from unseen.client import Client
from unseen.codec import CodecError
from unseen.engines.checking import Checker
from unseen.engines.cohort import RoundCohort, scored
from unseen.engines.tasks import Place, TaskRunner, answer_type, path_of
from unseen.engines.telling import Asked, Look
from unseen.engines.workers import Workers
from unseen.errors import BadInput, ClientFailed, OutOfRange, RefusedReply
from unseen.method import Refused
from unseen.payload import Payload, refuse_unusable
from unseen.runs.memory import MemoryStore
from unseen.runs.traffic import Traffic
from unseen.runs.writing import Writer
from unseen.scoring import Model, Scores
from unseen.world import World

__all__ = ["LocalEngine"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)


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
    ) -> None:
        self.world = world
        self.memory = MemoryStore(memory_folder, writer if workers is None else None)
        self.look: Look | None = None
        self._checker = Checker(world)
        self._workers = workers
        self._through_bytes = through_bytes
        self._runner = (runner or TaskRunner(world)) if workers is None else None

    def cohort(self, round_number: int) -> RoundCohort:
        return RoundCohort(self, self.world, round_number)

    def notes(self) -> dict[str, Any]:
        return {}

    def score(self, round_number: int, model: Model) -> tuple[dict[str, Scores], Traffic]:
        return scored(self, self.world, round_number, model)

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]:
        """The clients' answers in name order, each checked before it and the client's memory count."""
        path = path_of(task, self.world.experiment.method)
        up_type = answer_type(task, path, downs)
        for name, up, staged in self._run(task, path, downs, place, shared):
            try:
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
