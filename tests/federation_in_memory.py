"""A whole federation in one process: the real engine, messages and responders, and a carrier that calls the responders itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unseen import Experiment
from unseen.data.domain import Domain, DomainDataset
from unseen.federation.kits import Federation, init, open_kit
from unseen.federation.messages import SignedMessage
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import FederatedRun, begin, federate
from unseen.federation.site.policy import KINDS, Policy
from unseen.federation.site.responder import Responder

Tamper = Callable[[str, SignedMessage], SignedMessage | str]
BY_RULE: dict[str, Any] = {"studies": "by-rule", "most_studies": 10**6, "most_splits": 10**6, "most_orders": 10**6}
FEW: dict[str, Any] = {
    "smallest_batch": 1,
    "fewest_images": 1,
    "fewest_validation": 0,
    "fewest_classes": 0,
    "minimum_clients": 1,
}  # tiny data have few of all
EVERYTHING = Policy(
    kinds=KINDS,
    others_see=KINDS,
    fields_that_grow=True,
    spectrum_reach=0.5,
    images_per_spectrum=1,
    numbers_per_spectrum=10**6,
    **BY_RULE,
    **FEW,
)


def alone(dataset: DomainDataset, name: str) -> DomainDataset:
    """What one site holds."""
    domain = dataset[name]
    own = Domain(name, domain.images, domain.labels, domain.groups, domain.split, domain.spacing)
    return DomainDataset(f"site {name}", dataset.task, (own,), dataset.pixels, dataset.network, dataset.augment)


def place_of(signed: SignedMessage) -> tuple[int, int] | None:
    """The round and the number of a question in it; None for one that asks for no work."""
    header = json.loads(signed.header)
    return (header["round"], header["ask"]) if header["task"] == "ask" else None


def is_work(answer: SignedMessage) -> bool:
    """Whether an answer is to a question of a study's plan."""
    return "staged" in json.loads(answer.header)


class DirectCarrier:
    """Brings messages to responders in this process; `tamper` may change an answer on its way, or lose it by returning a reason."""

    def __init__(self, responders: Mapping[str, Responder], tamper: Tamper = lambda client, signed: signed) -> None:
        self.responders, self.tamper = dict(responders), tamper
        self.carried: list[tuple[str, SignedMessage, SignedMessage]] = []

    def exchange(self, messages: Mapping[str, SignedMessage], seconds: float) -> Iterator[tuple[str, SignedMessage | str]]:
        for client, message in reversed(messages.items()):  # answers come in any order
            answer = self.responders[client].answer(message)
            self.carried.append((client, message, answer))
            yield client, self.tamper(client, answer)


class FederationInMemory:
    """A federation over the domains of a data set; the target, if any, only evaluates."""

    def __init__(
        self,
        folder: Path,
        dataset: DomainDataset,
        target: str | None,
        policies: Mapping[str, Policy] | None = None,
        by_rule: bool = True,
    ) -> None:
        self.by_rule = by_rule  # sites approve by their rules what keeps them, as often as they are asked
        self.folder, self.dataset, self.target = folder, dataset, target
        self.server: Federation = init(folder / "server", "localhost", list(dataset.names))
        self.policies = policies or {}
        self.carrier = DirectCarrier({name: self.responder(name) for name in dataset.names})

    def responder(self, name: str) -> Responder:
        site = self.folder / name
        kit = open_kit(self.server.path / "kits" / f"{name}.kit", site)
        policy = self.policies.get(name, EVERYTHING)
        if self.by_rule:
            policy = replace(policy, **BY_RULE)
        return Responder(kit, alone(self.dataset, name), policy, site, evaluates=name == self.target, device="cpu")

    def federate(self, experiment: Experiment, terms: Terms | None = None, sums: bool = False) -> FederatedRun:
        self.said: list[str] = []
        return federate(experiment, self.server, self.carrier, terms or Terms(), self.said.append, sums)

    def again(self, run: FederatedRun, terms: Terms | None = None) -> FederatedRun:
        """The same study, begun again by a server that was restarted."""
        return begin(run.world.experiment, run.study, self.server, self.carrier, terms or Terms(), self.said.append)


class KillingCarrier(DirectCarrier):
    """After every answer the site's process is killed; every so many answers, the server's."""

    def __init__(self, federation: FederationInMemory, every: int) -> None:
        super().__init__(federation.carrier.responders)
        self.federation, self.every, self.kills = federation, every, 0

    def exchange(self, messages: Mapping[str, SignedMessage], seconds: float) -> Iterator[tuple[str, SignedMessage | str]]:
        for client, message in messages.items():
            answer = self.responders[client].answer(message)
            self.responders[client] = self.federation.responder(client)
            self.carried.append((client, message, answer))
            if len(self.carried) % self.every == 0:
                self.kills += 1
                raise KeyboardInterrupt
            yield client, answer
