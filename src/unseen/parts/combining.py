"""What a server does with the clients' models, as one group of fields: how it averages them, and the step that it takes then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unseen.client import Client
from unseen.method import Cohort, Replies
from unseen.parts.aggregation import Aggregate, Aggregation, Mean, Told
from unseen.parts.server_optimizers import ServerOptimizer
from unseen.payload import Payload, State, carries, declarations
from unseen.settings import Configured, hyper

__all__ = ["Combining", "Down", "Up"]


class Down(Payload):
    """A client is sent the model and nothing else."""

    model: State = carries("model")


class Up(Told):
    """A client returns its model, and what the aggregation asks for."""

    model: State = carries("model")


@dataclass(frozen=True)
class Combining(Configured):
    """A method's upload class extends `Told`: `upload` fills the inherited fields, and `combine` aggregates in the method's `round`."""

    aggregation: Aggregation = hyper(Mean(), "how the server averages: mean weighs by samples, uniform does not")
    server: ServerOptimizer | None = hyper(None, "optimiser of the server's step; none: the average is the new model")

    def upload(self, client: Client, net: nn.Module, learner: nn.Module | None = None) -> dict[str, Any]:
        """The fields of `Told`, about `net`. `learner` is the network whose last gradient counts, if not `net` (FedDAG: the student)."""
        return dict.fromkeys(declarations(Told)) | self.aggregation.upload(client, net, learner or net)

    def combine(self, clients: Cohort, ups: Replies[Any] | Mapping[str, Any], before: Aggregate, also: Sequence[str] = ()) -> Aggregate:
        """The next global model. The further networks in the uploads' fields `also` are averaged with the same weights."""
        after = self.aggregation.combine(clients, ups.items(), before, also)
        return self.server.step(before, after, clients.entries("parameters")) if self.server else after
