"""One client task, run here: the same code in this process, in a worker process and at a site."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from unseen.client import Client
from unseen.codec import hints_of, tensors_in
from unseen.engines.kept import Kept
from unseen.method import Method, task_types
from unseen.payload import Memory, Payload
from unseen.randomness import generator, seeded_block
from unseen.runs.memory import MemoryStore
from unseen.scoring import Scoring
from unseen.settings import Configured
from unseen.world import World

__all__ = ["Place", "TaskRunner", "answer_type", "find_task", "path_of"]

_SCORING = "scoring"


@dataclass(frozen=True)
class Place:
    """Where in a run a task is asked: its randomness comes from here and from nowhere else."""

    round: int
    ask: int

    def __str__(self) -> str:
        return f"{self.round:06d}-{self.ask:03d}"


def path_of(task: Callable[..., Any], method: Configured) -> str:
    """The name under which another process finds this task: `train`, `aggregation.assess`, `scoring.score`."""
    owner, name = getattr(task, "__self__", None), getattr(task, "__name__", "?")
    if owner is method:
        return name
    if isinstance(owner, Scoring):
        return f"{_SCORING}.{name}"
    for field in fields(method):  # type: ignore[arg-type]
        if getattr(method, field.name) is owner:
            return f"{field.name}.{name}"
    raise TypeError(f"{getattr(task, '__qualname__', task)} belongs neither to the method nor to one of its parts")


def answer_type(task: Callable[..., Any], path: str, downs: Mapping[str, Payload]) -> type[Payload]:
    """What the task answers with; TypeError where it was asked with something else than it takes."""
    down_type, up_type = task_types(task)
    strange = {type(down).__name__ for down in downs.values() if type(down) is not down_type}
    if strange:
        raise TypeError(f"{path} takes a {down_type.__name__}; it was asked with a {', '.join(sorted(strange))}")
    return up_type


def find_task(path: str, method: Method[Any]) -> Callable[[Any, Client], Payload]:
    """The inverse of `path_of`. Only marked tasks can be reached."""
    first, dot, name = path.partition(".")
    owner: Any = Scoring(method) if dot and first == _SCORING else getattr(method, first) if dot else method
    task = getattr(owner, name or first, None)
    task_types(task)  # type: ignore[arg-type]
    return task  # type: ignore[return-value]


class TaskRunner:
    """Runs tasks one at a time over one world, with networks borrowed from one pool."""

    def __init__(self, world: World, kept: Kept | None = None) -> None:
        self.world, self.kept = world, kept or Kept()
        self.pool, self.reader = self.kept.pool("tasks", world), self.kept.reader(world)
        self.client: Callable[..., Client] = Client  # `unseen speed` puts one with clocks in its place, a site one with bounds
        self.tell: Callable[[str, int, int], None] | None = None  # of a client's batches: how many were made, of how many
        self.secret: tuple[str, ...] = ()  # a site that keeps its order of batches to itself draws from this too
        torch.set_num_threads(world.experiment.threads)

    def run(
        self, task: Callable[[Any, Client], Payload], down: Payload, name: str, place: Place, memory: MemoryStore
    ) -> tuple[Payload, dict[str, str]]:
        """The client's answer, and the memories it staged (they count once the answer is accepted)."""
        world, seed = self.world, self.world.experiment.seed
        holding = world.holdings.get(name) or world.evaluators[name]
        client = self.client(
            holding,
            task=world.dataset.task,
            pool=self.pool,
            reader=self.reader,
            rng=generator(seed, "draws", place.round, place.ask, name, *self.secret),
            pixels=world.dataset.pixels,
            augment=world.augment,
            precision=world.experiment.precision,
            recall=lambda kind: memory.recall(name, kind, world.device),
            domains=sorted(domain.name for domain in world.fold.sources),
            round=place.round,
            rounds=world.experiment.rounds,
        )
        if self.tell is not None:
            client.tell = functools.partial(self.tell, name)
        with seeded_block(world.device, seed, "task", place.round, place.ask, name, *self.secret):
            up = task(down, client)
        self._refuse_live_tensors(up, task)
        staged = {kind: memory.stage(name, kept, str(place)) for kind, kept in client.remembered.items()}
        return up, staged

    def _refuse_live_tensors(self, up: Payload | Memory, task: Callable[..., Any]) -> None:
        """A reference into a network of the pool would change with the next client: best weights that turn into last ones."""
        live = self.pool.storages()
        for name, hint in hints_of(type(up)).items():
            for path, tensor in tensors_in(getattr(up, name), hint):
                if tensor.requires_grad or tensor.untyped_storage().data_ptr() in live:
                    raise TypeError(f"{task.__qualname__} returns {name}.{path} by reference to a network; use state_of(net)")
