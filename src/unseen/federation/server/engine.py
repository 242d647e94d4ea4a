"""The engine between machines: it asks the sites in signed messages, and counts an answer only after every check."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from unseen.client import Client
from unseen.engines.checking import AnswerOutline, Checker, odd_ones_out, outline_of
from unseen.engines.cohort import SCORING_ASK, RoundCohort, number_drawn, scored, taking_part
from unseen.engines.tasks import Place, answer_type, path_of
from unseen.errors import BadInput, NoReplies, RefusedReply
from unseen.experiment import Experiment
from unseen.federation.cards import SiteCard, agree, refuse_bad_card, server_world
from unseen.federation.kits import Federation
from unseen.federation.messages import Message, SignedMessage, open_message, sign
from unseen.files import write_atomically
from unseen.method import Refused
from unseen.own_code import MEMORY, names_code, texts_in
from unseen.payload import Payload
from unseen.runs.memory import FILE_OF_MEMORY, Memories, Versions
from unseen.runs.traffic import Traffic
from unseen.scoring import Model, Scores
from unseen.world import World

__all__ = ["Carrier", "FederatedRun", "FederationEngine", "Terms", "federate"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)


class Carrier(Protocol):
    """Carries messages to the sites and brings each answer as it comes, or says why none came."""

    def exchange(self, messages: Mapping[str, SignedMessage], seconds: float) -> Iterator[tuple[str, SignedMessage | str]]: ...


@dataclass(frozen=True)
class Terms:
    """What the server waits for."""

    deadline: float = 600.0  # seconds for one exchange
    minimum_clients: int = 1  # usable answers without which a round does not count
    most_bytes: int = 2**31 - 1  # of one answer


class SiteMemories(Memories):
    """The sites keep their memories; the server keeps which version counts, and what must not be thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.keep: set[str] = set()

    def holds(self, file: str) -> bool:
        return True  # a site that lost it says so when it is asked

    def sweep(self, *keep: Versions) -> None:
        self.keep = self.named(*keep)


class Exchange:
    """Signed questions to the sites of one federation, and their answers, each opened once and only if it fits the question."""

    def __init__(self, federation: Federation, carrier: Carrier, terms: Terms) -> None:
        self._federation, self._carrier, self._terms = federation, carrier, terms
        self._key = federation.signing

    def ask(self, questions: Mapping[str, Message]) -> Iterator[tuple[str, Message | Refused]]:
        """The answers as they come, one in memory at a time."""
        signed, asked = {}, {}
        for client, question in questions.items():
            asked[client] = {**question.header, "federation": self._federation.id, "to": client, "nonce": secrets.token_hex(16)}
            signed[client] = sign(Message(asked[client], question.payload), self._key, "question")
        for client, reply in self._carrier.exchange(signed, self._terms.deadline):
            yield client, self._opened(client, asked[client], reply)

    def _opened(self, client: str, question: Mapping[str, Any], reply: SignedMessage | str) -> Message | Refused:
        if isinstance(reply, str):
            return Refused(reply)
        try:
            message = open_message(reply, self._federation.public_key(client), "answer", self._terms.most_bytes)
        except RefusedReply as refusal:
            return Refused(str(refusal))
        header = message.header
        if any(header.get(key) != question[key] for key in ("federation", "nonce", "run")) or header.get("from") != client:
            return Refused("an answer to another question")
        if header.get("status") != "ok":
            return Refused(f"{header.get('status')} by the site: {header.get('reason')}"[:500])
        return message


@dataclass(frozen=True)
class Arrived:
    """An answer that passed its checks and waits for the others."""

    file: Path
    outline: AnswerOutline
    staged: dict[str, str]
    epsilon: float | None


class AnswerFiles:
    """Where answers wait for the last one, on disk: memory does not grow with the number of sites."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    def __enter__(self) -> AnswerFiles:
        self.__exit__()  # what a killed process left
        self._folder.mkdir(parents=True, mode=0o700)
        return self

    def put(self, data: bytes) -> Path:
        self._number += 1
        file = self._folder / f"{self._number}.answer"
        file.write_bytes(data)
        return file

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class FederationEngine:
    """Answers a method's questions with the sites of a federation."""

    def __init__(
        self, world: World, schema: dict[str, Any], cards: Mapping[str, SiteCard], exchange: Exchange, terms: Terms, folder: Path
    ) -> None:
        self.world, self.memory = world, SiteMemories()
        self._schema, self._cards, self._exchange, self._terms = schema, cards, exchange, terms
        self._run, self._waiting = _name_of_run(folder), folder / "answers"
        self._checker = Checker(world)
        self._spent: dict[str, float] = {}

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
        common = next(iter(downs.values())).to_bytes() if shared and downs else b""
        questions = {name: Message(self._header(name, path, place), common or downs[name].to_bytes()) for name in sorted(downs)}
        with AnswerFiles(self._waiting) as answer_files:
            arrived: dict[str, Arrived | Refused] = {}
            for name, reply in self._exchange.ask(questions):
                arrived[name] = self._checked(name, reply, up_type, downs[name], answer_files)
            outlines = {name: answer.outline for name, answer in arrived.items() if not isinstance(answer, Refused)}
            arrived |= {name: Refused(reason) for name, reason in odd_ones_out(outlines).items()}
            self._refuse_too_few(path, place, arrived)
            for name, answer in sorted(arrived.items()):
                if isinstance(answer, Refused):
                    yield name, answer
                    continue
                self.memory.commit(name, answer.staged)
                if answer.epsilon is not None:
                    self._spent[name] = answer.epsilon
                # It was checked before it was written here, so its bytes need only be decoded. To keep the decoded answers instead
                # would put every site's model in memory at once.
                yield name, cast(U, up_type.from_bytes(answer.file.read_bytes()))

    def _refuse_too_few(self, path: str, place: Place, arrived: Mapping[str, Arrived | Refused]) -> None:
        refused = {name: answer.reason for name, answer in sorted(arrived.items()) if isinstance(answer, Refused)}
        good, needed = len(arrived) - len(refused), self._terms.minimum_clients
        if place.ask != SCORING_ASK and good < min(needed, len(arrived)):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise NoReplies(f"{good} of {len(arrived)} clients gave a usable answer to {path}, {needed} are needed ({reasons})")

    def _header(self, client: str, path: str, place: Place) -> dict[str, Any]:
        experiment = self.world.experiment
        return {
            "run": self._run,
            "task": path,
            "round": place.round,
            "ask": place.ask,
            "last": place.round >= experiment.rounds,
            "clients": len(taking_part(self.world, place.round)),
            "experiment": experiment.description(),
            "schema": self._schema,
            "versions": self.memory.versions.get(client, {}),
            "keep": sorted(self.memory.keep),
        }

    def _checked(
        self, client: str, reply: Message | Refused, up_type: type[Payload], down: Payload, answer_files: AnswerFiles
    ) -> Arrived | Refused:
        if isinstance(reply, Refused):
            return reply
        epsilon = reply.header.get("epsilon")
        try:
            staged = _file_names(reply.header.get("staged"))
            answer = self._checker.read(up_type, reply.payload, down, self._cards[client]["samples"])
        except RefusedReply as refusal:
            return Refused(str(refusal))
        return Arrived(answer_files.put(reply.payload), outline_of(answer), staged, epsilon if isinstance(epsilon, float) else None)


