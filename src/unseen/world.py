"""An experiment brought to life: the data, who holds what, and the networks. Every process that works on it builds the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from unseen.data import load
from unseen.data.augment import RECIPES, Augment
from unseen.data.domain import Domain, DomainDataset, Fold, Holding, Samples
from unseen.data.partition.partitions import by_name
from unseen.data.partition.protocol import choose_fold
from unseen.errors import BadInput, choose
from unseen.experiment import Experiment
from unseen.method import Shapes, Surroundings
from unseen.networks import build_network
from unseen.networks.base import TaskNet
from unseen.networks.pretrained import Pretrained
from unseen.randomness import seeded_block
from unseen.state import Entries, State, entries_of, state_of

__all__ = ["World", "assemble", "build_world", "refuse_obstacles"]


@dataclass(frozen=True, eq=False)
class World:
    """What tasks run in. The unseen domains are in `evaluators`, which no method and no partition can reach."""

    experiment: Experiment
    dataset: DomainDataset
    fold: Fold
    holdings: Mapping[str, Holding]  # by client
    evaluators: Mapping[str, Holding]  # targets, and a held-out source: scored, never trained on
    builders: Mapping[str, Callable[[], nn.Module]]  # by role
    augment: Augment
    device: torch.device
    _entries: dict[str, Entries] = field(default_factory=dict, init=False, repr=False)

    @property
    def network(self) -> str:
        """The task network by name, as the method needs it."""
        return self.experiment.method.network(self.experiment.network or self.dataset.network)

    @property
    def clients(self) -> list[str]:
        return sorted(self.holdings)

    def fresh(self, role: str) -> State:
        """The initial weights of a network, the same in every process."""
        if role == "task" and self.experiment.weights is not None:
            return state_of(self._seeded(role, self._task_net_with_weights))
        return state_of(self._seeded(role, self.builders[role]))

    def entries(self, role: str) -> Entries:
        """What the state of that network consists of: names, shapes, and which entries are parameters, head or normalisation."""
        if role not in self.builders:
            raise KeyError(f"no network for the role {role!r}; this run has {', '.join(sorted(self.builders))}")
        if role not in self._entries:
            self._entries[role] = entries_of(self._seeded(role, self.builders[role]))
        return self._entries[role]

    def _seeded(self, role: str, build: Callable[[], nn.Module]) -> nn.Module:
        with seeded_block(torch.device("cpu"), self.experiment.seed, "fresh", role):
            return build()

    def _task_net_with_weights(self) -> TaskNet:
        return _task_net(self.experiment, self.dataset, self.experiment.weights)


def build_world(experiment: Experiment) -> World:
    """Everything an experiment needs, checked before round 1."""
    dataset = _dataset(experiment.data, experiment.size) if isinstance(experiment.data, str) else experiment.data
    sources = [s.strip() for s in experiment.sources.split(",")] if experiment.sources else None
    fold = choose_fold(
        dataset, experiment.protocol, target=experiment.target, source=experiment.source, sources=sources, held_out=experiment.held_out
    )
    partition = by_name(experiment.partition, clients=experiment.clients, validation=experiment.validation, minimum=experiment.minimum)
    world = assemble(experiment, dataset, fold, {h.client: h for h in partition(fold.sources, experiment.seed)})
    refuse_obstacles(world)
    return world


def assemble(experiment: Experiment, dataset: DomainDataset, fold: Fold, holdings: Mapping[str, Holding]) -> World:
    """The networks and the rest, around data that were dealt out."""
    method = experiment.method
    if dataset.task.name not in method.tasks:
        able = ", ".join(method.tasks)
        raise BadInput(f"{experiment.name} does {able}; {dataset.name} is a data set for {dataset.task.name}")
    make = functools.partial(_task_net, experiment, dataset, None)
    _refuse_other_outputs(method.network(experiment.network or dataset.network), make, dataset)
    recipe = dataset.augment if experiment.augment == "auto" else choose("augmentation recipe", experiment.augment, [*RECIPES, "auto"])
    return World(
        experiment=experiment,
        dataset=dataset,
        fold=fold,
        holdings=holdings,
        evaluators={d.name: _whole(d) for d in (*fold.targets, *fold.held_out)},
        builders={"task": make, **method.networks(_shapes(dataset, _look(experiment, make)))},
        augment=RECIPES[recipe],
        device=torch.device(experiment.device),
    )


def _look(experiment: Experiment, make: Callable[[], TaskNet]) -> TaskNet:
    """A task network to look at."""
    with seeded_block(torch.device("cpu"), experiment.seed, "look"):
        return make()


def _refuse_other_outputs(name: str, make: Callable[[], TaskNet], dataset: DomainDataset) -> None:
    """A network made for the other task would fail only in the first step."""
    with torch.device("meta"):  # shapes without numbers
        logits = make().eval()(torch.empty(1, dataset.channels, *dataset.size))
    per_pixel = logits.ndim == 4
    if per_pixel != (dataset.task.name == "segmentation"):
        gives = "one answer per pixel" if per_pixel else "one answer per image"
        fit = f"use {dataset.network}, which is its usual one"
        raise BadInput(f"network {name!r} gives {gives}; {dataset.name} is a data set for {dataset.task.name}, so {fit}")


def _shapes(dataset: DomainDataset, net: TaskNet) -> Shapes:
    return Shapes(dataset.task.outputs, dataset.channels, dataset.size, net.feature_size)


@functools.lru_cache(maxsize=2)
def _dataset(spec: str, size: int | None) -> DomainDataset:
    """A benchmark runs many experiments over one data set: make or open it once."""
    return load(spec, size=size)


def _task_net(experiment: Experiment, dataset: DomainDataset, weights: str | None) -> TaskNet:
    name = experiment.method.network(experiment.network or dataset.network)
    return build_network(name, outputs=dataset.task.outputs, channels=dataset.channels, size=dataset.size, weights=weights)


def _counts(holdings: Mapping[str, Holding]) -> tuple[dict[str, int], dict[str, int]]:
    return {n: len(h.train) for n, h in holdings.items()}, {n: len(h.validation) for n, h in holdings.items()}


def refuse_obstacles(world: World) -> None:
    """Raise BadInput with everything that keeps the method from running here."""
    method, net = world.experiment.method, _look(world.experiment, world.builders["task"])  # type: ignore[arg-type]
    around = Surroundings(world.dataset.task.name, _shapes(world.dataset, net), net, *_counts(world.holdings))
    problems = [f"{type(method).__name__}: {obstacle}" for obstacle in method.obstacles(around)]
    for make in world.builders.values():
        if isinstance(make, Pretrained):
            make.file()  # a missing file is told before round 1
    if problems:
        raise BadInput(problems)


def _whole(domain: Domain) -> Holding:
    none: Any = np.empty(0, dtype=np.int64)
    everything = np.arange(len(domain), dtype=np.int64)
    return Holding(domain.name, domain.name, Samples(((domain, none),)), Samples(((domain, everything),)))
