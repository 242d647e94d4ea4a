"""How far a question has come, for whoever looks on. Nothing of it reaches a method or a record."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from unseen.engines.tasks import Place
from unseen.runs.watch import Within

__all__ = ["Asked", "Look", "NowAndThen"]

Look = Callable[[Within], None]
_PAUSE = 0.2  # seconds between two tellings from another process


class Asked:
    """One question to several clients: who has answered, and how many batches those at work have made."""

    def __init__(self, look: Look, place: Place, task: str, clients: int) -> None:
        self._look, self._place, self._task, self._clients = look, place, task, clients
        self._answered = 0
        self._batches: dict[str, tuple[int, int]] = {}
        self._lock = Lock()  # clients of several processes are told of by several threads
        self._tell()

    def batch(self, client: str, made: int, planned: int) -> None:
        with self._lock:
            self._batches[client] = (made, planned)
            self._tell()

    def answer(self, client: str) -> None:
        with self._lock:
            self._batches.pop(client, None)
            self._answered += 1
            self._tell()

    def _tell(self) -> None:
        made, planned = (sum(each) for each in zip(*self._batches.values(), strict=True)) if self._batches else (0, 0)
        self._look(Within(self._place.round, self._task, self._answered, self._clients, made, planned))


class NowAndThen:
    """Passes on what it is told, a few times a second at most."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell, self._last = tell, 0.0

    def __call__(self, *news: Any) -> None:
        now = time.monotonic()
        if now - self._last >= _PAUSE:
            self._last = now
            self._tell(*news)
