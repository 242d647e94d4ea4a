"""Images a second of a federated round against the bare step, method by method and network by network, in one process.

A machine that does other things as well is slow at times, so the sides take turns and the fastest of several counts. On a GPU a
round is timed whole: one wait before it and one after it. The split by phase comes from one more round with clocks inside.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from unseen import settings
from unseen.data.augment import RECIPES
from unseen.data.domain import DomainDataset
from unseen.device.bare_step import BareStep
from unseen.device.heap import freed_memory_stays
from unseen.engines.local import LocalEngine
from unseen.errors import BadInput, choose
from unseen.experiment import Experiment
from unseen.methods import METHODS, method_class
from unseen.networks import build_network
from unseen.parts import PARTS
from unseen.runs.traffic import Traffic, Travelled, total_bytes
from unseen.runs.writing import Writer
from unseen.scoring import Model
from unseen.settings import settings_of
from unseen.speed.bare import bare_step, rows_of
from unseen.speed.passes import PassesMade, counted
from unseen.speed.split import Clock, ClockedRunner, Split, clock_of
from unseen.speed.synthetic import TARGET, synthetic
from unseen.world import World, build_world

__all__ = ["Case", "SpeedMeasured", "SpeedPlan", "fastest", "machine", "measure", "one_case"]

_SIDE = 64  # pixels of made-up images
_IN_A_ROW = 2  # rounds that are timed together where one is scored while the next trains
_ONE_PASS: dict[str, dict[str, Any]] = {  # a round of about one pass, with all that makes the method what it is
    "csac": {"private_steps": 1, "steps": None},
    "fccl": {"private_epochs": 0.5, "public": "styled-digits", "public_images": 64},
    "fedsb": {"budget": 0},
    "fedadg": {"epoch": "batch"},
    "feddag": {"warmup": 0},
}


_Bares = dict[tuple[str, bool, int], tuple[BareStep, bool]]  # by network, whether methods compile, and rows: one serves several methods


@dataclass(frozen=True)
class SpeedPlan:
    """What to measure. Without `data`, noise: three clients with `steps` whole batches each."""

    methods: tuple[str, ...] = ()  # none: all
    networks: tuple[str, ...] = ("resnet18", "mobilenet_v2")
    batch: int = 32
    size: int | None = None  # none: the data set's own; of noise 64
    steps: int = 10
    data: str | None = None
    target: str | None = None
    augment: str = "domainbed"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    threads: int = 1
    repeats: int = 2
    compile: Literal["auto", "on", "off"] = "auto"  # the rounds' passes; auto: where the bare step is faster so
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every method
    beside: Mapping[str, Any] = field(default_factory=dict)  # settings of one more round, held against the round

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {getattr(self, name)}; expected at least {low}"
            for name, low in (("batch", 2), ("size", 8), ("steps", 1), ("threads", 1), ("repeats", 1))
            if getattr(self, name) is not None and getattr(self, name) < low
        ]
        if not self.networks:
            problems.append("no network is named; give at least one, as in --networks resnet18")
        if self.target is not None and self.data is None:
            problems.append(f"target is {self.target!r}, but the data are made up; give --data too")
        if problems:
            raise BadInput(problems)
        choose("augmentation recipe", self.augment, RECIPES)


@dataclass(frozen=True)
class Case:
    """One method with one network, ready to run."""

    method: str
    network: str
    world: World
    beside: World | None = None  # the same with other settings


@dataclass(frozen=True)
class SpeedMeasured:
    """What one case came to. Rates are images a second; ratios are to the bare step."""

    method: str
    network: str
    images: int  # that the clients drew for training in a round
    passes: float  # that the method makes of an image: 1 is the bare step's
    compiled: bool
    bare: float
    round: float  # training part, without augmentation
    augmented: float  # training part, augmentation and all
    scored: float  # augmented, and scored after every round, as a run does it
    beside: float | None  # training part with the settings beside, without augmentation
    seconds: dict[str, float]  # by phase, of one round with clocks inside
    sent: int  # bytes that leave the clients in a round
    received: int

    @property
    def ratio(self) -> float:
        return self.round / self.bare

    @property
    def augmented_ratio(self) -> float:
        return self.augmented / self.bare

    @property
    def pass_ratio(self) -> float:
        """The round against the sum of the method's passes, each at the bare rate."""
        return self.ratio * self.passes

    @property
    def scoring_share(self) -> float:
        """The part of a whole round by which scoring makes it longer."""
        return 1 - self.scored / self.augmented

    @property
    def beside_ratio(self) -> float | None:
        """The round with the settings beside against the round without them."""
        return None if self.beside is None else self.beside / self.round

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        told = ("ratio", "augmented_ratio", "pass_ratio", "scoring_share", "beside_ratio")
        return {**asdict(self), **{name: getattr(self, name) for name in told}}


