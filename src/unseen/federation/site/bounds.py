"""What a site's policy allows a task to do with its images, held while the task runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import Tensor

from unseen.client import Batch, Client
from unseen.data.domain import Holding
from unseen.federation.site.policy import Policy, Rejected

__all__ = ["BoundedClient", "TimeLimit"]

T = TypeVar("T")


class TimeLimit:
    """How long one answer may still take."""

    def __init__(self) -> None:
        self._until = float("inf")
        self._minutes = 0.0

    def start(self, minutes: float) -> None:
        self._until, self._minutes = time.monotonic() + 60 * minutes, minutes

    def refuse_late(self) -> None:
        if time.monotonic() > self._until:
            raise Rejected(f"most_minutes: the work takes longer than {self._minutes:g} minutes")


class BoundedClient(Client):
    """A client that draws no batch which the policy forbids. What is too much is refused before the first batch."""

    def __init__(self, policy: Policy, clock: TimeLimit, holding: Holding, **more: Any) -> None:
        super().__init__(holding, **more)
        self._policy, self._clock = policy, clock
        self._drawn = 0.0  # images, over all trainings of this task

    def batches(
        self, *, size: int, epochs: float | None = None, steps: int | None = None, shuffle: bool = True, drop_last: bool = False
    ) -> Iterator[Batch]:
        self._refuse_too_much(size, epochs, steps)
        return self._in_time(super().batches(size=size, epochs=epochs, steps=steps, shuffle=shuffle, drop_last=drop_last))

    def domain_batches(
        self, *, size: int, epochs: float | None = None, steps: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        self._refuse_too_much(size, epochs, steps)
        return self._in_time(super().domain_batches(size=size, epochs=epochs, steps=steps))

    def _refuse_too_much(self, size: int, epochs: float | None, steps: int | None) -> None:
        wanted = epochs * self.samples if epochs is not None else float(steps or 0) * size
        self._drawn += wanted
        if self._drawn > self._policy.most_passes * self.samples:
            passes = self._drawn / max(1, self.samples)
            raise Rejected(f"most_passes: {passes:.3g} passes through the data, at most {self._policy.most_passes:g}")
        if size < self._policy.smallest_batch:
            raise Rejected(f"smallest_batch: batches of {size}, at least {self._policy.smallest_batch} are allowed")
        behind = min(self.samples, max(int(wanted), size))
        if behind < self._policy.fewest_images:
            raise Rejected(f"fewest_images: the answer would rest on {behind} images, at least {self._policy.fewest_images} are asked for")
        if 0 < self.samples - behind < self._policy.fewest_images and not self._policy.privacy.on:  # noise hides the few
            raise Rejected(
                "fewest_images: the answer would rest on all images but a few, and beside one that rests on all it would tell those few; "
                "train in whole passes (epochs), or in fewer steps"
            )

    def validation(self, size: int) -> Iterator[Batch]:
        return self._in_time(super().validation(size))

    def public(self, name: str, number: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self._in_time(super().public(name, number, size))

    def _in_time(self, batches: Iterator[T]) -> Iterator[T]:
        for batch in batches:
            self._clock.refuse_late()
            yield batch
