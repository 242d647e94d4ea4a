"""FedDAG. Che et al., "FedDAG: federated domain adversarial generation towards generalizable medical image analysis", 2025.

NDAG at a client, for every batch: a generator learns to change images so that the student sees other features in them than the teacher
saw before, with the label kept (Eq. 1-3); then the student learns to see the same in both (Eq. 4), and the teacher follows it. SHA at the
server: the others assess each client's teacher after a small step uphill (Eq. 5), it is averaged with its own earlier ones that did better,
and all are averaged by score (Eq. 6). The aggregate becomes the new STUDENT; the teacher stays, and that gap drives the generator.

The paper does not say, no code was released, and here it is so (the preset `ats` is ATS, from which it descends: Yang et al., 2021):
- a frozen network runs with its running statistics; the student sees originals and generated images as one batch;
- a warm-up round is one of FedAvg: the student trains on its images alone, and the teacher is that student; without NDAG all rounds are;
- the student learns from images that the generator makes after its own step (`regenerate`), and they are not clamped;
- optimisers start afresh every round; who missed rounds goes on with its last teacher; views join a batch first; MixStyle is the student's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Shapes, on_client
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.generator import ImageGenerator
from unseen.ops.descent import judging, own_step
from unseen.ops.discrepancy import clipped_discrepancy, discrepancy, follow, perturb
from unseen.parts.aggregation import SHA, Aggregate, Told
from unseen.parts.combining import Combining
from unseen.parts.local import Local
from unseen.parts.views import repeat_labels
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of
from unseen.task import Task

__all__ = ["FedDAG"]

_PAPER = {"network": "resnet50", "weights": "imagenet", "augment": "none", "aggregation": {"name": "sha", "direction": "last-batch"}}


class Down(Payload):
    model: State = carries("model")  # the aggregate of the teachers: the new student
    generator: State | None = carries("model", role="generator")  # none in a round without generation
    student: State | None = carries("model")  # only where a global student is kept: then `model` is the new teacher
    rate: float | None = carries("number")  # part of the learning rate, in the rounds in which it rises


class Up(Told):
    teacher: State = carries("model", of="model", mean=True)
    generator: State | None = carries("model", role="generator", mean=True)
    perturbed: State | None = carries("model", of="model")  # the teacher after a step uphill: only where the aggregation is sha
    student: State | None = carries("model", of="student", mean=True)

    @property
    def model(self) -> State:  # what the aggregation combines
        return self.teacher


class Kept(Memory):
    teacher: State


@dataclass(frozen=True)
class Server:
    teachers: Aggregate  # F, and the teachers' history
    generator: State | None
    student: State | None


@dataclass(frozen=True)
class FedDAG(Method[Server]):
    """Adversarial images of novel domains at the clients, and an average by sharpness-aware scores at the server."""

    paper = "Che et al., 2025"
    tasks = ("classification",)
    presets = {
        "paper": {"rounds": 35, "size": 96, "validation": 0.1, **_PAPER},
        "paper-224": {"lr": 5e-3, "batch": 16, "rounds": 50, "size": 224, **_PAPER},
        "ats": {"task_loss": "generated", "head": "fixed", "width": 64, "ema": 0.999, "distribution": "global_student", "warmup": 25,
                "lr": 5e-4, "aggregation": "mean", "rounds": 50},
    }  # fmt: skip

    ndag: bool = hyper(True, "generate; without it clients train as in FedAvg", symbol="NDAG")
    alpha: float = hyper(0.3, "how strongly an image is perturbed", symbol="alpha, Eq. 2", low=0.0, high=1.0)
    m: float = hyper(0.1, "discrepancy beyond which the generator gains nothing", symbol="m, Eq. 1", low=0.0)
    discrepancy_weight: float = hyper(1.0, "weight of the discrepancy in the generator's loss", symbol="L_dis", low=0.0)
    label_weight: float = hyper(1.0, "weight of the label in the generator's loss", symbol="L_cls, Eq. 3", low=0.0)
    similarity_weight: float = hyper(1.0, "weight of the similarity in the student's loss", symbol="L_sim, Eq. 4", low=0.0)
    feature: Literal["pooled", "logits"] = hyper("pooled", "what the discrepancy compares: what the head reads, or its logits")
    task_loss: Literal["both", "sum", "generated"] = hyper("both", "student's task loss: mean over x and x^, their sum, or x^ alone")
    train_on: Literal["images", "perturbations"] = hyper("images", "what the student sees; perturbations is an ablation", symbol="Fig. 11")
    regenerate: bool = hyper(True, "the student sees images of the generator after its step; false: those that step was taken on")
    width: int = hyper(32, "channels of the generator: FCN32 or FCN16; the paper does not say which it used", symbol="Fig. 12", low=1)
    generator_lr: float | None = hyper(None, "learning rate of the generator; none: the student's", low=0.0)
    head: Literal["trained", "fixed"] = hyper("trained", "fixed: after the warm-up no step moves the head, as in ATS")
    ema: float = hyper(0.99, "decay of the teacher that follows the student", low=0.0, high=1.0)
    statistics: Literal["average", "copy"] = hyper("average", "how the teacher takes batch-norm statistics: like weights, or as they are")
    distribution: Literal["student", "copy", "global_student"] = hyper("student", "whom the aggregate becomes; copy: both", symbol="Fig. 5")
    warmup: int = hyper(5, "first rounds without generation", symbol="Sec. IV-A", low=0)
    rate_warmup: int = hyper(0, "first rounds in which learning rates rise, evenly, to their value", symbol="Sec. IV-A", low=0)
    local: Local = group(
        Local(batch=32, optimizer="momentum", lr=1e-3, weight_decay=5e-4),
        symbols=dict.fromkeys(("batch", "optimizer", "lr", "weight_decay"), "Sec. IV-A") | {"sam": "FedSAM, Fig. 9"},
        meanings={"batch": "samples in a batch (224 px: 16)", "lr": "learning rate (224 px: 5e-3)", "sam": "of the student"},
        without=["rsc", "jigen"],
    )
    combining: Combining = group(Combining(SHA()), symbols={"aggregation": "SHA"})

    def contradictions(self) -> Iterable[str]:
        if self.train_on == "perturbations" and not self.ndag:
            yield "train_on is perturbations, but ndag is off and nothing is generated; switch ndag on, or train on images"
        if self.task_loss != "both" and not (self.ndag and self.train_on == "images"):
            yield f"task_loss is {self.task_loss}, but the student does not see x and x^; switch ndag on, train on images, or leave it out"
        if self.head == "fixed" and not (self.ndag and self.warmup):
            yield "head is fixed after a warm-up of generation, but there is none; set ndag = true and warmup above 0, or train the head"

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        return {"generator": lambda: ImageGenerator(shapes.channels, self.width)} if self.ndag else {}

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        student: TaskNet = client.build("task", down.student or down.model)
        teacher, generator = student, None
        if down.generator is None:
            step = self.plain_step(student, client, down.rate or 1.0)
        else:
            kept = client.recall(Kept) if self.distribution == "student" else None
            teacher = client.build("task", kept.teacher if kept else down.model).eval()
            generator = client.build("generator", down.generator)
            if self.head == "fixed":
                student.head().requires_grad_(False)
            step = self.ndag_step(teacher, student, generator, client, down.rate or 1.0)
        for batch in self.local.batches(client, times=2 if generator and self.train_on == "images" else 1):  # x and x^
            step(*batch)
        if self.distribution == "student":
            client.remember(Kept(teacher=state_of(teacher)))
        made, learnt = generator and state_of(generator), state_of(student) if self.distribution == "global_student" else None
        return Up(teacher=state_of(teacher), generator=made, student=learnt, **self.combining.upload(client, teacher, learner=student))

    def plain_step(self, student: TaskNet, client: Client, rate: float) -> Callable[..., None]:
        """A step of FedAvg: in warm-up, and without NDAG."""
        optimizer = self.local.optimizer_of(client, student, lr=rate * self.local.lr)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(student, optimizer, lambda: self.local.loss(client.task, student, x, y, mixing))

        return step

    def ndag_step(self, teacher: TaskNet, student: TaskNet, generator: nn.Module, client: Client, rate: float) -> Callable[..., None]:
        """A step of NDAG: Algorithm 1, lines 2 to 5."""
        for_generator = self.local.optimizer_of(client, generator, lr=rate * (self.local.lr if (own := self.generator_lr) is None else own))
        for_student = self.local.optimizer_of(client, student, lr=rate * self.local.lr)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            with torch.no_grad():
                f = self.feature_of(teacher(x, full=True))
            with judging(student):  # only the generator learns
                made = generator(x)
                own_step(for_generator, self.generator_loss(student, client.task, f, x, made, y))
            with torch.no_grad():
                shown = generator(x) if self.regenerate else made.detach()
            self.local.descend(student, for_student, lambda: self.student_loss(student, client.task, f, x, shown, y, *mixing))
            follow(teacher, student, self.ema, copy_buffers=self.statistics == "copy")

        return step

    def generator_loss(self, student: TaskNet, task: Task, f: Tensor, x: Tensor, made: Tensor, y: Tensor) -> Tensor:
        """L_cls - L_dis (Eq. 1-3)."""
        seen = student(perturb(x, made, self.alpha), full=True)
        label = task.loss(seen.logits, repeat_labels(y, len(x)), self.local.smoothing)
        return self.label_weight * label - self.discrepancy_weight * clipped_discrepancy(f, self.feature_of(seen), self.m).mean()

    def student_loss(self, student: TaskNet, task: Task, f: Tensor, x: Tensor, made: Tensor, y: Tensor, *mixing: Tensor) -> Tensor:
        """L_cls + L_sim (Eq. 4)."""
        if self.train_on == "perturbations":
            return self.local.loss(task, student, self.alpha * made, y, mixing)
        seen = self.local.look(student, torch.cat([x, perturb(x, made, self.alpha)]), mixing)
        similarity = discrepancy(f, self.feature_of(seen)[len(x) :]).mean()
        judged = seen.logits[len(x) :] if self.task_loss == "generated" else seen.logits
        return (2 if self.task_loss == "sum" else 1) * self.local.loss_of(task, judged, y) + self.similarity_weight * similarity

    def feature_of(self, seen: Outputs) -> Tensor:
        return seen.features if self.feature == "pooled" else seen.logits

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        student = fresh("task") if self.distribution == "global_student" else None
        return Server(Aggregate(fresh("task")), fresh("generator") if self.ndag else None, student)

    def round(self, state: Server, clients: Cohort) -> Server:
        generator = state.generator if state.teachers.round >= self.warmup else None
        rate = (state.teachers.round + 1) / self.rate_warmup if state.teachers.round < self.rate_warmup else None
        ups = clients.ask(self.train, Down(model=state.teachers.model, generator=generator, student=state.student, rate=rate))
        teachers = self.combining.combine(clients, ups, state.teachers, also=("generator", "student"))  # Algorithm 2
        return Server(teachers, teachers.also.get("generator", state.generator), teachers.also.get("student"))
