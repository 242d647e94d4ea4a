"""A finished run brought back to life: its network, and the data it was made on where those are at hand.

A run's folder may come from anybody. Nothing that it names as code is imported unless the user says that they trust it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from unseen.data import load
from unseen.data.domain import Domain, DomainDataset, Fold, Holding, Pixels, Samples
from unseen.data.partition.partitions import partition_hash
from unseen.data.reading.source import listed
from unseen.deploy.fitting import fitted
from unseen.deploy.weights import refuse_other_weights
from unseen.errors import BadInput, choose
from unseen.experiment import Experiment, read_experiment
from unseen.networks.base import TaskNet
from unseen.own_code import Own, names_code, texts_in
from unseen.runs.folder import read_run
from unseen.runs.record import Record, read_records
from unseen.runs.selection import RULES
from unseen.task import Classification, Segmentation, Task
from unseen.world import World, assemble, build_world

__all__ = ["FinishedRun", "finished_run"]

_MOST_CHANNELS, _MOST_SIDE = 1024, 4096  # of an image
_FILES = {"source": "best.safetensors", "last": "model.safetensors"}


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder: its world, its records and the network of one of its rounds."""

    folder: Path
    about: dict[str, Any]
    world: World
    records: Sequence[Record]
    index: int  # of the record of the chosen round
    net: TaskNet

    @property
    def record(self) -> Record:
        return self.records[self.index]

    def __repr__(self) -> str:
        return f"FinishedRun({str(self.folder)!r}: {self.about.get('name')}, round {self.record['round']} of {len(self.records)})"

    @property
    def has_images(self) -> bool:
        """Not after a run between sites, unless some were given: then the domains are names alone."""
        return any(len(domain) for domain in self.world.dataset.domains)


def finished_run(
    folder: Path, rule: str = "source", data: DomainDataset | str | None = None, *, without_data: bool = False, trust: bool = False
) -> FinishedRun:
    """Read a run.

    `data` is needed where the run was made on a data set that exists only in Python, or that has moved. Of a run between sites the
    data are nowhere: give some to look at, or none. `without_data` does without those of any run. `trust`: you know who wrote the
    folder, so that code which it names (FILE.py:NAME) may run with your rights.
    """
    choose("selection rule with a model", rule, _FILES)
    about = read_run(folder) if folder.is_dir() else None
    if about is None:
        raise BadInput(f"{folder} is no run's folder; give the --out of `unseen run`, or a run inside that of `unseen bench`")
    records = read_records(folder / "records.jsonl")
    told = _told(folder, about)
    if len(records) < told.rounds:
        raise BadInput(f"{folder} has {len(records)} of {told.rounds} rounds; resume it first")
    index = RULES[rule].picks(records)
    file = folder / _FILES[rule]
    if index is None or not file.is_file():
        raise BadInput(f"{folder} has no {file.name}; choose another --rule")
    elsewhere = without_data or about.get("between_sites", False)
    described = _changed_for(told.experiment, elsewhere, data)
    _refuse_code(folder, described, trust)
    experiment = read_experiment(described, own_code=trust)
    _refuse_other_network(file, experiment, told.model)
    world = _from_description(folder, told, experiment, data) if elsewhere else _with_its_data(folder, told, experiment, data)
    net = world.builders["task"]()
    try:
        net.load_state_dict(safetensors.torch.load_file(file))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise BadInput(f"{file} does not hold this run's network ({str(error).splitlines()[0]})") from error
    assert isinstance(net, TaskNet)
    return FinishedRun(folder, about, world, records, index, net.eval())


@dataclass(frozen=True)
class _Model:
    """What run.json says that the model takes."""

    network: str
    task: Task
    channels: int
    size: tuple[int, int]
    pixels: Pixels


@dataclass(frozen=True)
class _Told:
    """What run.json says, in the types that it should have."""

    experiment: dict[str, Any]
    rounds: int
    fold: str
    partition: str
    clients: dict[str, str]  # the domains that each holds
    targets: tuple[str, ...]
    model: _Model | None  # runs of older versions do not say it


def _told(folder: Path, about: Mapping[str, Any]) -> _Told:
    try:
        experiment, clients = dict(about["experiment"]), {str(name): str(c["domain"]) for name, c in about["clients"].items()}
        targets = tuple(str(name) for name in about["targets"])
        model = _model(about) if "model" in about else None
        partition = str(about["partition"])
        return _Told(experiment, int(experiment["rounds"]), str(about["fold"]), partition, clients, targets, model)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise BadInput(f"{folder / 'run.json'} was not written by `unseen run`, or was changed ({said}); restore it") from error


