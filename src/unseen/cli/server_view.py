"""`unseen serve` as a person sees it: who is connected, how each study stands, and what it waits for."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.text import Text

from unseen.cli.live import LiveView, plain_table
from unseen.federation.activity import Event, amount, clock_text
from unseen.federation.kits import Federation, read_register
from unseen.federation.server.standing import StudyStanding, log_of, standings

__all__ = ["STUDY_HEADINGS", "ServerView", "study_rows"]

STUDY_HEADINGS = ("study", "method", "round", "came in", "waits for")
_MOST_STUDIES = 5  # shown; the newest
_LOOK = 1.0  # seconds between two looks at the disk


def study_rows(found: list[StudyStanding]) -> list[tuple[str, ...]]:
    """A row for each study: its name, method, how far it is, what came, what it waits for."""
    return [
        (one.study[:8], one.method + (", sums" if one.sums else ""), f"{one.round} of {one.rounds}", amount(one.bytes), one.waits_for)
        for one in found
    ]


class ServerView(LiveView):
    """Shows a server at work. What a run does, it reads in the federation's folder: a run is another process."""

    def __init__(self, console: Console, federation: Federation, where: str) -> None:
        super().__init__(console, log_of(federation.path), "Ctrl-C ends the server.")
        self._federation, self._where = federation, where
        self._members: dict[str, tuple[bool, float]] = {}
        self._studies: list[StudyStanding] = []
        self._next_look = 0.0

    def take(self, event: Event) -> None:
        if event.site and event.kind in ("connected", "lost"):
            self._members[event.site] = event.kind == "connected", time.monotonic()

    def body(self) -> list[RenderableType]:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK
            self._studies = standings(self._federation.path)[-_MOST_STUDIES:]
        head = Text.assemble(
            (f"server of federation {self._federation.id}", "bold"), f"  {self._where}, up {clock_text(now - self._began)}"
        )
        rows = [self._row(name, now) for name in sorted(self._names())]
        parts: list[RenderableType] = [head, Text()]
        parts.append(plain_table(("site", "line", "last answer"), rows) if rows else Text("no member yet: unseen federation admit"))
        if self._studies:
            parts += [Text(), plain_table(STUDY_HEADINGS, study_rows(self._studies))]
        return parts

    def _names(self) -> set[str]:
        try:
            return set(read_register(self._federation.path)["clients"])
        except ValueError:  # it cannot be read just now, and that was said
            return set(self._members)

    def _row(self, name: str, now: float) -> tuple[str, str, str]:
        there, since = self._members.get(name, (False, self._began))
        line = f"{'connected' if there else 'not connected'}, for {clock_text(now - since)}"
        last = [one.last[name] for one in self._studies if name in one.last]
        return name, line, last[-1] if last else ""
