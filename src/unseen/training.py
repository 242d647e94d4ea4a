"""The straight line: an experiment becomes a run, round by round, with records, checkpoints and models."""

from __future__ import annotations

import contextlib
import platform
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from unseen.data.cache import cache_root
from unseen.data.checks.check import check
from unseen.data.domain import Holding
from unseen.data.partition.partitions import partition_hash
from unseen.device.bare_step import made_up_labels
from unseen.device.compiling import Work, compiling_pays, keep_compiled_in
from unseen.device.heap import freed_memory_stays
from unseen.engines.engine import Engine
from unseen.engines.kept import Kept
from unseen.engines.local import LocalEngine
from unseen.engines.workers import Workers
from unseen.errors import BadInput, NoReplies
from unseen.experiment import Experiment, defaults_of, departures
from unseen.parts.local import Local
from unseen.report.result import Result
from unseen.runs.folder import Checkpoint, RunFolder, read_run
from unseen.runs.memory import Memories, Versions
from unseen.runs.record import Record, Timing, make_record, read_records, read_timings
from unseen.runs.selection import better, source_score
from unseen.runs.traffic import Travelled
from unseen.runs.watch import Watch
from unseen.scoring import Model
from unseen.settings import parts_in
from unseen.state import State
from unseen.task import Classification, Task
from unseen.version import __version__
from unseen.world import World, build_world

__all__ = ["Elsewhere", "Result", "goes_by_the_last_round", "train"]


class Elsewhere(Protocol):
    """Clients on other machines.

    `world` is what the server may know of them. `agreement` is the name of what they agreed to. `engine` gives a run what asks them.
    `end` is called with the run's folder after its last round.
    """

    @property
    def world(self) -> World: ...

    @property
    def agreement(self) -> str: ...

    def engine(self, run: Path) -> Engine: ...

    def end(self, run: Path) -> None: ...


def train(
    experiment: Experiment,
    out: Path | None,
    *,
    resume: bool = False,
    workers: Workers | None = None,
    watch: Watch,
    through_bytes: bool = False,
    elsewhere: Elsewhere | None = None,
    world: World | None = None,
    alone: bool = True,
    kept: Kept | None = None,
) -> Result:
    """Run an experiment to its last round, from the beginning or from where its folder stands.

    The clients are of this machine, or `elsewhere`: then the data are not here, and are checked where they are. `world` is that of
    the experiment, from a caller who has built it already. A run that is not `alone` on its GPU measures nothing there. `kept`
    is what an earlier run of this process left on the GPU.
    """
    with ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unseen-")))
        world = elsewhere.world if elsewhere else world or build_world(experiment)
        if elsewhere is None:
            _check_data(world, watch)
        folder = RunFolder(out, at_once=elsewhere is not None)  # a server holds models, and waits for sites most of its time
        stack.callback(folder.release)
        if elsewhere is None:
            world = replace(world, compiled=_compiles(world, folder, watch, alone))
            if world.device.type == "cpu":
                stack.enter_context(freed_memory_stays())
        described = describe(world, elsewhere.agreement if elsewhere else None)
        known = folder.claim(described, resume, defaults_of(experiment), all_rounds=goes_by_the_last_round(experiment))
        threads = torch.get_num_threads()
        stack.callback(torch.set_num_threads, threads)
        engine: Engine = (
            elsewhere.engine(folder.path)
            if elsewhere
            else LocalEngine(world, folder.memory, workers, through_bytes, writer=folder.writer, kept=kept)
        )
        engine.look = watch.within
        try:
            result = _rounds(world, engine, folder, known, watch)
        except BadInput:  # found before the first round, such as weights that are not there
            folder.writer.flush()
            folder.abandon()
            raise
        if elsewhere is not None:
            elsewhere.end(folder.path)
        return replace(result, about=described, timings=read_timings(folder.timings), best_state=folder.best_model())


def goes_by_the_last_round(experiment: Experiment) -> bool:
    """Whether a schedule depends on how many rounds there are: such a run cannot be resumed with more of them."""
    return any(getattr(part, "over_all_rounds", False) for part in parts_in(experiment.method))


def _check_data(world: World, watch: Watch) -> None:
    """The cheap part of `unseen data check`: errors stop the run before anything is written, warnings are told."""
    report = check(world.dataset, list(world.holdings.values()), cheap=True)
    if not report.ok:
        raise BadInput([f"{finding.domain}: {finding.message}" for finding in report.errors])
    for finding in report.warnings:
        watch.say(f"warning: {finding.domain}: {finding.message}")


