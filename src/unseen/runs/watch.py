"""Somebody who looks on while a run goes, or while many go: a screen, a tracker, or nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unseen.runs.record import Record
from unseen.world import World

__all__ = ["ManyWatch", "Silent", "Watch", "Within"]


@dataclass(frozen=True)
class Within:
    """Where a round stands: what the clients are asked, how many have answered, and the batches of those that are at work.

    `of` is how many batches those will have, as far as they know.
    """

    round: int
    task: str
    answered: int
    clients: int
    batches: int = 0
    of: int = 0


class Watch(Protocol):
    """Somebody who looks on while a run goes. A class of your own does well to inherit `Silent`."""

    def begin(self, world: World, done: int) -> None: ...

    def within(self, where: Within) -> None:
        """Told often, within a round, and from several threads: to be quick about."""

    def round(self, record: Record, seconds: float) -> None: ...

    def say(self, message: str) -> None: ...


class ManyWatch(Protocol):
    """Somebody who looks on while many runs go, of which several may go at once. A run is called by its folder."""

    def planned(self, rounds: dict[str, int]) -> None:
        """Which runs there will be, and how many rounds each has."""

    def started(self, run: str) -> Watch:
        """The one who looks on at this run. Runs in other processes are told without `begin`."""

    def ended(self, run: str, failed: str = "") -> None:
        """With why it failed; nothing if it did not."""

    def say(self, message: str) -> None: ...


class Silent:
    """Nobody looks on, at one run or at many."""

    def begin(self, world: World, done: int) -> None: ...

    def within(self, where: Within) -> None: ...

    def round(self, record: Record, seconds: float) -> None: ...

    def say(self, message: str) -> None: ...

    def planned(self, rounds: dict[str, int]) -> None: ...

    def started(self, run: str) -> Watch:
        return self

    def ended(self, run: str, failed: str = "") -> None: ...
