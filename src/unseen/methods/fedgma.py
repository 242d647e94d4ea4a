"""FedGMA. Tenison et al., "Gradient masked averaging for federated learning", TMLR 2023.

Clients train as in FedAvg. At the server a weight on whose direction they agree moves by the mean of their changes; one on which they
disagree moves by the part of it that is their agreement: A = |mean_k sign(D_k)|, m = 1 where A >= tau, else A, and
theta <- theta + m * sum_k p_k D_k. This is the aggregation `gma`, which every method with an `aggregation` can take.

The server's learning rate is 1; `server` has others. Batch-norm statistics are averaged and nothing else. A client that is missing in a
round counts neither in the mean nor in the agreement.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, on_client
from unseen.parts.aggregation import Aggregate
from unseen.parts.agreement import GMA
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.settings import group
from unseen.state import state_of

__all__ = ["FedGMA"]


@dataclass(frozen=True)
class FedGMA(Method[Aggregate]):
    """Weights on whose direction the clients disagree are held back."""

    paper = "Tenison et al., TMLR 2023"
    compiles = True

    local: Local = group(Local(optimizer="sgd", lr=0.01, batch=32), symbols={"epochs": "E", "lr": "eta"})
    combining: Combining = group(
        Combining(GMA()),
        symbols={"server": "eta_g"},
        meanings={"aggregation": "gma holds back weights on which clients disagree; with another one this is FedAvg"},
    )

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))

        for batch in self.local.batches(client):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:  # theta <- theta + m * sum_k p_k D_k
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