def _compiles(world: World, folder: RunFolder, watch: Watch, alone: bool) -> bool:
    """Whether passes are compiled: as the user says, as the run in the folder began, or where it pays."""
    if world.experiment.compile != "auto" or world.device.type == "cpu":
        return world.compiled
    begun = read_run(folder.path)
    if begun is not None:
        return bool(begun.get("compiled", False))
    work = _work(world)
    if work is None:
        return False
    kept = cache_root() / "compiled"
    keep_compiled_in(kept)
    return compiling_pays(work, world.device, kept, watch.say, measures=alone)


def _work(world: World) -> Work | None:
    """What compiling could speed up: the method's passes over whole batches, if it has such."""
    method, dataset = world.experiment.method, world.dataset
    local = method.local_training(dataset.task.name)
    if not isinstance(local, Local) or not method.compiles or local.rsc or local.jigen:
        return None
    rows = local.batch * (1 + getattr(local.views, "copies", 0))
    rounds = (local.steps or int(local.epochs * len(holding.train)) // local.batch for holding in world.holdings.values())
    return Work(
        network=world.network,
        make=world.builders["task"],
        loss=dataset.task.loss,
        x=(rows, dataset.channels, *dataset.size),
        labels=made_up_labels(dataset.task, rows, dataset.size),
        precision=world.experiment.precision,
        steps=int(world.experiment.rounds * world.experiment.participation * sum(rounds)),
    )


def _rounds(world: World, engine: Engine, folder: RunFolder, known: bool, watch: Watch) -> Result:
    experiment, method = world.experiment, world.experiment.method
    if known and (finished := folder.finished(experiment.rounds)):
        watch.begin(world, experiment.rounds)
        watch.say(f"finished already: {experiment.rounds} rounds in {folder.path}")
        return Result(world, read_records(folder.records), finished)
    at = folder.restore(method.server_state, watch.say, engine.memory.holds) if known else None
    if at is None:
        watch.begin(world, 0)
        at = _start(world, engine)
        folder.save_checkpoint(at, method.server_state)
    else:
        engine.memory.versions = at.versions
        watch.begin(world, at.round)
    before = [at]
    del at  # whose model goes as soon as there is a new one
    at = _trained_to_the_end(world, engine, folder, before, watch)
    model = _deployed(world, at.state, at.averaged)
    folder.save_model(folder.model, model, about_model(world, at.round))
    folder.writer.flush()
    return Result(world, read_records(folder.records), {k: v.detach().cpu().clone() for k, v in model.items()})


def _trained_to_the_end(world: World, engine: Engine, folder: RunFolder, before: list[Checkpoint], watch: Watch) -> Checkpoint:
    """The rounds after the checkpoint in `before`, each trained, scored, recorded and saved; the last one's checkpoint.

    Where the engine can, a round is scored while the next trains.
    """
    ahead = engine if isinstance(engine, LocalEngine) and engine.looks_ahead else None
    waiting: tuple[_Trained, float] | None = None  # a round whose scores are on their way
    best, warned = before[0].best, ""

    def finish(trained: _Trained, looking: float = 0.0) -> None:
        nonlocal best, warned
        record, timing = _scored(world, engine, trained, looking)
        if better(source_score(record), best):
            best = source_score(record)
            folder.save_model(folder.best, trained.model, about_model(world, trained.checkpoint.round))
        folder.save_round(record, timing)
        folder.save_checkpoint(replace(trained.checkpoint, best=best), world.experiment.method.server_state)
        _sweep(engine.memory, trained.checkpoint.versions, folder)
        warned = _warn_once(record, warned, watch)
        watch.round(record, timing["train"] + timing["score"])

    while before[0].round < world.experiment.rounds:
        try:
            trained = _train(world, engine, folder, before)
        except BaseException:
            if waiting is not None:  # a run goes on from its last whole round, whatever ended this one
                with contextlib.suppress(Exception):
                    finish(*waiting)
            raise
        before = [trained.checkpoint]
        if ahead is None:
            finish(trained)
        else:
            began = time.perf_counter()
            ahead.look_ahead(trained.checkpoint.round, Model(model=trained.model))
            last, waiting = waiting, (trained, time.perf_counter() - began)
            if last is not None:
                finish(*last)  # while the GPU looks at this one
        del trained
    if waiting is not None:
        finish(*waiting)
    return before.pop()


def _start(world: World, engine: Engine) -> Checkpoint:
    """What a method does before round 1."""
    cohort = engine.cohort(0)
    state = world.experiment.method.start(world.fresh, cohort)
    cohort.close()
    return Checkpoint(0, state, engine.memory.versions, None, cohort.traffic.rows())


@dataclass(frozen=True)
class _Trained:
    """A round after its training: what the next one begins with, and what its record needs."""

    checkpoint: Checkpoint  # which knows nothing of the best score yet
    model: State  # as it is deployed
    travelled: list[Travelled]
    missing: dict[str, str]
    seconds: float


def _train(world: World, engine: Engine, folder: RunFolder, before: list[Checkpoint]) -> _Trained:
    """The round after the checkpoint in `before`, which is taken out: its model goes as soon as there is a new one."""
    method, at = world.experiment.method, before.pop()
    number, began = at.round + 1, time.perf_counter()
    cohort = engine.cohort(number)
    try:
        state = method.round(at.state, cohort)
        cohort.close()
    except NoReplies as error:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in cohort.missing.items())
        raise NoReplies(f"round {number}: {error} ({reasons}). The state of round {at.round} is kept in {folder.path}") from error
    seconds = time.perf_counter() - began
    average = method.averaging(world.dataset.task.name)
    averaged = average.keep(at.averaged, method.model(state)) if average else []
    travelled, missing = [*at.before, *cohort.traffic.rows()], cohort.missing
    del at, cohort
    checkpoint = Checkpoint(number, state, engine.memory.versions, None, averaged=averaged)
    return _Trained(checkpoint, _deployed(world, state, averaged), travelled, missing, seconds)


