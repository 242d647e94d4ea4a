"""FedDyn. Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

Each client adds a linear and a quadratic term to its loss, so that each client's optimum agrees with the federation's; a copy of its
gradient, lambda_i, stays with it, and the server keeps the clients' mean of it.

Departures: lambda covers parameters, not buffers (batch-norm statistics are averaged and nothing else); the paper's decay of the
learning rate over rounds and its weight decay are off unless `schedule` and `weight_decay` say otherwise. The local optimum is
approached by some passes, as in the paper.
A client that is missing in a round keeps its lambda; the server sums over those who replied and divides by all (Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, on_client
from unseen.parts.combining import Down
from unseen.parts.dynamic import Dynamic, DynamicPenalty, DynamicUp, combine_dynamic
from unseen.parts.local import Local
from unseen.settings import group, hyper

__all__ = ["FedDyn"]


@dataclass(frozen=True)
class FedDyn(Method[Dynamic]):
    """A dynamic regulariser makes the clients' optima agree with the federation's."""

    paper = "Acar et al., ICLR 2021"
    compiles = True

    alpha: float = hyper(0.01, "weight of the regulariser, above 0", symbol="alpha", low=0.0)
    local: Local = group(Local(epochs=5.0, batch=50, optimizer="sgd", lr=0.1), symbols={"epochs": "E", "batch": "B"})

    def contradictions(self) -> Iterable[str]:
        if self.alpha == 0:
            yield "alpha is 0, and the server divides by it; give a small number, or use fedavg"

    @on_client
    def train(self, down: Down, client: Client) -> DynamicUp:
        net, optimizer = self.local.begin(client, down.model)
        penalty = DynamicPenalty(client, net, down.model, self.alpha)  # -<lambda_i, w> + alpha / 2 |w - w_t|^2

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing), penalty.add_gradient)

        for batch in self.local.batches(client):
            step(*batch)
        return penalty.upload()  # lambda_i <- lambda_i - alpha (w_i - w_t) stays here, w_i leaves

    def round(self, state: Dynamic, clients: Cohort) -> Dynamic:
        """lambda <- lambda - alpha / K sum_i (w_i - w_t); w <- mean_i w_i - lambda / alpha."""
        return combine_dynamic(clients, clients.ask(self.train, Down(model=state.model)), state, self.alpha)
