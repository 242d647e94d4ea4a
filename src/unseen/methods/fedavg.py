"""FedAvg. McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Each client trains the global model on its own data for some passes; the server averages the models, weighted by the
number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Fresh, Global, Method, on_client, state_of
from unseen.ops.averaging import mean
from unseen.optimizers import OptimizerName, make_optimizer
from unseen.payload import Payload, State
from unseen.settings import hyper

__all__ = ["FedAvg"]


class Down(Payload):
    model: State


class Up(Payload):
    model: State
    samples: int | None  # leaves only where the average is weighted by it


@dataclass(frozen=True)
class FedAvg(Method[Global]):
    """The baseline: local training, then the mean of the models."""

    title = "FedAvg"
    paper = "McMahan et al., AISTATS 2017"

    epochs: int = hyper(1, "passes over a client's data in a round", symbol="E", low=1)
    steps: int | None = hyper(None, "batches in a round instead of passes, the same for every client", low=1)
    batch: int = hyper(64, "samples in a batch", symbol="B", low=1)
    optimizer: OptimizerName = hyper("adam", "local optimiser; the paper's is sgd")
    lr: float = hyper(1e-4, "learning rate", symbol="eta", low=0.0)
    weighting: Literal["samples", "uniform"] = hyper("samples", "a client's weight in the mean", symbol="n_k / n")

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        optimizer = make_optimizer(client, self.optimizer, net, self.lr)

        @client.step
        def step(x: Tensor, y: Tensor) -> None:
            loss = client.task.loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        epochs = None if self.steps else self.epochs
        for x, y in client.batches(size=self.batch, epochs=epochs, steps=self.steps):
            step(x, y)
        return Up(model=state_of(net), samples=client.samples if self.weighting == "samples" else None)

    def start(self, fresh: Fresh, clients: Cohort) -> Global:
        return Global(fresh("task"))

    def round(self, state: Global, clients: Cohort) -> Global:
        ups = clients.ask(self.train, Down(model=state.model))
        return Global(mean((up.model, up.samples or 1) for up in ups.values()))
