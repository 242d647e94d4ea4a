"""FedAvg. McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

Each client trains the global model on its own data for some passes; the server averages the models, weighted by the
number of samples. The paper's local optimiser is plain SGD. With the aggregation `cea` or `sha` it is the FedAvg+ or FedAvg++ of
FedDAG's paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, on_client
from unseen.parts.aggregation import Aggregate
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.settings import group
from unseen.state import state_of

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Method[Aggregate]):
    """The baseline: local training, then the mean of the models."""

    paper = "McMahan et al., AISTATS 2017"
    compiles = True

    local: Local = group(
        Local(), symbols={"epochs": "E", "batch": "B", "lr": "eta"}, meanings={"optimizer": "local optimiser; the paper's is sgd"}
    )
    combining: Combining = group(Combining(), symbols={"aggregation": "n_k / n"})

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))  # w <- w - eta grad

        for batch in self.local.batches(client):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:  # w <- sum_k n_k / n w_k
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
