"""FedAvg. McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Each client trains the global model on its own data for some passes; the server averages the models, weighted by the
number of samples. With the aggregation `cea` or `sha` it is the FedAvg+ or FedAvg++ of FedDAG's paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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

__all__ = ["FedAvg"]


class Down(Payload):
    model: State


class Up(Payload):
    model: State
    samples: int | None  # leaves only where the average is weighted by it
    perturbed: State | None  # leaves only where the aggregation is sha


@dataclass(frozen=True)
class FedAvg(Method[Aggregate]):
    """The baseline: local training, then the mean of the models."""

    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017"

    epochs: float = hyper(1.0, "passes over a client's data in a round, or a part of one", symbol="E", low=0.001)
    steps: int | None = hyper(None, "batches in a round instead of passes, the same for every client", low=1)
    batch: int = hyper(64, "samples in a batch", symbol="B", low=1)
    optimizer: OptimizerName = hyper("adam", "local optimiser; the paper's is sgd")
    lr: float = hyper(1e-4, "learning rate", symbol="eta", low=0.0)
    weight_decay: float = hyper(0.0, "weight decay", low=0.0)
    aggregation: Aggregation = hyper(Mean(), "how the server averages: mean weighs by samples", symbol="n_k / n")
    smoothing: float = hyper(0.0, "mass moved from the true class to all classes", low=0.0, high=1.0)
    views: Views | None = hyper(None, "restyled copies that train along with each batch, and their consistency loss")
    mixstyle: MixStyle | None = hyper(None, "mixes the style of feature maps within a batch")
    sam: SAM | None = hyper(None, "sharpness-aware steps")

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        optimizer = make_optimizer(client, self.optimizer, net, self.lr, weight_decay=self.weight_decay)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                return task_loss(client.task, mixed(net, x, mixing), y, self.views, self.smoothing)

            descend(net, optimizer, loss, self.sam)

        epochs = None if self.steps else self.epochs
        for x, y in client.batches(size=self.batch, epochs=epochs, steps=self.steps):
            x = views_of(self.views, x, client.rng)
            step(x, y, *mixing_of(self.mixstyle, x, client.rng))
        return Up(model=state_of(net), **self.aggregation.upload(client, net))

    def start(self, fresh: Fresh, clients: Cohort) -> Aggregate:
        return Aggregate(fresh("task"))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        ups = clients.ask(self.train, Down(model=state.model))
        return self.aggregation.combine(clients, ups.items(), state)

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        return part_obstacles(self, around)

    def notes(self, state: Aggregate) -> Mapping[str, Any]:
        return self.aggregation.notes(state)
