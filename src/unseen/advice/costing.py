"""What a run will cost: a few real steps of the method at two of the sites, timed here, and what travelled in them."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unseen.data.domain import DomainDataset, batches_of
from unseen.engines.local import LocalEngine
from unseen.experiment import Experiment
from unseen.method import Method
from unseen.parts.local import Local
from unseen.runs.traffic import Travelled
from unseen.settings import settings_of
from unseen.world import World, build_world

__all__ = ["Costs", "steps_in_a_round", "time_steps"]

_FEW, _MORE = 1, 3  # steps of the two rounds that are timed


@dataclass(frozen=True)
class Costs:
    """Seconds of one step, and of all else that a client does in a round; and what travelled to and from one client."""

    step: float
    around: float
    travelled: tuple[Travelled, ...]
    whole: bool  # False: the limit was reached after the first steps, which are the slowest

    def seconds(self, steps: int) -> float:
        """Of one client's round."""
        return self.around + steps * self.step

    def bytes(self, direction: str) -> int:
        """A client's in one round."""
        return sum(row["bytes"] for row in self.travelled if row["direction"] == direction)


def steps_in_a_round(method: Method[Any], task: str, train: int) -> int | None:
    """Batches that a client with so many training images goes through; None where the method has its own count."""
    local = method.local_training(task)
    if not isinstance(local, Local):
        return None
    return local.steps or batches_of(train, local.batch, local.epochs, drop_last=False)


def time_steps(method: Method[Any], sources: DomainDataset, limit: float, **around: Any) -> Costs | None:
    """Costs by two short rounds, within about `limit` seconds; None where the method does not count its work in steps.

    One of the sources stands where an unseen domain would: nothing is scored.
    """
    if "steps" not in {s.name for s in settings_of(type(method))}:
        return None
    few = replace(sources, domains=sources.domains[:3])
    threads = torch.get_num_threads()
    rounds: dict[int, float] = {}
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
            for asked in (_FEW, _FEW, _MORE):  # the first warms up
                shorter: Any = {"steps": asked}
                made = replace(method, **shorter)
                steps = steps_in_a_round(made, few.task.name, 0) or asked  # `best` makes several for one that is asked for
                world = build_world(Experiment(made, few, few.names[-1], **around))
                first = not rounds
                rounds[steps], travelled = _round(world, Path(folder) / str(len(rounds)))
                if first and time.perf_counter() - began > limit:
                    return Costs(rounds[steps] / steps / len(world.clients), 0.0, travelled, whole=False)
    finally:
        torch.set_num_threads(threads)
    clients, (fewer, more) = len(world.clients), rounds
    step = (rounds[more] - rounds[fewer]) / (more - fewer) / clients
    if step <= 0:  # the machine was busy in the shorter round; a step takes no more than its part of the longer one
        step = rounds[more] / more / clients
    return Costs(step, max(0.0, rounds[fewer] / clients - fewer * step), travelled, whole=True)


def _round(world: World, memory: Path) -> tuple[float, tuple[Travelled, ...]]:
    """Seconds of one round of all clients, one after the other, and what one of them sent and received."""
    engine, method = LocalEngine(world, memory), world.experiment.method
    start = engine.cohort(0)
    state = method.start(world.fresh, start)
    start.close()
    cohort = engine.cohort(1)
    _wait(world)
    began = time.perf_counter()
    method.round(state, cohort)
    cohort.close()
    _wait(world)
    taken = time.perf_counter() - began
    one = world.clients[0]
    return taken, tuple(row for row in cohort.traffic.rows() if one in row["clients"])


def _wait(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()
