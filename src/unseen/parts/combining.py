"""What a server does with the clients' models, as one group of fields: how it averages them, and the step that it takes then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unseen.client import Client
from unseen.method import Cohort, Replies
from unseen.parts.aggregation import Aggregate, Aggregation, Mean, Told
from unseen.parts.server import ServerOptimizer
from unseen.payload import Payload, State, carries, declarations
from unseen.settings import Configured, hyper

__all__ = ["Combining", "Down", "Up"]


class Down(Payload):
    """What goes to a client where nothing but the model does."""

    model: State = carries("model")


class Up(Told):
    """What leaves a client where nothing but the model does, and what the aggregation asks for."""

    model: State = carries("model")


@dataclass(frozen=True)
class Combining(Configured):
    """A method's upload is a `Told`: it fills that part of it with `upload`, and calls `combine` in its round."""

    aggregation: Aggregation = hyper(Mean(), "how the server averages: mean weighs by samples, uniform does not")
    server: ServerOptimizer | None = hyper(None, "optimiser of the server's step; none: the average is the new model")

    def upload(self, client: Client, net: nn.Module, learner: nn.Module | None = None) -> dict[str, Any]:
        """The fields of `Told` of the upload of `net`. `learner` took the last step, where that is another network."""
        return dict.fromkeys(declarations(Told)) | self.aggregation.upload(client, net, learner or net)

    def combine(self, clients: Cohort, ups: Replies[Any] | Mapping[str, Any], before: Aggregate, also: Sequence[str] = ()) -> Aggregate:
        """The next global model, and with the same weights the networks in the fields `also` of the uploads that have them."""
        after = self.aggregation.combine(clients, ups.items(), before, also)
        return self.server.step(before, after, clients.entries("parameters")) if self.server else after
