"""A finished run brought back to life: its network, and the data it was made on where those are at hand."""

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
from unseen.deploy.fitting import fitted
from unseen.errors import BadInput, choose
from unseen.experiment import Experiment, read_experiment
from unseen.networks.base import TaskNet
from unseen.runs.folder import read_run
from unseen.runs.record import Record, read_records
from unseen.runs.selection import RULES
from unseen.task import Classification, Segmentation, Task
from unseen.world import World, assemble, build_world

__all__ = ["FinishedRun", "finished_run"]

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

    @property
    def has_images(self) -> bool:
        """Not after a run between sites, unless some were given: then the domains are names alone."""
        return any(len(domain) for domain in self.world.dataset.domains)


def finished_run(folder: Path, rule: str = "source", data: DomainDataset | str | None = None, *, without_data: bool = False) -> FinishedRun:
    """Read a run.

    `data` is needed where the run was made on a data set that exists only in Python, or that has moved. Of a run between sites the
    data are nowhere: give some to look at, or none. `without_data` does without those of any run.
    """
    choose("selection rule with a model", rule, _FILES)
    about = read_run(folder) if folder.is_dir() else None
    if about is None:
        raise BadInput(f"{folder} is no run's folder; give the --out of `unseen run`, or a run inside that of `unseen bench`")
    records = read_records(folder / "records.jsonl")
    if len(records) < about["experiment"]["rounds"]:
        raise BadInput(f"{folder} has {len(records)} of {about['experiment']['rounds']} rounds; resume it first")
    index = RULES[rule].picks(records)
    file = folder / _FILES[rule]
    if index is None or not file.is_file():
        raise BadInput(f"{folder} has no {file.name}; choose another --rule")
    elsewhere = without_data or about.get("between_sites", False)
    world = _from_description(folder, about, data) if elsewhere else _with_its_data(folder, about, data)
    net = world.builders["task"]()
    try:
        net.load_state_dict(safetensors.torch.load_file(file))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise BadInput(f"{file} does not hold this run's network ({str(error).splitlines()[0]})") from error
    assert isinstance(net, TaskNet)
    return FinishedRun(folder, about, world, records, index, net.eval())


def _with_its_data(folder: Path, about: Mapping[str, Any], data: DomainDataset | str | None) -> World:
    """The run's own world, the same samples in the same hands."""
    described = {**about["experiment"], "device": "cpu"}
    name = str(described["data"])
    if name.startswith("memory:") and data is None:
        raise BadInput(f"this run's data set {name.removeprefix('memory:')!r} was made in Python; call the function and give it as data=")
    described = {**described, "data": "styled-digits"} if data is not None else described
    experiment = read_experiment(described, own_code=True)  # code that the folder names is executed here, a received folder's too
    try:
        world = build_world(experiment if data is None else replace(experiment, data=data))
    except BadInput as bad:
        hint = "A model can be exported where its data are not at hand, uncalibrated: add --without-data"
        raise BadInput([*bad.problems[:-1], f"{bad.problems[-1]}. {hint}"]) from None
    if partition_hash(list(world.holdings.values())) != about["partition"]:
        raise BadInput(
            f"{world.dataset.name} is not as it was when {folder} was made: the clients would hold other samples. "
            "Restore the data, or export with --without-data"
        )
    return world


def _from_description(folder: Path, about: Mapping[str, Any], data: DomainDataset | str | None) -> World:
    """The world as run.json tells it. Domains of `data` that no client held are unseen; without `data`, domains are empty."""
    if "model" not in about:
        raise BadInput(f"{folder / 'run.json'} does not say what its model takes; it is of an older version, and needs its data")
    model, kinds = about["model"], {"classification": Classification, "segmentation": Segmentation}
    task: Task = kinds[about["task"]](tuple(model["labels"]))
    size = (int(model["size"][0]), int(model["size"][1]))
    held = dict.fromkeys(name for c in about["clients"].values() for name in c["domain"].split("+"))
    if isinstance(data, str):
        data = load(data, size=size[0])
    domains = (
        tuple(_empty(name, task, model["channels"], size) for name in (*held, *about["targets"]))
        if data is None
        else fitted(data, task, model["channels"], size)
    )
    described = {**about["experiment"], "device": "cpu"}
    described |= {"data": "styled-digits", "partition": "per-domain"}  # neither is looked at: the data are those of the description
    experiment: Experiment = read_experiment(described, own_code=True)  # as above: a received folder's code is executed here
    pixels = Pixels(tuple(model["mean"]), tuple(model["std"]))
    dataset = DomainDataset(str(about["experiment"]["data"]), task, domains, pixels, model["network"])
    sources = tuple(d for d in domains if d.name in held)
    targets = tuple(d for d in domains if d.name not in held)
    nothing = Samples(())
    holdings = {name: Holding(name, c["domain"], nothing, nothing) for name, c in about["clients"].items()}
    return assemble(experiment, dataset, Fold(about["fold"], sources, targets), holdings)


def _empty(name: str, task: Task, channels: int, size: tuple[int, int]) -> Domain:
    labels = np.empty(0, dtype=np.int64) if task.name == "classification" else np.empty((0, task.outputs, *size), dtype=np.uint8)
    return Domain(name, np.empty((0, channels, *size), dtype=np.uint8), labels)
