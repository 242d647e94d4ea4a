"""How often one looks for what nobody announces: a letter in a folder, a message at Flower's."""

from __future__ import annotations

import time

__all__ = ["Pause"]


class Pause:
    """Between two looks: a small part of the time for which there was nothing, so that waiting costs little more of it."""

    least, most = 0.02, 3.0  # seconds
    _part = 1 / 32

    def __init__(self, least: float | None = None, most: float | None = None) -> None:
        self.least, self.most = least or self.least, most or self.most
        self._busy_at = time.monotonic()

    def rest(self, busy: bool, at_most: float = float("inf")) -> None:
        now = time.monotonic()
        if busy:
            self._busy_at = now
        seconds = min(self.most, max(self.least, (now - self._busy_at) * self._part))
        time.sleep(max(0.0, min(seconds, at_most)))
