"""An experiment brought to life: the data, who holds what, and the networks. Every process that works on it builds the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unseen.data.augment import RECIPES, Augmentation, own_augmentation
from unseen.data.domain import Domain, DomainDataset, Fold, Holding, Partition, Samples
from unseen.data.own import open_data
from unseen.data.partition.partitions import by_name, own_partition
from unseen.data.partition.protocol import choose_fold
from unseen.errors import BadInput, choose
from unseen.experiment import Experiment
from unseen.method import Shapes, Surroundings
from unseen.metrics import own_score
from unseen.networks import build_network
from unseen.networks.base import TaskNet, network_entries
from unseen.networks.own import build_own_network
from unseen.networks.pretrained import Pretrained
from unseen.own_code import Own, telling_where
from unseen.randomness import seeded_block
from unseen.state import Entries, State, state_of
from unseen.task import Task

__all__ = ["World", "assemble", "build_world", "refuse_obstacles"]


@dataclass(frozen=True, eq=False)
class World:
    """What tasks run in. The unseen domains are in `evaluators`, which no method and no partition can reach."""

    experiment: Experiment
    dataset: DomainDataset
    fold: Fold
    holdings: Mapping[str, Holding]  # by client
    evaluators: Mapping[str, Holding]  # targets, a held-out source, a pooled client's domains: scored, never trained on
    builders: Mapping[str, Callable[[], nn.Module]]  # by role
    augment: Augmentation
    device: torch.device
    compiled: bool = False  # whether passes over whole batches are compiled
    _entries: dict[str, Entries] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        return f"World({self.experiment!r}: {', '.join(self.clients)} train {self.network}; {self.fold!r})"

    @property
    def network(self) -> str:
        """The task network by name, as the method needs it."""
        name = str(self.experiment.network or self.dataset.network)
        return name if isinstance(self.experiment.network, Own) else self.experiment.method.network(name)

    @property
    def as_built(self) -> Experiment:
        """The experiment with what was decided here, for other processes that build this world."""
        return replace(self.experiment, compile="on" if self.compiled else "off")

    @property
    def clients(self) -> list[str]:
        return sorted(self.holdings)

    @property
    def validated(self) -> list[str]:
        """The domains whose validation samples one pooled client holds: it is scored on each of them too."""
        return sorted(self.evaluators.keys() - {domain.name for domain in (*self.fold.targets, *self.fold.held_out)})

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
            self._entries[role] = network_entries(self._seeded(role, self.builders[role]))
        return self._entries[role]

    def _seeded(self, role: str, build: Callable[[], nn.Module]) -> nn.Module:
        with seeded_block(torch.device("cpu"), self.experiment.seed, "fresh", role):
            return build()

    def _task_net_with_weights(self) -> TaskNet:
        return _task_net(self.experiment, self.dataset, self.experiment.weights)


def build_world(experiment: Experiment) -> World:
    """Everything an experiment needs, checked before round 1."""
    data = experiment.data
    dataset = open_data(data, experiment.size) if isinstance(data, str | Own) else data
    assert isinstance(dataset, DomainDataset)
    sources = [s.strip() for s in experiment.sources.split(",")] if experiment.sources else None
    fold = choose_fold(
        dataset, experiment.protocol, target=experiment.target, source=experiment.source, sources=sources, held_out=experiment.held_out
    )
    partition = _partition(experiment)
    world, net = _assembled(experiment, dataset, fold, {h.client: h for h in partition(fold.sources, experiment.seed)})
    refuse_obstacles(world, net)
    return world


def assemble(experiment: Experiment, dataset: DomainDataset, fold: Fold, holdings: Mapping[str, Holding]) -> World:
    """The networks and the rest, around data that were dealt out."""
    return _assembled(experiment, dataset, fold, holdings)[0]


def _assembled(experiment: Experiment, dataset: DomainDataset, fold: Fold, holdings: Mapping[str, Holding]) -> tuple[World, TaskNet]:
    """The same, and a task network to look at: building a large one takes a second."""
    method = experiment.method
    if dataset.task.name not in method.tasks:
        able = ", ".join(method.tasks)
        raise BadInput(f"{experiment.name} does {able}; {dataset.name} is a data set for {dataset.task.name}")
    if experiment.compile == "on" and not method.compiles:
        raise BadInput(f"compile is 'on', but {experiment.name} has no pass that is compiled; use --compile auto or off")
    make = functools.partial(_task_net, experiment, dataset, None)
    net = _look(experiment, make)
    if not isinstance(experiment.network, Own):  # its shapes are looked at whenever it is built
        _refuse_other_outputs(method.network(str(experiment.network or dataset.network)), net, dataset)
    evaluators = {d.name: _whole(d) for d in (*fold.targets, *fold.held_out)} | _by_domain(holdings)
    if experiment.metric is not None:
        dataset = replace(dataset, task=_going_by(experiment, dataset.task, [*holdings.values(), *evaluators.values()]))
    world = World(
        experiment=experiment,
        dataset=dataset,
        fold=fold,
        holdings=holdings,
        evaluators=evaluators,
        builders={"task": make, **method.networks(_shapes(experiment, dataset, fold, net))},
        augment=_augmentation(experiment, dataset),
        device=torch.device(experiment.device),
        compiled=experiment.compile == "on",
    )
    world._entries["task"] = network_entries(net)
    return world, net.train()


def _look(experiment: Experiment, make: Callable[[], TaskNet]) -> TaskNet:
    """A task network to look at."""
    with seeded_block(torch.device("cpu"), experiment.seed, "look"):
        return make()


def _refuse_other_outputs(name: str, net: TaskNet, dataset: DomainDataset) -> None:
    """A network made for the other task would fail only in the first step."""
    with torch.no_grad():
        logits = net.eval()(torch.zeros(1, dataset.channels, *dataset.size))
    per_pixel = logits.ndim == 4
    if per_pixel != (dataset.task.name == "segmentation"):
        gives = "one answer per pixel" if per_pixel else "one answer per image"
        fit = f"use {dataset.network}, which is its usual one"
        raise BadInput(f"network {name!r} gives {gives}; {dataset.name} is a data set for {dataset.task.name}, so {fit}")


def _shapes(experiment: Experiment, dataset: DomainDataset, fold: Fold, net: TaskNet) -> Shapes:
    def network(outputs: int) -> TaskNet:
        kind: Any = type(dataset.task)
        return _task_net(experiment, replace(dataset, task=kind(tuple(map(str, range(outputs))))), None)

    return Shapes(dataset.task.outputs, dataset.channels, dataset.size, net.feature_size, network, len(fold.sources))


def _partition(experiment: Experiment) -> Partition:
    how = experiment.partition
    if isinstance(how, Own):
        return own_partition(how, experiment.clients)
    return by_name(str(how), clients=experiment.clients, validation=experiment.validation, minimum=experiment.minimum)


def _augmentation(experiment: Experiment, dataset: DomainDataset) -> Augmentation:
    how = experiment.augment
    if isinstance(how, Own):
        x = torch.rand(2, dataset.channels, *dataset.size, generator=torch.Generator().manual_seed(0))
        masks = dataset.task.name == "segmentation"
        y = torch.zeros((2, dataset.task.outputs, *dataset.size), dtype=torch.uint8) if masks else torch.zeros(2, dtype=torch.long)
        return own_augmentation(how, x, y)
    return RECIPES[dataset.augment if how == "auto" else choose("augmentation recipe", str(how), [*RECIPES, "auto"])]


def _going_by(experiment: Experiment, task: Task, holdings: Sequence[Holding]) -> Task:
    """The task with the experiment's metric. A user's own is tried on the labels that it will be asked about, with random answers."""
    metric = experiment.metric
    if not isinstance(metric, Own):
        return task.going_by(str(metric))
    rng = torch.Generator().manual_seed(0)
    for holding in holdings:
        if len(holding.validation):
            labels = _some_labels(holding.validation, task)
            answers = torch.randn((len(labels), task.outputs, *labels.shape[2:]), generator=rng)
            with telling_where(f"metric {metric} failed on the labels of {holding.client!r}"):
                own_score(metric, answers.sigmoid() if labels.ndim == 4 else answers.softmax(1), labels)
    return task.going_by(metric)


def _some_labels(samples: Samples, task: Task) -> Tensor:
    if task.name == "classification":
        return torch.from_numpy(samples.classes())
    return samples.take(torch.arange(min(len(samples), 8)))[1]


def _task_net(experiment: Experiment, dataset: DomainDataset, weights: str | None) -> TaskNet:
    name, task = experiment.network or dataset.network, dataset.task
    if isinstance(name, Own):
        return build_own_network(name, task=task, channels=dataset.channels, size=dataset.size, weights=weights)
    named = experiment.method.network(str(name))
    return build_network(named, outputs=task.outputs, channels=dataset.channels, size=dataset.size, weights=weights)


def _counts(holdings: Mapping[str, Holding]) -> tuple[dict[str, int], dict[str, int]]:
    return {n: len(h.train) for n, h in holdings.items()}, {n: len(h.validation) for n, h in holdings.items()}


def refuse_obstacles(world: World, net: TaskNet | None = None) -> None:
    """Raise BadInput with everything that keeps the method from running here; `net` is a task network to look at."""
    method, net = world.experiment.method, net or _look(world.experiment, world.builders["task"])  # type: ignore[arg-type]
    domains = {name: len({domain.name for domain, _ in holding.train.parts}) for name, holding in world.holdings.items()}
    shapes = _shapes(world.experiment, world.dataset, world.fold, net)
    around = Surroundings(world.dataset.task.name, shapes, net, *_counts(world.holdings), world.dataset.name, domains)
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


def _by_domain(holdings: Mapping[str, Holding]) -> dict[str, Holding]:
    """The validation samples of one client that holds all domains, domain by domain: a large domain does not select alone."""
    if len(holdings) != 1:
        return {}
    (name, only), none = next(iter(holdings.items())), np.empty(0, dtype=np.int64)
    parts = only.validation.parts
    if len(parts) < 2 or name in {domain.name for domain, _ in parts}:
        return {}
    return {d.name: Holding(d.name, d.name, Samples(((d, none),)), Samples(((d, index),))) for d, index in parts}
