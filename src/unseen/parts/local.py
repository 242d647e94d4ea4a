"""What every local training has, as one group of fields, and the functions of it that a method's loop calls.

The loop itself stays in the method's file: it is the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unseen.client import Client
from unseen.method import Surroundings
from unseen.networks.base import Outputs, TaskNet
from unseen.ops.sharpness import sam_step
from unseen.optimizers import OptimizerName, make_optimizer, unfit_optimizer
from unseen.own_code import Own
from unseen.parts.affine import Affine
from unseen.parts.jigen import JiGen
from unseen.parts.mixstyle import MapStyle, mixed, mixing_of
from unseen.parts.rsc import RSC
from unseen.parts.sam import SAM
from unseen.parts.schedules import Schedule, share_in
from unseen.parts.views import Views, repeat_labels, task_loss, views_of
from unseen.settings import Configured, hyper
from unseen.state import State
from unseen.task import Task

__all__ = ["Local"]

Restyle = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Local(Configured):
    """How long, on what batches, with which optimiser, and with which parts a client trains."""

    epochs: float = hyper(1.0, "passes over a client's data in a round, or a part of one", low=0.001)
    steps: int | None = hyper(None, "batches in a round instead of passes, the same for every client", low=1)
    batch: int = hyper(64, "samples in a batch", low=1)
    optimizer: OptimizerName | Own | Callable[..., Optimizer] = hyper("adam", "local optimiser", own="optimizer")
    lr: float = hyper(1e-4, "learning rate", low=0.0)
    schedule: Schedule | None = hyper(None, "how the learning rate changes over the rounds")
    weight_decay: float = hyper(0.0, "weight decay", low=0.0)
    smoothing: float = hyper(0.0, "label smoothing: mass moved from the true class to all classes", low=0.0, high=1.0)
    affine: Affine | None = hyper(None, "turns, magnifies and shifts each image, and masks with it")
    views: Views | None = hyper(None, "restyled copies that train along with each batch, and their consistency loss")
    mixstyle: MapStyle | None = hyper(None, "changes the style of feature maps within a batch")
    rsc: RSC | None = hyper(None, "mutes the features that speak most for the true class")
    jigen: JiGen | None = hyper(None, "the network also solves a jigsaw puzzle of the image")
    sam: SAM | None = hyper(None, "sharpness-aware steps")

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if self.smoothing and around.task == "segmentation":
            yield "labels are smoothed in classification only; set smoothing = 0"
        yield from unfit_optimizer(self.optimizer, self.lr, self.weight_decay)

    def begin(self, client: Client, model: State) -> tuple[TaskNet, Any]:
        """The task network with these weights, and a fresh optimiser over it."""
        net: TaskNet = client.build("task", model)
        return net, self.optimizer_of(client, net)

    def optimizer_of(self, client: Client, *nets: nn.Module, lr: float | None = None) -> Any:
        """A fresh optimiser over these networks, with this round's share of the rate; its state does not outlive the task."""
        rate = self.lr if lr is None else lr
        return make_optimizer(client, self.optimizer, nets, rate, share=self.share(client), weight_decay=self.weight_decay)

    def share(self, client: Client) -> float | None:
        """What part of a learning rate this round has, by the schedule; None without one."""
        return share_in(self.schedule, client)

    def rate(self, client: Client) -> float:
        """The learning rate of this round."""
        share = self.share(client)
        return self.lr if share is None else self.lr * share

    def batches(self, client: Client, restyled: Restyle | None = None, times: int = 1) -> Iterator[tuple[Tensor, ...]]:
        """A round's batches as a step takes them: the images with their views, the labels, and what the parts drew.

        `restyled` makes the views in place of the part. `times`: images in the forward pass per image of a batch (FedDAG: 2).
        """
        epochs = None if self.steps else self.epochs
        return self.prepared(client, client.batches(size=self.batch, epochs=epochs, steps=self.steps), restyled, times)

    def prepared(
        self, client: Client, batches: Iterable[tuple[Tensor, ...]], restyled: Restyle | None = None, times: int = 1
    ) -> Iterator[tuple[Tensor, ...]]:
        """Any batches as a step takes them. What a batch has beside images and labels (domains) comes after them."""
        for batch in batches:
            yield client.beside(self._prepared, client, batch, restyled, times)

    def _prepared(self, client: Client, batch: tuple[Tensor, ...], restyled: Restyle | None, times: int) -> tuple[Tensor, ...]:
        images, y, *more = batch
        order: list[Tensor] = []
        if self.affine:
            images, y = self.affine.moved(images, y, client.rng)
        if self.jigen:
            images, y, *order = self.jigen.puzzled(client, images, y)
        x = restyled(images, client.rng) if restyled else views_of(self.views, images, client.rng)
        challenge = self.rsc.draw(client.rng, x.device) if self.rsc else ()
        return x, y, *more, *order, *challenge, *mixing_of(self.mixstyle, x, client.rng, partial(client.stage_channels, x), times=times)

    def loss(self, task: Task, net: TaskNet, x: Tensor, y: Tensor, drawn: tuple[Tensor, ...] = ()) -> Tensor:
        """The task's loss over every view, with styles mixed and features muted as drawn, and what binds the views together.

        The parts `rsc` and `jigen` act here alone: a method that computes its task loss another way leaves them out of its group.
        """
        if self.rsc is None and self.jigen is None:
            return self.loss_of(task, mixed(self.mixstyle, net, x, drawn), y)
        rest = list(drawn)
        order = rest.pop(0) if self.jigen else None
        by_channel = rest.pop(0) if self.rsc and self.rsc.form == "map" else None

        def look() -> Outputs:
            return self.look(net, x, tuple(rest))

        def say() -> Outputs:
            return self.rsc.challenged(task, net, look, repeat_labels(y, len(x)), by_channel) if self.rsc else look()

        if self.jigen is None or order is None:
            return self.loss_of(task, say().logits, y)
        with self.jigen.reading(net, task.name == "segmentation") as pooled:
            seen = say()
        return self.loss_of(task, seen.logits, y) + self.jigen.loss(net, seen, pooled, repeat_labels(order, len(x)))

    def look(self, net: TaskNet, x: Tensor, mixing: tuple[Tensor, ...]) -> Outputs:
        """All that the network sees in a batch, with styles mixed as drawn: for a method whose loss asks for more than the logits."""
        return mixed(self.mixstyle, net, x, mixing, full=True)

    def loss_of(self, task: Task, logits: Tensor, y: Tensor) -> Tensor:
        """The same of logits that are there already."""
        return task_loss(task, logits, y, self.views, self.smoothing)

    def descend(
        self, net: nn.Module, optimizer: Optimizer, loss: Callable[[], Tensor], add_gradient: Callable[[], None] = lambda: None
    ) -> None:
        """One step on what `loss` computes, plain or sharpness-aware. `add_gradient` adds a penalty's gradient afterwards."""
        if self.sam is not None:
            sam_step(net, optimizer, loss, self.sam.rho, add_gradient)
            return
        value = loss()
        optimizer.zero_grad()
        value.backward()
        add_gradient()
        optimizer.step()
