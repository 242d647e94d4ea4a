"""FedProx. Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

FedAvg with a proximal term in the local loss: mu/2 |w - w_t|^2 keeps a client's model near the global one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.optimizers import OptimizerName, make_optimizer
from unseen.parts import part_obstacles
from unseen.parts.aggregation import Aggregate, Aggregation, Mean
from unseen.parts.mixstyle import MixStyle, mixed, mixing_of
from unseen.parts.sam import SAM, descend
from unseen.parts.views import Views, task_loss, views_of
from unseen.payload import Payload, State
from unseen.settings import hyper
from unseen.state import state_of

__all__ = ["FedProx"]


class Down(Payload):
    model: State


class Up(Payload):
    model: State
    samples: int | None  # leaves only where the average is weighted by it
    perturbed: State | None  # leaves only where the aggregation is sha


@dataclass(frozen=True)
class FedProx(Method[Aggregate]):
    """FedAvg held near the global model by a proximal term."""

    title = "FedProx"
    paper = "Li et al., MLSys 2020"

    mu: float = hyper(0.01, "weight of the proximal term", symbol="mu", low=0.0)
    epochs: float = hyper(1.0, "passes over a client's data in a round, or a part of one", symbol="E", low=0.001)
    steps: int | None = hyper(None, "batches in a round instead of passes, the same for every client", low=1)
    batch: int = hyper(64, "samples in a batch", low=1)
    optimizer: OptimizerName = hyper("adam", "local optimiser; the paper's is sgd")
    lr: float = hyper(1e-4, "learning rate", symbol="eta", low=0.0)
    weight_decay: float = hyper(0.0, "weight decay", low=0.0)
    aggregation: Aggregation = hyper(Mean(), "how the server averages: mean weighs by samples")
    smoothing: float = hyper(0.0, "mass moved from the true class to all classes", low=0.0, high=1.0)
    views: Views | None = hyper(None, "restyled copies that train along with each batch, and their consistency loss")
    mixstyle: MixStyle | None = hyper(None, "mixes the style of feature maps within a batch")
    sam: SAM | None = hyper(None, "sharpness-aware steps")

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        # In a network of the pool, so that a recorded step finds it where it was in the last task.
        anchor = list(client.build("task", down.model).requires_grad_(False).parameters())  # w_t
        optimizer = make_optimizer(client, self.optimizer, net, self.lr, weight_decay=self.weight_decay)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                distance = sum(torch.sum((w - w_t) ** 2) for w, w_t in zip(net.parameters(), anchor, strict=True))
                return task_loss(client.task, mixed(net, x, mixing), y, self.views, self.smoothing) + self.mu / 2 * distance

            descend(net, optimizer, loss, self.sam)

        epochs = None if self.steps else self.epochs
        for x, y in client.batches(size=self.batch, epochs=epochs, steps=self.steps):
            x = views_of(self.views, x, client.rng)
            step(x, y, *mixing_of(self.mixstyle, x, client.rng))
        return Up(model=state_of(net), **self.aggregation.upload(client, net))

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        return part_obstacles(self, around)

    def start(self, fresh: Fresh, clients: Cohort) -> Aggregate:
        return Aggregate(fresh("task"))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        ups = clients.ask(self.train, Down(model=state.model))
        return self.aggregation.combine(clients, ups.items(), state)

    def notes(self, state: Aggregate) -> Mapping[str, Any]:
        return self.aggregation.notes(state)
