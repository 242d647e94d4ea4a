"""What a command that stays shows of its work: a calm view in a terminal, a line per event elsewhere, and always lines in a log.

The view takes its own place on the screen and leaves nothing there. Whatever came from another machine is shown as plain text.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unseen.federation.activity import BoundedLog, Event, printable

__all__ = ["LiveView", "plain_table"]

_SHOWN = 8  # events
_LOOKS_A_SECOND = 2.0
_STYLES = {"refused": "red", "failed": "red", "lost": "yellow", "waits": "yellow", "approved": "green", "connected": "green"}


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], folds: bool = False) -> Table:
    """A table of texts as they are: no markup, no control characters. The last column is cut at the end of the line, or folds."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings[:-1]):  # only the last one gives way on a narrow screen
        table.add_column(heading, no_wrap=True, min_width=max(len(heading), *(len(row[number]) for row in rows)) if rows else None)
    table.add_column(headings[-1], no_wrap=not folds, overflow="fold" if folds else "ellipsis")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


class LiveView:
    """Looks on, and shows what it sees. What a subclass makes of events is its own: `take` and `body`."""

    def __init__(self, console: Console, log: Path, leave: str) -> None:
        self._console, self._log, self._leave = console, BoundedLog(log), f"{leave}  All of it is in {log}"
        self._last: deque[tuple[str, Event]] = deque(maxlen=_SHOWN)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._began = time.monotonic()

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, transient=True, refresh_per_second=_LOOKS_A_SECOND, get_renderable=self.render, redirect_stderr=False
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._log(event)
            self._last.append((time.strftime("%H:%M:%S"), event))
            self.take(event)
        if self._live is None:
            self._console.print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event.line}", markup=False, highlight=False)

    def say(self, message: str) -> None:
        self(Event("note", message))

    def take(self, event: Event) -> None:
        """Learn from an event."""

    def body(self) -> list[RenderableType]:
        """What is shown above the last events."""
        return []

    def render(self) -> RenderableType:
        with self._lock:
            body, end = Group(*self.body()), Text(self._leave, style="dim")
            room = self._console.height - len(self._console.render_lines(Group(body, end))) - 3  # two empty lines, and one to spare
            if room <= 0:
                return Group(body, end)
            events = Table.grid(padding=(0, 1))
            for at, event in [*self._last][-room:]:
                line = Text(event.brief, style=_STYLES.get(event.kind, ""), overflow="ellipsis", no_wrap=True)
                events.add_row(Text(at, style="dim"), line)
            return Group(body, Text(), events, Text(), end)
