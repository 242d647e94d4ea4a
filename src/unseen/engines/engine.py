"""What `training` needs of an engine: whoever answers a method's questions, in this process or between machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from unseen.client import Client
from unseen.engines.tasks import Place
from unseen.memory import Versions
from unseen.method import Refused
from unseen.payload import Payload
from unseen.report.traffic import Traffic
from unseen.scoring import Model, Scores

if TYPE_CHECKING:
    from unseen.engines.local import RoundCohort

__all__ = ["Answering", "Engine", "Memories"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)


class Memories(Protocol):
    """The clients' memories, wherever they lie: which version of each counts."""

    versions: Versions

    def holds(self, file: str) -> bool:
        """Whether a version can still be recalled."""

    def sweep(self, *keep: Versions) -> None:
        """Forget every version that neither counts now nor is named here."""


class Answering(Protocol):
    """Asks clients, and gives their answers in name order, each checked before it and the client's memory count."""

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]: ...


class Engine(Answering, Protocol):
    @property
    def memory(self) -> Memories: ...

    def cohort(self, round_number: int) -> RoundCohort: ...

    def notes(self) -> dict[str, Any]:
        """What a round's record should say of the engine; nothing, as a rule."""

    def score(self, round_number: int, model: Model) -> tuple[dict[str, Scores], Traffic]:
        """The global model on every client's validation part and on every unseen domain."""
