"""FedSAM. Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022.

FedAvg whose clients take sharpness-aware steps: the gradient is taken at w + rho g / |g| and applied at w; the server takes the
plain mean of the models.

Departures: the server's learning rate is 1, so that its update is the mean; the decay of the learning rate and MoFedSAM's momentum
are left out; batch-norm statistics are taken at w, not at the perturbed weights. rho is SAM's own default.
A client that is missing in a round has no part in the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.ops.sharpness import sam_step
from unseen.optimizers import OptimizerName, make_optimizer
from unseen.parts import part_obstacles
from unseen.parts.aggregation import Aggregate, Aggregation, Uniform
from unseen.parts.mixstyle import MixStyle, mixed, mixing_of
from unseen.parts.views import Views, task_loss, views_of
from unseen.payload import Payload, State
from unseen.settings import hyper
from unseen.state import state_of

__all__ = ["FedSAM"]


class Down(Payload):
    model: State


class Up(Payload):
    model: State
    samples: int | None  # leaves only where the average is weighted by it
    perturbed: State | None  # leaves only where the aggregation is sha


@dataclass(frozen=True)
class FedSAM(Method[Aggregate]):
    """Clients look for flat minima by sharpness-aware steps."""

    title = "FedSAM"
    paper = "Qu et al., ICML 2022"

    rho: float = hyper(0.05, "how far to climb before the gradient is taken", symbol="rho", low=0.0)
    epochs: float = hyper(1.0, "passes over a client's data in a round, or a part of one", symbol="K", low=0.001)
    steps: int | None = hyper(None, "batches in a round instead of passes, the same for every client", low=1)
    batch: int = hyper(32, "samples in a batch", low=1)
    optimizer: OptimizerName = hyper("sgd", "local optimiser")
    lr: float = hyper(0.1, "learning rate", symbol="eta_l", low=0.0)
    aggregation: Aggregation = hyper(Uniform(), "how the server averages: uniform is the plain mean")
    smoothing: float = hyper(0.0, "mass moved from the true class to all classes", low=0.0, high=1.0)
    views: Views | None = hyper(None, "restyled copies that train along with each batch, and their consistency loss")
    mixstyle: MixStyle | None = hyper(None, "mixes the style of feature maps within a batch")

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        return part_obstacles(self, around)

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        optimizer = make_optimizer(client, self.optimizer, net, self.lr)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                return task_loss(client.task, mixed(net, x, mixing), y, self.views, self.smoothing)

            sam_step(net, optimizer, loss, self.rho)

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

    def notes(self, state: Aggregate) -> Mapping[str, Any]:
        return self.aggregation.notes(state)