def _model(about: Mapping[str, Any]) -> _Model:
    model, kinds = about["model"], {"classification": Classification, "segmentation": Segmentation}
    task: Task = kinds[about["task"]](tuple(str(label) for label in model["labels"]))
    height, width = (int(side) for side in model["size"])
    channels = int(model["channels"])
    if not (min(height, width, channels) >= 1 and max(height, width) <= _MOST_SIDE and channels <= _MOST_CHANNELS):
        raise ValueError(f"images of {channels} x {height} x {width}")
    mean, std = (tuple(float(number) for number in model[key]) for key in ("mean", "std"))
    return _Model(str(model["network"]), task, channels, (height, width), Pixels(mean, std))


def _changed_for(described: Mapping[str, Any], elsewhere: bool, data: DomainDataset | str | None) -> dict[str, Any]:
    """The experiment as it is brought back to life. What is given in place of the run's own is not looked at."""
    changed = {**described, "device": "cpu"}
    if elsewhere:
        return {**changed, "data": "styled-digits", "partition": "per-domain"}
    name = str(described.get("data"))
    if name.startswith("memory:") and data is None:
        raise BadInput(f"this run's data set {name.removeprefix('memory:')!r} was made in Python; call the function and give it as data=")
    return {**changed, "data": "styled-digits"} if data is not None else changed


def _refuse_code(folder: Path, described: Mapping[str, Any], trust: bool) -> None:
    named = sorted({text for text in texts_in(described) if names_code(text)})
    if named and not trust:
        raise BadInput(
            f"{folder / 'run.json'} names code in a file: {listed(named)}. It would run with your rights, and whoever wrote the folder "
            "chose it, so it is not run. If you know who wrote it, or the run is your own, add --trust (in Python trust=True)"
        )


def _refuse_other_network(file: Path, experiment: Experiment, model: _Model | None) -> None:
    """Before a network of any size that run.json asks for is made."""
    if model is not None and not isinstance(experiment.network, Own):
        name = experiment.method.network(str(experiment.network or model.network))
        refuse_other_weights(file, name, outputs=model.task.outputs, channels=model.channels, size=model.size)


def _with_its_data(folder: Path, told: _Told, experiment: Experiment, data: DomainDataset | str | None) -> World:
    """The run's own world, the same samples in the same hands."""
    try:
        world = build_world(experiment if data is None else replace(experiment, data=data))
    except BadInput as bad:
        hint = "A model can be exported where its data are not at hand, uncalibrated: add --without-data"
        raise BadInput([*bad.problems[:-1], f"{bad.problems[-1]}. {hint}"]) from None
    if partition_hash(list(world.holdings.values())) != told.partition:
        raise BadInput(
            f"{world.dataset.name} is not as it was when {folder} was made: the clients would hold other samples. "
            "Restore the data, or export with --without-data"
        )
    return world


def _from_description(folder: Path, told: _Told, experiment: Experiment, data: DomainDataset | str | None) -> World:
    """The world as run.json tells it. Domains of `data` that no client held are unseen; without `data`, domains are empty."""
    model = told.model
    if model is None:
        raise BadInput(f"{folder / 'run.json'} does not say what its model takes; it is of an older version, and needs its data")
    held = dict.fromkeys(name for domains in told.clients.values() for name in domains.split("+"))
    if isinstance(data, str):
        data = load(data, size=model.size[0])
    domains = (
        tuple(_empty(name, model.task, model.channels, model.size) for name in (*held, *told.targets))
        if data is None
        else fitted(data, model.task, model.channels, model.size)
    )
    dataset = DomainDataset(str(told.experiment.get("data")), model.task, domains, model.pixels, model.network)
    sources = tuple(d for d in domains if d.name in held)
    targets = tuple(d for d in domains if d.name not in held)
    nothing = Samples(())
    holdings = {name: Holding(name, domain, nothing, nothing) for name, domain in told.clients.items()}
    return assemble(experiment, dataset, Fold(told.fold, sources, targets), holdings)


def _empty(name: str, task: Task, channels: int, size: tuple[int, int]) -> Domain:
    labels = np.empty(0, dtype=np.int64) if task.name == "classification" else np.empty((0, task.outputs, *size), dtype=np.uint8)
    return Domain(name, np.empty((0, channels, *size), dtype=np.uint8), labels)
