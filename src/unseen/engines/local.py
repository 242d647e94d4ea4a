"""The in-process engine: clients of this process, or of worker processes on this machine. Same numbers either way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from unseen.client import Client
from unseen.codec import CodecError
from unseen.engines.engine import Answering
from unseen.engines.tasks import Place, TaskRunner, path_of
from unseen.engines.workers import Workers
from unseen.errors import BadInput, ClientFailed, RefusedReply
from unseen.memory import MemoryStore
from unseen.method import Refused, Replies, task_types
from unseen.payload import Payload, refuse_unusable
from unseen.report.traffic import Traffic
from unseen.scoring import Model, Scores, Scoring
from unseen.world import World

__all__ = ["LocalEngine", "RoundCohort", "scored"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)
SCORING_ASK = -1  # scoring has randomness of its own, whatever number of asks a method makes


class LocalEngine:
    """Answers a method's questions with the clients of one world."""

    def __init__(
        self,
        world: World,
        memory_folder: Path,
        workers: Workers | None = None,
        through_bytes: bool = False,
        runner: TaskRunner | None = None,
    ) -> None:
        self.world = world
        self.memory = MemoryStore(memory_folder)
        self._workers = workers
        self._through_bytes = through_bytes
        self._runner = (runner or TaskRunner(world)) if workers is None else None

    def cohort(self, round_number: int) -> RoundCohort:
        return RoundCohort(self, self.world.clients, round_number)

    def notes(self) -> dict[str, Any]:
        return {}

    def score(self, round_number: int, model: Model) -> tuple[dict[str, Scores], Traffic]:
        return scored(self, self.world, round_number, model)

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]:
        """The clients' answers in name order, each checked before it and the client's memory count."""
        path = path_of(task, self.world.experiment.method)
        down_type, up_type = task_types(task)
        for down in downs.values():
            if type(down) is not down_type:
                raise TypeError(f"{path} takes a {down_type.__name__}; it was asked with a {type(down).__name__}")
            if shared:
                break
        for name, up, staged in self._run(task, path, downs, place, shared):
            try:
                answer = up if isinstance(up, Payload) else up_type.from_bytes(up)
                refuse_unusable(answer, up_type)
            except (RefusedReply, CodecError) as refusal:
                yield name, Refused(str(refusal))
            else:
                self.memory.commit(name, staged)
                yield name, answer  # type: ignore[misc]

    def _run(
        self, task: Callable[[D, Client], U], path: str, downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, Payload | bytes, dict[str, str]]]:
        if self._workers is not None:
            yield from self._workers.run(self.world.experiment, path, downs, place, self.memory, shared)
            return
        assert self._runner is not None
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
            yield name, up.to_bytes() if self._through_bytes else up, staged


def scored(engine: Answering, world: World, round_number: int, model: Model) -> tuple[dict[str, Scores], Traffic]:
    """The global model on every client's validation part and on every unseen domain."""
    cohort = RoundCohort(engine, [*world.clients, *world.evaluators], round_number, first_ask=SCORING_ASK)
    replies = cohort.ask(Scoring().score, model).all()
    return replies, cohort.traffic


class RoundCohort:
    """The clients during one round: counts the questions, and notes what travelled and who gave no usable answer."""

    def __init__(self, engine: Answering, names: list[str], round_number: int, first_ask: int = 1) -> None:
        self._engine, self._names, self._round, self._ask = engine, names, round_number, first_ask
        self._open: Replies[Any] | None = None
        self.traffic = Traffic()
        self.missing: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._names)

    def ask(self, task: Callable[[D, Client], U], down: D | Mapping[str, D]) -> Replies[U]:
        self.close()
        shared = isinstance(down, Payload)
        downs: Mapping[str, D] = dict.fromkeys(self.names, down) if shared else dict(down)  # type: ignore[arg-type]
        strangers = sorted(set(downs) - set(self._names))
        if strangers:
            raise KeyError(f"asked {', '.join(strangers)}; the clients are {', '.join(self.names)}")
        replies = Replies(self._stream(task, downs, Place(self._round, self._ask), shared))
        self._ask += 1
        self._open = replies
        return replies

    def close(self) -> None:
        """Let answers that were not read come in: every client does its work whether or not the server looks."""
        if self._open is not None:
            self._open.drain()
            self._open = None

    def _stream(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]:
        name_of_task = task.__name__
        for name, answer in self._engine.answers(task, downs, place, shared):
            self.traffic.received(name_of_task, name, downs[name])
            if isinstance(answer, Refused):
                self.missing[name] = f"{name_of_task}: {answer.reason}"
            else:
                self.traffic.sent(name_of_task, name, answer)
            yield name, answer
