"""From an experiment to a study that the sites have signed: ask what data there are, rehearse, propose, gather the approvals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from unseen.data.sets.registry import DATASETS
from unseen.engines.cohort import number_drawn
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.federation.activity import Observer, nobody
from unseen.federation.cards import SiteCard, agree, refuse_bad_card, server_world
from unseen.federation.kits import Federation
from unseen.federation.messages import Message
from unseen.federation.server.engine import FederationEngine
from unseen.federation.server.exchange import Carrier, Exchange, Terms
from unseen.federation.server.journal import Journal
from unseen.federation.study.approvals import Approval, read_approval
from unseen.federation.study.rehearsal import rehearse
from unseen.federation.study.study import Participant, Study, read_signed_study
from unseen.federation.sums.summable import refusals
from unseen.files import OWNER_ALONE, write_atomically
from unseen.method import Refused
from unseen.own_code import MEMORY, names_code, texts_in
from unseen.world import World

__all__ = ["FederatedRun", "begin", "federate", "propose", "read_study_file"]

_OWN_AFFAIR = ("data", "label", "device", "threads", "preset")  # what each machine decides for itself

Say = Callable[[str], None]


@dataclass(frozen=True)
class FederatedRun:
    """A run whose clients are the sites of a study that they approved."""

    world: World
    study: Study
    _signed: bytes
    _approvals: Mapping[str, Approval]
    _exchange: Exchange

    @property
    def agreement(self) -> str:
        return self.study.digest

    def engine(self, run: Path) -> FederationEngine:
        write_atomically(run / "study.json", self._signed, OWNER_ALONE)
        return FederationEngine(self.world, self.study, self._approvals, self._exchange, run)

    def end(self, run: Path) -> None:
        """The run has its last round: the sites' single answers are not kept."""
        Journal(run / "answers").clear()


def federate(experiment: Experiment, federation: Federation, carrier: Carrier, terms: Terms, say: Say, sums: bool = False) -> FederatedRun:
    """Propose the study of this experiment and begin it at once, with the sites whose rules approve it."""
    study = propose(experiment, federation, carrier, terms, say, sums)
    return begin(experiment, study, federation, carrier, terms, say)


def propose(
    experiment: Experiment,
    federation: Federation,
    carrier: Carrier,
    terms: Terms,
    say: Say,
    sums: bool = False,
    observer: Observer = nobody,
) -> Study:
    """The whole study, after a rehearsal."""
    _refuse_own_affairs(experiment, federation)
    exchange = Exchange(federation, carrier, terms, observer)
    say(f"asking {', '.join(federation.clients)} what data they have")
    hello = {"task": "hello"}
    replies = dict(sorted(exchange.ask({client: Message({**hello, "nonce": token_hex(16)}) for client in federation.clients})))
    cards: dict[str, SiteCard] = {}
    for client, reply in replies.items():
        try:
            cards[client] = refuse_bad_card(reply.header.get("card") if isinstance(reply, Message) else None)
        except BadInput:
            say(f"{client} does not take part: {reply.reason if isinstance(reply, Refused) else 'its card cannot be read'}")
    wanted = {s.strip() for s in experiment.sources.split(",")} if experiment.sources else None
    cards = {name: card for name, card in cards.items() if card["evaluates"] or wanted is None or name in wanted}
    _refuse_unfit(experiment, {name: card["evaluates"] for name, card in cards.items()}, wanted, terms)
    schema = agree(str(experiment.data), cards)
    training = sorted(name for name, card in cards.items() if not card["evaluates"])
    if sums and (problems := list(refusals(experiment.method, len(training), experiment.participation))):
        raise BadInput(problems)
    say(f"rehearsing {experiment.name} on made-up images")
    rehearsed = rehearse(experiment, schema, training, sums)
    return Study(
        federation=federation.id,
        proposal=token_hex(16),
        experiment=_plain(experiment),
        schema=schema,
        participants={name: _participant(federation.clients[name], card["evaluates"]) for name, card in cards.items()},
        minimum_clients=max(1, terms.minimum_clients),
        sums=sums,
        passed_on=rehearsed.passed_on,
        weights=rehearsed.weights,
        plan=rehearsed.plan,
    )


def _participant(keys: Mapping[str, str], evaluates: bool) -> Participant:
    return Participant(keys["signing"], keys["node"], keys["box"], evaluates)


def read_study_file(file: Path, federation: Federation) -> Study:
    """A study that this federation's server signed."""
    try:
        return read_signed_study(file.read_bytes(), federation.signing.public_key())
    except OSError as error:
        raise BadInput(f"no study {file} ({error.strerror})") from None


