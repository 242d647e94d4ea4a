"""FedProx. Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

FedAvg with a proximal term in the local loss: mu/2 |w - w_t|^2 keeps a client's model near the global one. The paper's local
optimiser is plain SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, on_client
from unseen.ops.distance import squared_distance
from unseen.parts.aggregation import Aggregate
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["FedProx"]


@dataclass(frozen=True)
class FedProx(Method[Aggregate]):
    """FedAvg held near the global model by a proximal term."""

    paper = "Li et al., MLSys 2020"
    compiles = True

    mu: float = hyper(0.01, "weight of the proximal term", symbol="mu", low=0.0)
    local: Local = group(Local(), symbols={"epochs": "E", "lr": "eta"}, meanings={"optimizer": "local optimiser; the paper's is sgd"})
    combining: Combining = group(Combining())

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        anchor = client.frozen("task", down.model)  # w_t

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                return self.local.loss(client.task, net, x, y, mixing) + self.mu / 2 * squared_distance(net, anchor)

            self.local.descend(net, optimizer, loss)

        for batch in self.local.batches(client):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