def measure(plan: SpeedPlan, say: Callable[[str], None] = lambda _: None) -> Iterator[tuple[int, Case, SpeedMeasured]]:
    """Every case of the plan in turn: how many there are, which it was, what it came to. Mistakes come before the first."""
    threads = torch.get_num_threads()
    cases, bares = _cases(plan, say), _Bares()
    try:
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="unseen-") as folder, freed_memory_stays(), ExitStack() as stack:
                yield len(cases), case, _measured(case, plan, bares, Path(folder), stack)
    finally:
        torch.set_num_threads(threads)


def one_case(plan: SpeedPlan) -> Case:
    """The first case of a plan."""
    return _cases(plan, lambda _: None)[0]


def machine() -> dict[str, Any]:
    """What the numbers depend on, without saying whose machine it is."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        **versions,
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
    }


def fastest(sides: Mapping[str, Callable[[], object]], repeats: int, clock: Clock, warm_up: int = 1) -> dict[str, float]:
    """Seconds of each side, the fastest of several; they take turns."""
    best = dict.fromkeys(sides, float("inf"))
    for turn in range(warm_up + repeats):
        for name, side in sides.items():
            began = clock()
            side()
            taken = clock() - began
            if turn >= warm_up:
                best[name] = min(best[name], taken)
    return best


def _cases(plan: SpeedPlan, say: Callable[[str], None]) -> list[Case]:
    """All that can be measured. A method that was asked for by name must fit; of all methods, those that fit."""
    cases, made, side = [], dict[bool, DomainDataset](), plan.size or _SIDE
    for network in plan.networks:
        build_network(network, outputs=2, channels=3, size=(side, side))  # a wrong name is told once, not by every method
        masks = network.partition(":")[0] == "unet"
        if plan.data is None and masks not in made:
            made[masks] = synthetic(plan.batch * plan.steps, max(plan.batch // 4, 2), side, masks)
        for name in plan.methods or METHODS:
            try:
                world = build_world(_experiment(plan, name, network, made.get(masks)))
                other = build_world(_experiment(plan, name, network, made.get(masks), plan.beside)) if plan.beside else None
                cases.append(Case(name, network, world, other))
            except BadInput as bad:
                if plan.methods:
                    raise
                say(f"left out: {name} with {network}: {'; '.join(bad.problems)}")
    if not cases:
        raise BadInput(f"no method fits {', '.join(plan.networks)}")
    return cases


def _experiment(
    plan: SpeedPlan, method: str, network: str, made: DomainDataset | None, beside: Mapping[str, Any] | None = None
) -> Experiment:
    cls = method_class(method)
    own = {s.name for s in settings_of(cls)}
    one_pass = {"batch": plan.batch, "epochs": 1, **_ONE_PASS.get(method, {})}
    if method == "fedadg" and made is not None:  # as many batches as the others, three of ten for classification alone, as in the paper
        one_pass |= {"classification_epochs": 3 * plan.steps // 10, "alignment_epochs": plan.steps - 3 * plan.steps // 10}
    values = {key: value for key, value in one_pass.items() if key in own}
    values |= {**plan.settings, **(beside or {})}
    around: dict[str, Any] = {"device": plan.device, "precision": plan.precision, "threads": plan.threads, "network": network}
    if made is not None:
        around |= {"data": made, "target": TARGET}
    else:
        around |= {"data": plan.data, "target": plan.target, "size": plan.size}
    partition = "pooled" if cls.pooled else "per-domain"
    return Experiment(settings.build(cls, values, PARTS), augment="none", partition=partition, **around)


class _Rounds:
    """Rounds of one case, one after the other, as a run makes them."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.runner, self._writer = world, ClockedRunner(world), Writer()
        self.engine = LocalEngine(world, folder, runner=self.runner, writer=self._writer)
        self._method, self._number = world.experiment.method, 0
        self._looking: tuple[int, Model] | None = None  # whose scores are on their way
        cohort = self.engine.cohort(0)
        self._state = self._method.start(world.fresh, cohort)
        cohort.close()

    def close(self) -> None:
        self._writer.close()

    def passes(self, recipe: str) -> PassesMade:
        """Those of the next round, which is made without recordings and compiled passes."""
        self.runner.pool.unaided = True
        try:
            with counted(self.world, self.runner.pool) as passes:
                self.train(recipe)
        finally:
            self.runner.pool.unaided = False
        return passes

    def train(self, recipe: str) -> Traffic:
        """The training part of the next round; gives what travelled."""
        self.runner.world = replace(self.world, augment=RECIPES[recipe])
        self._number += 1
        cohort = self.engine.cohort(self._number)
        self._state = self._method.round(self._state, cohort)
        cohort.close()
        return cohort.traffic

    def score(self) -> None:
        self.engine.score(self._number, Model(model=self._method.model(self._state)))

    def scored(self, recipe: str, rounds: int) -> None:
        """So many whole rounds, scored as a run scores them: where it can be, each while the next one trains."""
        for _ in range(rounds):
            self.train(recipe)
            if not self.engine.looks_ahead:
                self.score()
                continue
            model = Model(model=self._method.model(self._state))
            self.engine.look_ahead(self._number, model)
            if self._looking is not None:
                self.engine.score(*self._looking)
            self._looking = self._number, model

    def split(self, recipe: str, clock: Clock) -> tuple[Split, list[Travelled]]:
        """One more round with clocks inside, and the scoring after it."""
        split = Split(clock)
        with self.runner.clocked(split), split.phase("aggregation"):
            if self.world.device.type == "cuda":
                traffic = self.train(recipe)
            else:
                with split.optimisers():
                    traffic = self.train(recipe)
        with split.phase("evaluation"):
            self.score()
        return split, traffic.rows()


