"""`unseen join` as a person sees it: the line to the server, each study with its work, and what waits for a decision."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from unseen.cli.live import LiveView, plain_table
from unseen.federation.activity import Event, amount, clock_text, printable

__all__ = ["SiteView", "how_to_approve"]

_MOST_STUDIES = 5  # shown; the last ones that something happened in


def how_to_approve(folder: Path, digest: str) -> list[str]:
    """The two commands for a study that waits at a site."""
    return [f"unseen study {what} {digest[:8]} --site {folder}" for what in ("show", "approve")]


@dataclass
class _Study:
    """What is known of one study here."""

    state: str = ""
    round: int | None = None
    rounds: int = 0
    working: tuple[str, float] | None = None  # the task, and since when
    left: dict[str, int] = field(default_factory=lambda: {"bytes": 0, "answers": 0})

    @property
    def now(self) -> str:
        if self.working is None:
            return self.state
        task, since = self.working
        return f"{task}, for {clock_text(time.monotonic() - since)}"


class SiteView(LiveView):
    """Shows a site at work."""

    def __init__(self, console: Console, site: str, federation: str, folder: Path) -> None:
        super().__init__(console, folder / "site.log", "Ctrl-C leaves the federation.")
        self._site, self._federation, self._folder = site, federation, folder
        self._line, self._since = "not connected yet", time.monotonic()
        self._studies: dict[str, _Study] = {}
        self._told: set[str] = set()

    def take(self, event: Event) -> None:
        if event.kind in ("connected", "lost"):
            self._line, self._since = ("" if event.kind == "connected" else "not ") + f"connected: {event.text}", time.monotonic()
        if event.study:
            self._of(event)

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind == "waits" and event.study not in self._told:
            self._told.add(event.study)
            if self._live is None:
                self._console.print("  to look at it, and to approve it without a pause of this command:", markup=False)
                for command in how_to_approve(self._folder, event.study):
                    self._console.print(f"    {command}", markup=False, highlight=False)

    def _of(self, event: Event) -> None:
        study = self._studies.pop(event.study, _Study())
        self._studies[event.study] = study  # the last one that something happened in is the last
        study.rounds = event.rounds or study.rounds
        study.round = event.round if event.round is not None else study.round
        study.working = None
        match event.kind:
            case "asked":
                study.working = event.task, time.monotonic()
            case "answered":
                study.left["bytes"] += event.bytes
                study.left["answers"] += 1
                study.state = f"next: {event.next}" if event.next else "waits for the server"
            case "waits":
                study.state = "waits for approval"
            case "approved":
                study.state = "approved, not begun"
            case "ended":
                study.state = "ended"
            case "refused" | "failed":
                study.state = f"{event.kind}: {event.text}"
            case _:
                study.state = event.text or study.state

    def body(self) -> list[RenderableType]:
        head = Text.assemble((f"{self._site}", "bold"), f"  federation {self._federation}, here for {_since(self._began)}")
        parts: list[RenderableType] = [head, Text(f"{printable(self._line)}, for {_since(self._since)}")]
        shown = [*self._studies.items()][-_MOST_STUDIES:]
        if shown:
            rows = [(digest[:8], _round(s), s.now, f"{amount(s.left['bytes'])} in {s.left['answers']} answers") for digest, s in shown]
            parts += [Text(), plain_table(("study", "round", "now", "left since the start"), rows)]
        else:
            parts += [Text(), Text("no study yet; waiting for a question")]
        for digest, study in shown:
            if study.state == "waits for approval":
                commands = "\n".join(f"  {command}" for command in how_to_approve(self._folder, digest))
                parts += [Text(), Text(f"Study {digest[:8]} waits. To look at it, and to approve it in another terminal:\n{commands}")]
        return parts


def _round(study: _Study) -> str:
    return f"{study.round} of {study.rounds}" if study.round is not None else "-"


def _since(moment: float) -> str:
    return clock_text(int(time.monotonic() - moment)).replace(".0 s", " s")
