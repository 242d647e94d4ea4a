"""Where the time of a round goes. Clocks are set around what a client does; a phase inside another is not counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from unseen.client import Batch, Client
from unseen.data.domain import Samples
from unseen.device.streams import Made
from unseen.engines.tasks import Place, TaskRunner
from unseen.networks.kernels import has_kernels
from unseen.payload import Payload
from unseen.runs.memory import MemoryStore
from unseen.world import World

__all__ = ["PHASES", "Clock", "ClockedRunner", "Split", "clock_of"]

Clock = Callable[[], float]
PHASES = ("data", "augmentation", "forward and backward", "optimiser", "rest of the client", "aggregation", "evaluation", "bytes")


def clock_of(device: torch.device) -> Clock:
    """The time when all that was asked of the device is done."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


class Split:
    """Seconds by phase, and how many images the clients drew for training.

    >>> ticks = iter([0.0, 1.0, 4.0, 10.0])
    >>> split = Split(lambda: next(ticks))
    >>> with split.phase("data"):
    ...     with split.phase("augmentation"):
    ...         pass
    >>> split.seconds["data"], split.seconds["augmentation"]
    (7.0, 3.0)
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: list[tuple[str, float, float]] = []  # phase, when it began, seconds of the phases inside it
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.images = 0

    def begin(self, phase: str) -> None:
        self._open.append((phase, self._clock(), 0.0))

    def end(self) -> None:
        phase, began, inside = self._open.pop()
        taken = self._clock() - began
        self.seconds[phase] += taken - inside
        if self._open:
            around, when, others = self._open.pop()
            self._open.append((around, when, others + taken))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def optimisers(self) -> Iterator[None]:
        """Every optimiser's step counts as one. Not on a GPU: a replayed step calls nothing, and recording allows no waiting."""
        hooks = [
            register_optimizer_step_pre_hook(lambda *_: self.begin("optimiser")),
            register_optimizer_step_post_hook(lambda *_: self.end()),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class _ClockedClient(Client):
    """A client whose batches and steps are timed."""

    def __init__(self, split: Split, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._split = split
        plain = self._augment
        if has_kernels(self.device):
            return  # bytes are read and augmented in one piece

        def augment(x: Tensor, y: Tensor, rng: torch.Generator) -> Batch:
            with split.phase("augmentation"):
                return plain(x, y, rng)

        self._augment = augment

    def step(self, fn: Any) -> Any:
        inner = super().step(fn)

        def step(*batch: Any) -> None:
            with self._split.phase("forward and backward"):
                inner(*batch)

        return step

    def _training_batch(self, positions: Tensor, size: int) -> Batch:
        self._split.images += len(positions)
        return super()._training_batch(positions, size)

    def beside(self, make: Callable[..., Made], *given: Any) -> Made:
        with self._split.phase("data"):
            return super().beside(make, *given)

    def _batch(self, samples: Samples, positions: Tensor, augment: bool = False) -> Batch:
        with self._split.phase("data"):
            return super()._batch(samples, positions, augment)


class ClockedRunner(TaskRunner):
    """Runs tasks as ever, and with clocks while a `split` is set."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._split: Split | None = None

    @contextmanager
    def clocked(self, split: Split) -> Iterator[None]:
        self._split, self.client = split, partial(_ClockedClient, split)
        try:
            yield
        finally:
            self._split, self.client = None, Client

    def run(
        self, task: Callable[[Any, Client], Payload], down: Payload, name: str, place: Place, memory: MemoryStore
    ) -> tuple[Payload, dict[str, str]]:
        if self._split is None:
            return super().run(task, down, name, place, memory)
        with self._split.phase("rest of the client"):
            up, staged = super().run(task, down, name, place, memory)
        with self._split.phase("bytes"):  # what the question and the answer would cost between two processes
            for payload in (down, up):
                type(payload).from_bytes(payload.to_bytes())
        return up, staged
