"""Files are written by a thread of their own, in the order in which they were given, while the next round trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Writer"]

_WAITING = 6  # writes that may wait: each may hold a model


class Writer:
    """What fails is raised at a later call, and nothing given after it is written: no checkpoint names a file that is not there."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._failed: BaseException | None = None

    def later(self, write: Callable[..., None], *given: Any) -> None:
        """Have `write(*given)` done. What is given must not change any more."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= _WAITING):
            self._waiting.popleft().result()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "unseen-writer")
        self._waiting.append(self._thread.submit(self._write, write, *given))

    def flush(self) -> None:
        """Wait until everything is on the disk."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Flush, and end the thread, whatever fails."""
        try:
            self.flush()
        finally:
            self._waiting.clear()
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    def _write(self, write: Callable[..., None], *given: Any) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            write(*given)
        except BaseException as error:
            self._failed = error
            raise
