"""FedDyn. Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

Each client adds a linear and a quadratic term to its loss, so that its optimum is where the federation's is; a copy of its
gradient, lambda_i, stays with it, and the server keeps the clients' mean of it.

Departures: lambda covers parameters, not buffers (batch-norm statistics are averaged and nothing else); the paper's decay of the
learning rate over rounds and its weight decay are left out. The local optimum is approached by some passes, as in the paper.
A client that is missing in a round keeps its lambda; the server sums over those who replied and divides by all (Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.ops.dynamic import add_dynamic_gradient, buffers_of, dynamic_aggregate, dynamic_pull, parameters_of, updated_drift
from unseen.optimizers import OptimizerName, make_optimizer
from unseen.parts import part_obstacles
from unseen.parts.mixstyle import MixStyle, mixed, mixing_of
from unseen.parts.sam import SAM, descend
from unseen.parts.views import Views, task_loss, views_of
from unseen.payload import Memory, Payload, State
from unseen.settings import hyper

__all__ = ["FedDyn"]


class Down(Payload):
    model: State


class Up(Payload):
    parameters: State
    buffers: State


class Drift(Memory):
    drift: State  # lambda_i


@dataclass(frozen=True)
class Dynamic:
    model: State
    drift: State  # lambda; empty before round 1


@dataclass(frozen=True)
class FedDyn(Method[Dynamic]):
    """A dynamic regulariser makes the clients' optima agree with the federation's."""

    title = "FedDyn"
    paper = "Acar et al., ICLR 2021"

    alpha: float = hyper(0.01, "weight of the regulariser, above 0", symbol="alpha", low=0.0)
    epochs: float = hyper(5.0, "passes over a client's data in a round, or a part of one", symbol="E", low=0.001)
    steps: int | None = hyper(None, "batches in a round instead of passes, the same for every client", low=1)
    batch: int = hyper(50, "samples in a batch", symbol="B", low=1)
    optimizer: OptimizerName = hyper("sgd", "local optimiser")
    lr: float = hyper(0.1, "learning rate", low=0.0)
    smoothing: float = hyper(0.0, "mass moved from the true class to all classes", low=0.0, high=1.0)
    views: Views | None = hyper(None, "restyled copies that train along with each batch, and their consistency loss")
    mixstyle: MixStyle | None = hyper(None, "mixes the style of feature maps within a batch")
    sam: SAM | None = hyper(None, "sharpness-aware steps")

    def contradictions(self) -> Iterable[str]:
        if self.alpha == 0:
            yield "alpha is 0, and the server divides by it; give a small number, or use fedavg"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        return part_obstacles(self, around)

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        optimizer = make_optimizer(client, self.optimizer, net, self.lr)
        kept = client.recall(Drift)
        drift = kept.drift if kept else {name: torch.zeros_like(w) for name, w in net.named_parameters()}  # lambda_i
        # In a network of the pool, so that a recorded step finds it where it was in the last task.
        pulling = client.build("task", {**down.model, **dynamic_pull(down.model, drift, self.alpha)}).requires_grad_(False)
        pull = dict(pulling.named_parameters())

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                return task_loss(client.task, mixed(net, x, mixing), y, self.views, self.smoothing)

            descend(net, optimizer, loss, self.sam, lambda: add_dynamic_gradient(net, pull, self.alpha))

        epochs = None if self.steps else self.epochs
        for x, y in client.batches(size=self.batch, epochs=epochs, steps=self.steps):
            x = views_of(self.views, x, client.rng)
            step(x, y, *mixing_of(self.mixstyle, x, client.rng))
        reached = parameters_of(net)
        client.remember(Drift(drift=updated_drift(drift, down.model, reached, self.alpha)))
        return Up(parameters=reached, buffers=buffers_of(net))

    def start(self, fresh: Fresh, clients: Cohort) -> Dynamic:
        return Dynamic(fresh("task"), {})

    def round(self, state: Dynamic, clients: Cohort) -> Dynamic:
        ups = clients.ask(self.train, Down(model=state.model))
        replies = ((up.parameters, up.buffers) for up in ups.values())
        return Dynamic(*dynamic_aggregate(state.model, state.drift, replies, self.alpha, len(clients.names)))