def _measured(case: Case, plan: SpeedPlan, bares: _Bares, folder: Path, stack: ExitStack) -> SpeedMeasured:
    on_gpu = case.world.device.type == "cuda"
    clock = clock_of(case.world.device)
    kind = case.network, case.world.experiment.method.compiles, rows_of(case.world, plan.batch)
    if kind not in bares:
        bares[kind] = _bare(case, plan, clock)
    bare, compiled = bares[kind]
    rounds = stack.enter_context(closing(_Rounds(replace(case.world, compiled=compiled), folder)))
    counting, _ = rounds.split(plan.augment, clock)  # the first round: warms up, and says how many images a round has
    images = counting.images
    steps = max(1, images // plan.batch)
    passes = rounds.passes("none")
    in_a_row = _IN_A_ROW if rounds.engine.looks_ahead else 1
    sides: dict[str, Callable[[], object]] = {
        "bare": lambda: bare.run(steps),
        "round": lambda: rounds.train("none"),
        "augmented": lambda: rounds.train(plan.augment),
        **{role: partial(other.run, steps) for role, other in passes.others.items()},
    }
    if case.beside is not None:
        beside = replace(case.beside, compiled=compiled and case.beside.experiment.method.compiles)
        others = stack.enter_context(closing(_Rounds(beside, folder / "beside")))
        sides["beside"] = lambda: others.train("none")
    best = fastest(
        sides,
        plan.repeats,
        clock,
        warm_up=(4 if plan.data else 2) if on_gpu else 0,  # a batch of a shape of its own is recorded after three rounds
    )
    seconds_of_others = sum(other.seconds(best[role] / steps) for role, other in passes.others.items())
    best |= fastest({"scored": lambda: rounds.scored(plan.augment, in_a_row)}, plan.repeats, clock, warm_up=2 if on_gpu else 0)
    split, travelled = rounds.split(plan.augment, clock)
    if on_gpu:  # a replayed step is one piece: the optimiser's part is that of the bare step, once a batch
        without = fastest({"without": lambda: bare.run_without_optimiser(steps)}, plan.repeats, clock)["without"]
        part = min(max(0.0, best["bare"] - without), split.seconds["forward and backward"])
        split.seconds["optimiser"] = part
        split.seconds["forward and backward"] -= part
    return SpeedMeasured(
        method=case.method,
        network=case.network,
        images=images,
        passes=(passes.task / bare.operations() + seconds_of_others * steps / best["bare"]) * plan.batch / images,
        compiled=compiled,
        bare=steps * plan.batch / best["bare"],
        round=images / best["round"],
        augmented=images / best["augmented"],
        scored=in_a_row * images / best["scored"],
        beside=images / best["beside"] if "beside" in best else None,
        seconds=split.seconds,
        sent=total_bytes(travelled, "sent"),
        received=total_bytes(travelled, "received"),
    )


def _bare(case: Case, plan: SpeedPlan, clock: Clock) -> tuple[BareStep, bool]:
    """The fastest bare step that there is here for a method of this kind, and whether its rounds are to be compiled."""
    recorded = bare_step(case.world, plan.batch)
    if case.world.device.type == "cpu" or plan.compile == "off" or not case.world.experiment.method.compiles:
        return recorded, False
    compiled = bare_step(case.world, plan.batch, through_compiler=True)
    taken = fastest({"recorded": lambda: recorded.run(20), "compiled": lambda: compiled.run(20)}, plan.repeats, clock)
    wins = taken["compiled"] < taken["recorded"]
    return (compiled if wins else recorded), wins or plan.compile == "on"
