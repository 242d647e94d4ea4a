"""FedSAM. Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022.

FedAvg whose clients take sharpness-aware steps: the gradient is taken at w + rho g / |g| and applied at w; the server takes the
plain mean of the models.

Departures: the server's learning rate is 1, so that its update is the mean; the learning rate decays only with a `schedule`; MoFedSAM's
momentum is left out; batch-norm statistics are taken at w, not at the perturbed weights. rho is SAM's own default.
A client that is missing in a round has no part in the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, on_client
from unseen.ops.sharpness import sam_step
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["FedSAM"]


@dataclass(frozen=True)
class FedSAM(Method[Aggregate]):
    """Clients look for flat minima by sharpness-aware steps."""

    paper = "Qu et al., ICML 2022"
    compiles = True

    rho: float = hyper(0.05, "how far to climb before the gradient is taken", symbol="rho", low=0.0)
    local: Local = group(Local(batch=32, optimizer="sgd", lr=0.1), symbols={"epochs": "K", "lr": "eta_l"}, without=["sam"])
    combining: Combining = group(Combining(Uniform()))

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            sam_step(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing), self.rho)

        for batch in self.local.batches(client):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