def _scored(world: World, engine: Engine, trained: _Trained, looking: float) -> tuple[Record, Timing]:
    """A trained round's record, and how long it took; so many seconds were spent `looking` before."""
    began, method, number = time.perf_counter(), world.experiment.method, trained.checkpoint.round
    scores, scoring = engine.score(number, Model(model=trained.model))
    notes = {**method.notes(trained.checkpoint.state), **engine.notes()}
    record = make_record(world, number, scores, trained.travelled, scoring, trained.missing, notes)
    return record, {"round": number, "train": trained.seconds, "score": looking + time.perf_counter() - began}


def _deployed(world: World, state: Any, averaged: list[State]) -> State:
    """What is scored and saved: the global model, or its average over rounds."""
    method = world.experiment.method
    average = method.averaging(world.dataset.task.name)
    return average.model(averaged) if average and averaged else method.model(state)


def _warn_once(record: Record, before: str, watch: Watch) -> str:
    """Pass on a method's warning when it is new; returns the last one."""
    warning = str(record["notes"].get("warning", before))
    if warning != before:
        watch.say(f"warning: {warning}")
    return warning


def _sweep(memory: Memories, saved: Versions, folder: RunFolder) -> None:
    """Forget what neither the checkpoint just saved, nor the one before it, nor the last round names, once that is on the disk."""
    now = memory.versions
    if not now:
        return
    folder.writer.later(lambda: memory.sweep(now, saved, folder.previous_versions()))
    if memory.writer is None:  # others write there too, and what they write next must not be swept
        folder.writer.flush()


def describe(world: World, agreement: str | None = None) -> dict[str, Any]:
    """run.json: the whole experiment, what it departs from, who holds what, what the model takes, and the versions it ran with.

    Between sites, who holds what is theirs to know, and the study's name (`agreement`) stands for it.
    """
    experiment, dataset, between_sites = world.experiment, world.dataset, agreement is not None
    return {
        "name": experiment.name,
        "fold": world.fold.name,
        "targets": [d.name for d in world.fold.targets],
        "task": dataset.task.name,
        "metric": dataset.task.metric,
        "experiment": experiment.description(),
        "departures": departures(experiment, dataset),
        "compiled": world.compiled,
        "augment": dataset.augment if experiment.augment == "auto" else str(experiment.augment),
        "partition": agreement or partition_hash(list(world.holdings.values())),
        "between_sites": between_sites,
        "clients": {name: _held(holding, dataset.task, between_sites) for name, holding in sorted(world.holdings.items())},
        "model": {  # enough to load it where the data are not at hand
            "network": world.network,
            "labels": list(dataset.task.labels),
            "channels": dataset.channels,
            "size": list(dataset.size),
            "mean": list(dataset.pixels.mean),
            "std": list(dataset.pixels.std),
        },
        "versions": {
            "unseen": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def _held(holding: Holding, task: Task, between_sites: bool) -> dict[str, Any]:
    """What a client holds. How many of each class is said of clients on this machine alone: a site keeps that to itself."""
    counts = {"domain": holding.domain, "train": len(holding.train), "validation": len(holding.validation)}
    if between_sites or not isinstance(task, Classification):
        return counts
    return {**counts, "classes": np.bincount(holding.train.classes(), minlength=task.outputs).tolist()}


def about_model(world: World, number: int) -> dict[str, str]:
    """What a model file says of itself."""
    experiment = world.experiment
    return {
        "network": world.network,
        "data": world.dataset.name,
        "task": world.dataset.task.name,
        "method": experiment.name,
        "fold": world.fold.name,
        "round": str(number),
        "seed": str(experiment.seed),
    }
