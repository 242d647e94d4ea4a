"""What a server does with the clients' models, as one group of fields: how far each may go, how they are averaged, the step then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from unseen.client import Client
from unseen.method import Cohort, Replies
from unseen.parts.aggregation import Aggregate, Aggregation, Mean, Told
from unseen.parts.robust import NormBound
from unseen.parts.server_optimizers import ServerOptimizer
from unseen.payload import Payload, State, carries, declarations
from unseen.settings import Configured, hyper

__all__ = ["Combining", "Down", "Up"]


class Down(Payload):
    """A client is sent the model and nothing else."""

    model: State = carries("model")


class Up(Told):
    """A client returns its model, and what the aggregation asks for."""

    model: State = carries("model", mean=True)


@dataclass(frozen=True)
class Combining(Configured):
    """A method's upload class extends `Told`: `upload` fills the inherited fields, and `combine` aggregates in the method's `round`."""

    aggregation: Aggregation = hyper(Mean(), "how the server averages: mean weighs by samples, uniform does not")
    server: ServerOptimizer | None = hyper(None, "optimiser of the server's step; none: the average is the new model")
    bound: NormBound | None = hyper(None, "bound on the change of each client's model; none: as it was sent")

    def upload(self, client: Client, net: nn.Module, learner: nn.Module | None = None) -> dict[str, Any]:
        """The fields of `Told`, about `net`. `learner` is the network whose last gradient counts, if not `net` (FedDAG: the student)."""
        return dict.fromkeys(declarations(Told)) | self.aggregation.upload(client, net, learner or net)

    def combine(self, clients: Cohort, ups: Replies[Any] | Mapping[str, Any], before: Aggregate, also: Sequence[str] = ()) -> Aggregate:
        """The next global model. Further networks, in the uploads' fields `also`, wait for the weights and are averaged by them."""
        waiting: dict[str, dict[str, State]] = {name: {} for name in also}

        def arriving() -> Iterator[tuple[str, Any]]:
            for client, up in ups.items():
                for name, kept in waiting.items():
                    if (sent := getattr(up, name)) is not None:
                        kept[client] = sent
                yield client, up

        trained = clients.entries("parameters") if self.bound or self.server else []
        norms: dict[str, float] = {}
        updates = self.bound.bounded(arriving(), before.model, trained, norms) if self.bound else arriving()
        after = self.aggregation.combine(clients, updates, before)
        weights = after.weights or dict.fromkeys(clients.names, 1.0)
        together = {name: self.aggregation.merged(kept, weights) for name, kept in waiting.items() if kept}
        after = replace(after, also=together, numbers={**after.numbers, **({"norms": norms} if self.bound else {})})
        return self.server.step(before, after, trained) if self.server else after
