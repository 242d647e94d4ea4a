"""What the process with the data tells of its work: which question of which study, what left, how long it took."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from unseen.engines.tasks import Place
from unseen.federation.activity import Event, Kind, Observer
from unseen.federation.site.approving import NotApproved
from unseen.federation.site.studies import HeldStudy
from unseen.federation.study.study import Study, asks_of, phase_of
from unseen.federation.study.words import task_in_words

__all__ = ["Telling"]

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Telling:
    """Makes events of what a responder does."""

    def __init__(self, observer: Observer, evaluates: bool) -> None:
        self._observer, self._evaluates, self._began = observer, evaluates, 0.0

    def begin(self) -> None:
        """A question came: from now on it takes time."""
        self._began = time.monotonic()

    def note(self, kind: Kind, text: str = "", task: str = "", size: int = 0, study: str = "") -> None:
        self._observer(Event(kind, text, study=study, task=task, bytes=size, seconds=time.monotonic() - self._began))

    def of(self, kind: Kind, held: HeldStudy, place: Place | None = None, step: int = 0, size: int = 0, text: str = "") -> None:
        """What happened in a study, at a place of it."""
        study, task, then = held.study, "", ""
        if place is not None:
            then = _next(study, place, self._evaluates)
            task = task_in_words(study, place.round, place.ask, step)
        took, where = time.monotonic() - self._began, place.round if place else None
        self._observer(Event(kind, text, "", study.digest, where, study.rounds, task, size, took, then))

    def refusal(self, refusal: Exception, header: Mapping[str, Any]) -> None:
        self.note("waits" if isinstance(refusal, NotApproved) else "refused", str(refusal), study=_study_of(header))

    def failure(self, why: str, header: Mapping[str, Any]) -> None:
        self.note("failed", f"{why}; site.log has more", study=_study_of(header))


def _next(study: Study, place: Place, evaluates: bool) -> str:
    """What this site is asked after the question at that place, as the study has it."""
    asks = asks_of(study.plan)
    later = [ask for phase, ask in sorted(asks) if phase == phase_of(place.round, place.ask) and ask > place.ask > 0]
    if later:
        return f"{asks[phase_of(place.round, place.ask), later[0]]}, round {place.round}"
    if place.ask > 0 and place.round > 0:
        return f"the score after round {place.round}"
    if place.round >= study.rounds:
        return "nothing: the study is at its end"
    first = "" if evaluates else asks.get(("round", 1), "")
    return f"{first or 'the score'}, round {place.round + 1}"


def _study_of(header: Mapping[str, Any]) -> str:
    """The study that a question names, if it names one."""
    name = header.get("study")
    return name if isinstance(name, str) and _DIGEST.fullmatch(name) else ""
