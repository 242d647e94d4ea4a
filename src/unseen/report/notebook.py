"""Progress of a run in a notebook: one line that is written anew, and stays as what the run came to."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any

from unseen.runs.record import Record
from unseen.runs.screen import in_words
from unseen.runs.selection import source_score
from unseen.runs.watch import Silent, Within
from unseen.world import World

__all__ = ["NotebookBar", "in_notebook"]


_PAUSE = 0.5  # seconds between two drawings within a round


def in_notebook() -> bool:
    """Whether this is a kernel, which shows HTML. Nothing is imported to find out."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookBar(Silent):
    """A bar below the cell. What the unseen domain scores is not shown while the run goes."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._title, self._rounds, self._done, self._told, self._began, self._first = "", 0, 0, "", 0.0, 0
        self._said: list[str] = []
        self._now, self._drawn = "", 0.0

    def begin(self, world: World, done: int) -> None:
        unseen = ", ".join(domain.name for domain in world.fold.targets)
        self._title = f"{world.experiment.name} on {world.dataset.name}, unseen: {unseen}"
        self._rounds, self._done, self._first, self._began = world.experiment.rounds, done, done, time.monotonic()
        self._show()

    def within(self, where: Within) -> None:
        if time.monotonic() - self._drawn > _PAUSE:
            self._now = f", {in_words(where)}"
            self._show()

    def round(self, record: Record, seconds: float) -> None:
        self._done, self._now = record["round"], ""
        score = source_score(record)
        self._told = "" if score is None else f", {record['metric']} on source validation {100 * score:.1f} %"
        self._show()

    def say(self, message: str) -> None:
        self._said.append(message)
        self._show()

    def _show(self) -> None:
        from IPython.display import HTML, display

        spent = time.monotonic() - self._began if self._began else 0.0
        new = self._done - self._first
        left = f", about {spent / new * (self._rounds - self._done):.0f} s left" if new > 0 and self._done < self._rounds else ""
        bar = f'<progress value="{self._done}" max="{max(1, self._rounds)}" style="vertical-align: middle"></progress>'
        line = f"round {self._done} of {self._rounds}{self._told}{self._now}; {spent:.0f} s{left}"
        self._drawn = time.monotonic()
        html = HTML("".join(f"<div>{text}</div>" for text in (*map(escape, self._said), f"{escape(self._title)} {bar} {escape(line)}")))
        if self._handle is None:
            self._handle = display(html, display_id=True)
        else:
            self._handle.update(html)
