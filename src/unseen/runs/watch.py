"""Somebody who looks on while a run goes: a screen, a tracker, or nobody."""

from __future__ import annotations

from typing import Protocol

from unseen.runs.record import Record
from unseen.world import World

__all__ = ["Silent", "Watch"]


class Watch(Protocol):
    """Somebody who looks on while a run goes."""

    def begin(self, world: World, done: int) -> None: ...

    def round(self, record: Record, seconds: float) -> None: ...

    def say(self, message: str) -> None: ...


class Silent:
    """Nobody looks on."""

    def begin(self, world: World, done: int) -> None: ...

    def round(self, record: Record, seconds: float) -> None: ...

    def say(self, message: str) -> None: ...
