"""The clients during one round, as a method asks them; and the harness's own question, how good the model is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from unseen.client import Client
from unseen.engines.tasks import Place
from unseen.method import Refused, Replies
from unseen.payload import Payload
from unseen.randomness import generator
from unseen.runs.traffic import Traffic
from unseen.scoring import Model, Passes, Scores, Scoring
from unseen.state import Part
from unseen.world import World

__all__ = ["SCORING_ASK", "Answering", "RoundCohort", "number_drawn", "scored", "taking_part", "taking_part_of"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)
SCORING_ASK = -1  # scoring has randomness of its own, whatever number of asks a method makes


class Answering(Protocol):
    """Asks clients, and gives their answers in name order, each checked before it and the client's memory count."""

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]: ...


def scored(
    engine: Answering, world: World, round_number: int, model: Model, made: Mapping[str, Passes] | None = None
) -> tuple[dict[str, Scores], Traffic]:
    """The global model on every client's validation part and on every unseen domain, and each client's own model where it has one.

    `made`: the global model's passes, by name, where they were made before.
    """
    cohort = RoundCohort(engine, world, round_number, names=[*world.clients, *world.evaluators], first_ask=SCORING_ASK)
    replies = cohort.ask(Scoring(world.experiment.method, made).score, model).all()
    return replies, cohort.traffic


def taking_part(world: World, round_number: int) -> list[str]:
    """The clients of a round: all of them, or as many as the experiment draws. Before round 1 everyone is asked."""
    return taking_part_of(world.clients, world.experiment.participation, world.experiment.seed, round_number)


def taking_part_of(clients: list[str], share: float, seed: int, round_number: int) -> list[str]:
    """The same from the facts alone: a site finds out by itself whether it is asked."""
    if share == 1 or round_number == 0:
        return clients
    order = torch.randperm(len(clients), generator=generator(seed, "participation", round_number))
    return sorted(clients[i] for i in order[: number_drawn(len(clients), share)].tolist())


def number_drawn(clients: int, share: float) -> int:
    """How many of the clients take part in a round.

    >>> number_drawn(10, 0.3), number_drawn(3, 0.01)
    (3, 1)
    """
    return max(1, round(share * clients))


class RoundCohort:
    """The clients during one round: counts the questions, and notes what travelled and who gave no usable answer."""

    def __init__(self, engine: Answering, world: World, round_number: int, names: Sequence[str] | None = None, first_ask: int = 1) -> None:
        self._engine, self._world, self._round, self._ask = engine, world, round_number, first_ask
        self._names = sorted(world.clients if names is None else names)
        self._taking_part = taking_part(world, round_number) if names is None else self._names
        self._open: Replies[Any] | None = None
        self.traffic = Traffic()
        self.missing: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return list(self._names)

    @property
    def taking_part(self) -> list[str]:
        return list(self._taking_part)

    def entries(self, part: Part = "whole", role: str = "task") -> list[str]:
        return self._world.entries(role).names(part)

    def rng(self, *where: str | int) -> torch.Generator:
        return generator(self._world.experiment.seed, "server", self._round, *where)

    def ask(self, task: Callable[[D, Client], U], down: D | Mapping[str, D]) -> Replies[U]:
        self.close()
        shared = isinstance(down, Payload)
        named: Mapping[str, D] = dict.fromkeys(self._names, down) if shared else dict(down)  # type: ignore[arg-type]
        strangers = sorted(set(named) - set(self._names))
        if strangers:
            raise KeyError(f"asked {', '.join(strangers)}; the clients are {', '.join(self.names)}")
        downs = {name: question for name, question in named.items() if name in self._taking_part}
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
