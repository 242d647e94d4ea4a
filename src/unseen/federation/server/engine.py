"""The engine between machines: it asks the sites in signed messages, as their study has it, and counts an answer only after every check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from unseen.client import Client
from unseen.codec import decode_file, encode_parts
from unseen.engines.checking import Checker, outline_from_plain
from unseen.engines.cohort import SCORING_ASK, RoundCohort, scored, taking_part
from unseen.engines.tasks import Place, answer_type, path_of
from unseen.engines.telling import Asked, Look
from unseen.errors import BadInput, NoReplies, RefusedReply
from unseen.federation.messages import Message
from unseen.federation.server.beside import epsilon_told, file_names
from unseen.federation.server.exchange import Exchange, unusable
from unseen.federation.server.journal import Arrived, Journal, PlaceJournal
from unseen.federation.server.summing import Summing
from unseen.federation.study.approvals import Approval
from unseen.federation.study.study import Study
from unseen.method import Refused
from unseen.payload import Payload, declarations
from unseen.runs.memory import Memories, Versions
from unseen.runs.traffic import Traffic
from unseen.scoring import Model, Scores
from unseen.world import World

__all__ = ["FederationEngine"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)


class SiteMemories(Memories):
    """The sites keep their memories; the server keeps which version counts."""

    def holds(self, file: str) -> bool:
        return True  # a site that lost it says so when it is asked

    def sweep(self, *keep: Versions) -> None:
        """A site throws away by itself what no checkpoint can need."""


class FederationEngine:
    """Answers a method's questions with the sites of a study."""

    def __init__(self, world: World, study: Study, approvals: Mapping[str, Approval], exchange: Exchange, folder: Path) -> None:
        self.world, self.memory = world, SiteMemories()
        self.look: Look | None = None
        self._study, self._approvals, self._exchange = study, approvals, exchange
        self._journal = Journal(folder / "answers")
        self._checker = Checker(world)
        self._spent: dict[str, float] = {}
        self._silent: tuple[int, set[str]] = (0, set())  # the round, and who did not answer a question that was put to it alone

    def cohort(self, round_number: int) -> RoundCohort:
        return RoundCohort(self, self.world, round_number)

    def notes(self) -> dict[str, Any]:
        """How much privacy each site that adds noise says it has spent so far."""
        return {"epsilon": dict(sorted(self._spent.items()))} if self._spent else {}

    def score(self, round_number: int, model: Model) -> tuple[dict[str, Scores], Traffic]:
        return scored(self, self.world, round_number, model)

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]:
        path = path_of(task, self.world.experiment.method)
        up_type = answer_type(task, path, downs)
        if self._study.task_at(place.round, place.ask) != path:
            raise BadInput(f"the study has no question {path!r} at number {place.ask} of round {place.round}; propose it anew")
        journal = self._journal.at(place)
        if not journal.closed and self._study.is_summed(place.round, place.ask):
            if not shared:
                raise BadInput(f"{path} asks each client something else, and answers to different questions are not summed")
            summing = Summing(self._study, self._approvals, self._exchange, self._checker)
            summing.ask(
                up_type, next(iter(downs.values())), sorted(downs), place, journal, lambda name, step: self._header(name, place, step)
            )
        elif not journal.closed:
            self._ask_the_rest(path, up_type, downs, place, shared, journal)
        arrived, file, up = journal.answers(), None, None
        self._refuse_too_few(path, place, arrived, journal)
        for name, answer in sorted(arrived.items()):
            if isinstance(answer, Refused):
                yield name, answer
                continue
            self.memory.commit(name, answer.staged)
            if answer.epsilon is not None:
                self._spent[name] = answer.epsilon
            # It was checked before it was written here, so its bytes need only be decoded. To keep the decoded answers instead
            # would put every site's model in memory at once; and what is only averaged is left on the disk until then. What sites
            # answered on average is one file for all of them.
            if answer.file != file:
                file, up = answer.file, None
                up = decode_file(up_type, answer.file, self._averaged(up_type))
            yield name, cast(U, up)

    def _averaged(self, up_type: type[Payload]) -> list[str]:
        """The fields of an answer of which the server only takes the mean."""
        if any(True for _ in self.world.experiment.method.needs_each()):
            return []
        return [name for name, told in declarations(up_type).items() if told.mean]

    def _ask_the_rest(
        self, path: str, up_type: type[Payload], downs: Mapping[str, Payload], place: Place, shared: bool, journal: PlaceJournal
    ) -> None:
        """Ask whoever has not answered this question yet, and write down what came."""
        waiting = sorted(downs.keys() - journal.answers().keys())
        common = journal.question(encode_parts(next(iter(downs.values()))) if shared and downs else ())
        payloads = {name: common.bytes or downs[name].to_bytes() for name in waiting}
        questions = {name: Message(self._header(name, place), payloads[name], rest=common.rest) for name in waiting}
        del payloads
        refused = {}
        asked = Asked(self.look, place, path, len(questions)) if self.look is not None else None
        for name, reply in self._exchange.ask(questions):
            outcome = self._checked(name, reply, up_type, downs[name], place, journal)
            if isinstance(outcome, Refused):
                refused[name] = outcome.reason
            del reply  # one in memory at a time
            if asked is not None:
                asked.answer(name)
        journal.close(refused)

    def _refuse_too_few(self, path: str, place: Place, arrived: Mapping[str, Arrived | Refused], journal: PlaceJournal) -> None:
        """Whether enough answered for the round to count. Where one client after the other is asked, it is those of the whole round."""
        refused = {name: answer.reason for name, answer in sorted(arrived.items()) if isinstance(answer, Refused)}
        good, asked, needed = len(arrived) - len(refused), len(arrived), self._study.minimum_clients
        if asked == 1 < len(everyone := taking_part(self.world, place.round)):
            before = self._silent[1] if self._silent[0] == place.round else set[str]()
            self._silent = place.round, before | refused.keys()
            good, asked = len(everyone) - len(self._silent[1]), len(everyone)
        if place.ask != SCORING_ASK and good < min(needed, asked):
            journal.reopen()  # when the run is resumed
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise NoReplies(f"{good} of {asked} clients gave a usable answer to {path}, {needed} are needed ({reasons})")

    def _header(self, client: str, place: Place, step: int = 0) -> dict[str, Any]:
        return {
            "task": "ask",
            "study": self._study.digest,
            "round": place.round,
            "ask": place.ask,
            "step": step,
            "versions": self.memory.versions.get(client, {}),
        }

    def _checked(
        self, client: str, reply: Message | Refused, up_type: type[Payload], down: Payload, place: Place, journal: PlaceJournal
    ) -> Arrived | Refused:
        """Whatever goes wrong while an answer is read is a refusal of that answer."""
        if isinstance(reply, Refused):
            return reply
        expected = outline_from_plain(self._study.shapes_at(place.round, place.ask))
        try:
            staged = file_names(reply.header.get("staged"), self.memory.versions.get(client, {}))
            epsilon = epsilon_told(reply.header.get("epsilon"))
            self._checker.refuse_bytes(up_type, reply.payload, down, sum(self._approvals[client].counts), expected)
        except RefusedReply as refusal:
            return unusable(refusal)
        return journal.put(client, reply.payload, staged, epsilon)
