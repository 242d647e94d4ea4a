"""What `training` needs of an engine: whoever answers a method's questions, in this process or between machines."""

from __future__ import annotations

from typing import Any, Protocol

from unseen.engines.cohort import Answering, RoundCohort
from unseen.engines.telling import Look
from unseen.runs.memory import Memories
from unseen.runs.traffic import Traffic
from unseen.scoring import Model, Scores

__all__ = ["Engine"]


class Engine(Answering, Protocol):
    look: Look | None  # who is told how far a question has come

    @property
    def memory(self) -> Memories: ...

    def cohort(self, round_number: int) -> RoundCohort: ...

    def notes(self) -> dict[str, Any]:
        """What a round's record should say of the engine; nothing, as a rule."""

    def score(self, round_number: int, model: Model) -> tuple[dict[str, Scores], Traffic]:
        """The global model on every client's validation part and on every unseen domain, and each client's own model where it has one."""