def begin(
    experiment: Experiment,
    study: Study,
    federation: Federation,
    carrier: Carrier,
    terms: Terms,
    say: Say,
    observer: Observer = nobody,
) -> FederatedRun:
    """Gather the sites' approvals, give all of them to everyone, and make the run's world."""
    _refuse_another_experiment(experiment, study, federation)
    exchange, signed = Exchange(federation, carrier, terms, observer), study.signed(federation.signing)
    say(f"asking {', '.join(study.participants)} to begin study {study.digest[:16]}")
    question = {"task": "begin", "study": study.digest}
    approvals: dict[str, Approval] = {}
    for client, reply in exchange.ask({name: Message(question, signed) for name in study.participants}):
        try:
            if isinstance(reply, Refused):
                raise BadInput(reply.reason)
            approval = read_approval(reply.header.get("approval"))
            approval.refuse_forged(study)
            if approval.site != client:
                raise BadInput("its approval is another site's")
            if study.sums and approval.box is None:
                raise BadInput("it gave no key for the sums of this study; server and sites need the same version of unseen")
            approvals[client] = approval
        except BadInput as bad:
            say(f"{client} does not take part: {bad}")
    approvals = dict(sorted(approvals.items()))
    _refuse_unfit(experiment, {name: study.participants[name].evaluates for name in approvals}, None, terms)
    text = json.dumps([one.plain() for one in approvals.values()]).encode()
    agreed = {"task": "agreed", "study": study.digest}
    for client, reply in exchange.ask({name: Message(agreed, text) for name in approvals}):
        if isinstance(reply, Refused):
            say(f"{client} approved the study, but does not take part with these sites: {reply.reason}")
    counts = {name: approval.counts for name, approval in approvals.items()}
    world = server_world(experiment, study.schema, counts, {name: study.participants[name].evaluates for name in counts})
    return FederatedRun(world, study, signed, approvals, exchange)


def _plain(experiment: Experiment) -> dict[str, Any]:
    """The experiment without what is this machine's own affair. Of the first weights, a study states the hashes."""
    plain = {key: value for key, value in experiment.description().items() if key not in _OWN_AFFAIR}
    return {**plain, "weights": None if experiment.weights is None else "imagenet" if experiment.weights == "imagenet" else "a file"}


def _refuse_another_experiment(experiment: Experiment, study: Study, federation: Federation) -> None:
    if study.federation != federation.id:
        raise BadInput("the study is of another federation")
    other = sorted(key for key, value in json.loads(json.dumps(_plain(experiment))).items() if study.experiment.get(key) != value)
    if other:
        raise BadInput(f"the study was proposed with another {other[0]}; run it as it is, or propose a new one")
    strange = sorted(n for n, site in study.participants.items() if federation.clients.get(n, {}).get("signing") != site.signing)
    if strange:
        raise BadInput(f"{', '.join(strange)} of the study is not in the federation any more under that key; propose a new study")


def _refuse_own_affairs(experiment: Experiment, federation: Federation) -> None:
    if experiment.partition != "per-domain" or experiment.protocol != "leave-one-domain-out" or experiment.held_out:
        raise BadInput("between machines every site is a client: partition, protocol and held_out cannot be chosen")
    described = {key: value for key, value in experiment.description().items() if key not in ("data", "label")}
    own = [text for text in texts_in(described) if names_code(text) or text.startswith(MEMORY)]
    if own:
        raise BadInput(f"between machines only what is installed at the sites runs; {own[0]} is code of your own")
    strange = [name for name in experiment.method.public_sets() if name not in DATASETS]
    if strange:
        raise BadInput(f"between machines public images are a data set by name (`unseen data`); {strange[0]!r} names files of this machine")
    if not federation.clients:
        raise BadInput(f"nobody is in the federation yet; admit sites with `unseen federation admit {federation.path} NAME.request`")


def _refuse_unfit(experiment: Experiment, evaluates: Mapping[str, bool], wanted: set[str] | None, terms: Terms) -> None:
    training = [name for name, only in evaluates.items() if not only]
    problems = []
    if len(training) < max(1, terms.minimum_clients):
        problems.append(f"{len(training)} sites are there to train; {max(1, terms.minimum_clients)} are needed")
    elif (drawn := number_drawn(len(training), experiment.participation)) < terms.minimum_clients:
        problems.append(
            f"participation draws {drawn} of {len(training)} sites a round; minimum_clients is {terms.minimum_clients}: raise participation"
        )
    if experiment.target is not None and experiment.target not in evaluates:
        problems.append(f"the target {experiment.target!r} does not take part")
    elif experiment.target is not None and not evaluates[experiment.target]:
        problems.append(f"the target {experiment.target!r} must be a site that joined with --evaluate-only")
    problems += [f"source {name!r} is not there" for name in sorted((wanted or set()) - set(evaluates))]
    if problems:
        raise BadInput(problems)