def _file_names(staged: Any) -> dict[str, str]:
    """The versions of memories that a site wrote, by kind; each name must be one that this site could have given."""
    fits = (
        isinstance(staged, dict) and len(staged) <= 100 and all(isinstance(f, str) and FILE_OF_MEMORY.fullmatch(f) for f in staged.values())
    )
    if not fits or not all(kind.isidentifier() for kind in staged):
        raise RefusedReply("names memories in a way that is not taken")
    return dict(staged)


@dataclass(frozen=True)
class FederatedRun:
    """A run whose clients are the sites of a federation."""

    world: World
    _schema: dict[str, Any]
    _cards: Mapping[str, SiteCard]
    _exchange: Exchange
    _terms: Terms

    def engine(self, run: Path) -> FederationEngine:
        return FederationEngine(self.world, self._schema, self._cards, self._exchange, self._terms, run)


def federate(experiment: Experiment, federation: Federation, carrier: Carrier, terms: Terms, say: Callable[[str], None]) -> FederatedRun:
    """Ask the sites who they are, and make the run's world of their cards."""
    if experiment.partition != "per-domain" or experiment.protocol != "leave-one-domain-out" or experiment.held_out:
        raise BadInput("between machines every site is a client: partition, protocol and held_out cannot be chosen")
    described = {key: value for key, value in experiment.description().items() if key not in ("data", "label")}
    own = [text for text in texts_in(described) if names_code(text) or text.startswith(MEMORY)]
    if own:
        raise BadInput(f"between machines only what is installed at the sites runs; {own[0]} is code of your own")
    exchange = Exchange(federation, carrier, terms)
    hello = {"run": "", "task": "hello", "seed": experiment.seed, "validation": experiment.validation}
    say(f"asking {', '.join(federation.clients)} whether they take part")
    replies = dict(sorted(exchange.ask({client: Message(hello) for client in federation.clients})))
    cards: dict[str, SiteCard] = {}
    for client, reply in replies.items():
        try:
            cards[client] = refuse_bad_card(reply.header.get("card") if isinstance(reply, Message) else None)
        except BadInput:
            say(f"{client} does not take part: {reply.reason if isinstance(reply, Refused) else 'its card cannot be read'}")
    wanted = {s.strip() for s in experiment.sources.split(",")} if experiment.sources else None
    cards = {name: card for name, card in cards.items() if card["evaluates"] or wanted is None or name in wanted}
    _refuse_unfit(experiment, cards, wanted, terms)
    schema = agree(str(experiment.data), cards)
    return FederatedRun(server_world(experiment, schema, cards), schema, cards, exchange, terms)


def _refuse_unfit(experiment: Experiment, cards: Mapping[str, SiteCard], wanted: set[str] | None, terms: Terms) -> None:
    training = [name for name, card in cards.items() if not card["evaluates"]]
    problems = []
    if len(training) < max(1, terms.minimum_clients):
        problems.append(f"{len(training)} sites are there to train; {max(1, terms.minimum_clients)} are needed")
    elif (drawn := number_drawn(len(training), experiment.participation)) < terms.minimum_clients:
        problems.append(
            f"participation draws {drawn} of {len(training)} sites a round; minimum_clients is {terms.minimum_clients}: raise participation"
        )
    if experiment.target is not None and not cards.get(experiment.target, {}).get("evaluates"):
        problems.append(f"the target {experiment.target!r} must be a site that joined with --evaluate-only")
    problems += [f"source {name!r} is not there" for name in sorted((wanted or set()) - set(cards))]
    if problems:
        raise BadInput(problems)


def _name_of_run(run: Path) -> str:
    """The name under which sites keep their memories of this run: the same after a resume."""
    file = run / "federation-run"
    if not file.exists():
        write_atomically(file, secrets.token_hex(16))
    return file.read_text().strip()
