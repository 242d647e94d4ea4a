"""The last round of a run, done again: the clients' models are not kept, and need not be, because equal rounds give equal bits."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch

from unseen.client import Client
from unseen.codec import CodecError
from unseen.deploy.finished import FinishedRun
from unseen.engines.cohort import Answering, RoundCohort
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place
from unseen.errors import BadInput
from unseen.method import Refused
from unseen.payload import Payload, declarations
from unseen.runs.folder import Checkpoint, RunFolder, read_checkpoint
from unseen.state import State, same_bits
from unseen.world import World

__all__ = ["LastRound", "client_model", "repeat_last_round"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)


@dataclass(frozen=True)
class LastRound:
    """The global model after the last round, the clients' models that it was made of, and whether it came out as it did in the run."""

    model: State
    clients: dict[str, State]
    same: bool  # not on other hardware, or another version of torch


@dataclass
class _Overheard:
    """Passes questions on, and keeps the first model that each client answers with."""

    engine: Answering
    names: set[str]  # of the task network's weights
    models: dict[str, State] = field(default_factory=dict)

    def answers(
        self, task: Callable[[D, Client], U], downs: Mapping[str, D], place: Place, shared: bool
    ) -> Iterator[tuple[str, U | Refused]]:
        for name, answer in self.engine.answers(task, downs, place, shared):
            model = client_model(answer, self.names) if isinstance(answer, Payload) else None
            if model is not None:
                self.models.setdefault(name, {key: value.detach().cpu().clone() for key, value in model.items()})
            yield name, answer


def client_model(answer: Payload, names: set[str]) -> State | None:
    """The task network's weights in an answer, as its fields declare them: whole, or in several parts that make a whole."""
    told = {name: d for name, d in declarations(type(answer)).items() if (d.kind, d.role) == ("model", "task")}
    whole = next((name for name, d in told.items() if d.part == "whole"), None)
    parts = told if whole is None else [whole]
    together = {key: value for name in parts for key, value in (getattr(answer, name) or {}).items()}
    return together if together.keys() == names else None


def repeat_last_round(run: FinishedRun) -> LastRound:
    """From the checkpoint before it, in a folder of its own; the run's stays as it is."""
    if run.about.get("between_sites"):
        raise BadInput(f"{run.folder} was made between sites: the clients' models were theirs, and cannot be made again here")
    folder, world = RunFolder(run.folder), _on_its_device(run)
    before = _before_the_last(folder, run)
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="unseen-") as place:
        memory = Path(place) / "memory"
        if folder.memory.is_dir():
            shutil.copytree(folder.memory, memory)
        engine = LocalEngine(world, memory)
        engine.memory.versions = before.versions
        heard = _Overheard(engine, set(run.net.state_dict()))
        cohort = RoundCohort(heard, world, before.round + 1)
        try:
            state = world.experiment.method.round(before.state, cohort)
            cohort.close()
        finally:
            torch.set_num_threads(threads)
    if not heard.models:
        raise BadInput(f"the clients of {run.about['name']} send no model of their own")
    model = {name: value.detach().cpu() for name, value in world.experiment.method.model(state).items()}
    return LastRound(model, heard.models, same_bits(model, safetensors.torch.load_file(folder.model)))


def _before_the_last(folder: RunFolder, run: FinishedRun) -> Checkpoint:
    rounds = len(run.records)
    try:
        before = read_checkpoint(folder.previous, run.world.experiment.method.server_state)
    except (CodecError, OSError, KeyError, ValueError) as error:
        raise BadInput(f"{folder.previous} cannot be read ({type(error).__name__}); the last round cannot be repeated") from error
    if before.round != rounds - 1:
        raise BadInput(f"{folder.previous} is of round {before.round}, expected {rounds - 1}; the last round cannot be repeated")
    return before


def _on_its_device(run: FinishedRun) -> World:
    """On the GPU again if it was there, and there is one."""
    if run.about["experiment"]["device"] != "cuda" or not torch.cuda.is_available():
        return run.world
    return replace(run.world, experiment=replace(run.world.experiment, device="cuda"), device=torch.device("cuda"))
