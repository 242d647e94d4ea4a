"""ATS as a preset of FedDAG: its losses, its fixed head, and what moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from unseen import BadInput, Experiment, FedDAG
from unseen.data.domain import DomainDataset
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place, TaskRunner
from unseen.experiment import read_experiment
from unseen.methods.feddag import Down
from unseen.parts.aggregation import Mean
from unseen.runs.memory import MemoryStore
from unseen.state import State
from unseen.world import World, build_world

ATS: dict[str, Any] = {"task_loss": "generated", "head": "fixed", "distribution": "global_student", "aggregation": Mean()}
SMALL: dict[str, Any] = {**ATS, "width": 4, "batch": 8, "lr": 0.05, "warmup": 1, "ema": 0.9}


def test_the_preset() -> None:
    ats = read_experiment({"method": "feddag", "preset": "ats"})
    method: Any = ats.method
    assert {name: getattr(method, name) for name in ATS} == ATS
    assert (method.ema, method.width, method.m, method.feature, method.warmup, ats.rounds) == (0.999, 64, 0.1, "pooled", 25, 50)
    assert (method.lr, method.batch, method.optimizer, method.similarity_weight) == (5e-4, 32, "momentum", 1.0)


def test_both_losses_are_those_of_the_paper(tiny: DomainDataset) -> None:
    method = FedDAG(**{**SMALL, "m": 0.05})
    world = build_world(Experiment(method, tiny, "c"))
    torch.manual_seed(0)
    student, task = world.builders["task"]().eval(), world.dataset.task
    x, y, f = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2]), torch.rand(6, student.feature_size)  # type: ignore[arg-type]
    made = torch.rand_like(x)
    seen = student(x + method.alpha * made, full=True)
    z, z_hat = (t / t.square().sum(1, keepdim=True).sqrt() for t in (f, seen.features))
    far = (z - z_hat).square().sum(1)
    label = F.cross_entropy(seen.logits, y)
    for_generator = label + (0.05 - far).clamp_min(0).mean()
    torch.testing.assert_close(method.generator_loss(student, task, f, x, made, y) + 0.05, for_generator)  # type: ignore[arg-type]
    torch.testing.assert_close(method.student_loss(student, task, f, x, made, y), label + far.mean())  # type: ignore[arg-type]


def asked(world: World, method: FedDAG, model: State) -> Any:
    down = Down(model=model, generator=world.fresh("generator"), student=model, rate=None)
    return TaskRunner(world).run(method.train, down, "a", Place(1, 1), MemoryStore(Path("unused")))[0]


def test_with_a_generator_and_a_teacher_that_stand_still_only_the_student_moves(tiny: DomainDataset) -> None:
    method = FedDAG(**{**SMALL, "ema": 1.0, "generator_lr": 0.0})
    world = build_world(Experiment(method, tiny, "c"))
    model = world.fresh("task")
    up = asked(world, method, model)
    assert all(torch.equal(up.teacher[name], model[name]) for name in world.entries("task").parameters)
    assert all(torch.equal(value, world.fresh("generator")[name]) for name, value in up.generator.items())
    moved = {name for name in world.entries("task").parameters if not torch.equal(up.student[name], model[name])}
    assert moved == {*world.entries("task").parameters} - {"fc.weight", "fc.bias"}, "all but the head"


def test_the_head_learns_in_the_warm_up_and_then_stays(tiny: DomainDataset, tmp_path: Path) -> None:
    method = FedDAG(**SMALL)
    world = build_world(Experiment(method, tiny, "c", rounds=3))
    engine = LocalEngine(world, tmp_path)
    states = [method.start(world.fresh, engine.cohort(0))]
    for number in (1, 2, 3):
        states.append(method.round(states[-1], engine.cohort(number)))
    heads = [state.teachers.model["fc.weight"] for state in states]
    assert not torch.equal(heads[0], heads[1]) and torch.equal(heads[1], heads[2]) and torch.equal(heads[2], heads[3])
    assert not torch.equal(states[2].teachers.model["conv1.weight"], states[3].teachers.model["conv1.weight"])
    assert states[3].student is not None and torch.equal(states[3].student["fc.weight"], heads[1])


@pytest.mark.parametrize("changed", [{"warmup": 0}, {"ndag": False}])
def test_a_head_that_would_never_learn_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="set ndag = true and warmup above 0, or train the head"):
        FedDAG(**{**SMALL, **changed})


@pytest.mark.parametrize("changed", [{"ndag": False}, {"train_on": "perturbations"}])
def test_a_task_loss_that_nothing_reads_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="task_loss is sum, but the student does not see x and x"):
        FedDAG(task_loss="sum", **changed)
