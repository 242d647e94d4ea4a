"""A whole federation in one process: the real engine, letters and desks, with a post that carries by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from unseen import Experiment
from unseen.data.domain import Domain, DomainDataset
from unseen.federation.desk import Desk
from unseen.federation.engine import FederatedRun, Terms, federate
from unseen.federation.folder import Federation, init, open_kit
from unseen.federation.letters import Sealed
from unseen.federation.policy import Policy

Tamper = Callable[[str, Sealed], Sealed | str]
EVERYTHING = Policy(kinds=("model", "spectrum", "score", "statistic", "count"), fields_that_grow=True)


def alone(dataset: DomainDataset, name: str) -> DomainDataset:
    """What one site holds."""
    domain = dataset[name]
    own = Domain(name, domain.images, domain.labels, domain.groups, domain.split, domain.spacing)
    return DomainDataset(f"site {name}", dataset.task, (own,), dataset.pixels, dataset.network, dataset.augment)


class HandPost:
    """Brings letters to desks in this process; `tamper` may change an answer on its way, or lose it by returning a reason."""

    def __init__(self, desks: Mapping[str, Desk], tamper: Tamper = lambda client, sealed: sealed) -> None:
        self.desks, self.tamper = dict(desks), tamper
        self.carried: list[tuple[str, Sealed, Sealed]] = []

    def exchange(self, letters: Mapping[str, Sealed], seconds: float) -> Iterator[tuple[str, Sealed | str]]:
        for client, letter in reversed(letters.items()):  # answers come in any order
            answer = self.desks[client].answer(letter)
            self.carried.append((client, letter, answer))
            yield client, self.tamper(client, answer)


class Town:
    """A federation over the domains of a data set; the target, if any, only evaluates."""

    def __init__(self, folder: Path, dataset: DomainDataset, target: str | None, policies: Mapping[str, Policy] | None = None) -> None:
        self.folder, self.dataset, self.target = folder, dataset, target
        self.federation: Federation = init(folder / "server", "localhost", list(dataset.names))
        self.policies = policies or {}
        self.post = HandPost({name: self.desk(name) for name in dataset.names})

    def desk(self, name: str) -> Desk:
        site = self.folder / name
        kit = open_kit(self.federation.path / "kits" / f"{name}.kit", site)
        policy = self.policies.get(name, EVERYTHING)
        return Desk(kit, alone(self.dataset, name), policy, site, evaluates=name == self.target, device="cpu")

    def federate(self, experiment: Experiment, terms: Terms | None = None) -> FederatedRun:
        self.said: list[str] = []
        return federate(experiment, self.federation, self.post, terms or Terms(), self.said.append)
