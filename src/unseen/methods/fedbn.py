"""FedBN. Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021.

FedAvg, but normalisation layers stay with their client: neither their scale and shift nor their running statistics are overwritten by
the server. Everything else is averaged, all clients alike.

The paper scores clients that took part. What an unseen domain gets is open, and is the field `unseen_norm`. With "average" it gets the mean
of the clients' layers; for that they leave, declared as `norms`. With "initial" they never leave, and the global model has the layers
that it began with.
Layers are found by their type; the released code goes by "bn" in a name, and so averages the norms of a ResNet's shortcuts.
A client without layers of its own yet begins with the global model's. A client that is missing in a round keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from unseen.client import Client
from unseen.method import Cohort, Global, Method, Surroundings, on_client
from unseen.ops.averaging import means
from unseen.parts.combining import Down
from unseen.parts.local import Local
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import only, state_of

__all__ = ["FedBN"]


class Up(Payload):
    model: State = carries("model", part="without-norms", mean=True)
    norms: State | None = carries("model", part="norms", mean=True)  # for the unseen domain alone
    samples: int | None = carries("count")  # where the mean is weighted


class OwnNorms(Memory):
    norms: State  # scale, shift and statistics of every normalisation layer


@dataclass(frozen=True)
class FedBN(Method[Global]):
    """Batch norms stay with the clients, whose images differ in their statistics; the rest is averaged."""

    paper = "Li et al., ICLR 2021"
    compiles = True

    unseen_norm: Literal["average", "initial"] = hyper(
        "average", "norms of the global model: the mean of the clients', which then leave, or those it began with"
    )
    weighted: bool = hyper(False, "clients weigh by their samples, whose number then leaves; the released code weighs all alike")
    local: Local = group(Local(batch=32, optimizer="sgd", lr=0.01), symbols={"epochs": "E", "batch": "B", "lr": "eta"})

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in around.net.modules()):
            yield f"{type(around.net).__name__} has no batch norm to train, so FedBN would be FedAvg; use a network that has, or fedavg"

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, self.local_model(down.model, client) or down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))

        for batch in self.local.batches(client):
            step(*batch)
        trained = state_of(net)
        norms = only(trained, client.entries("norms"))
        client.remember(OwnNorms(norms=norms))
        return Up(
            model=only(trained, client.entries("without-norms")),
            norms=norms if self.unseen_norm == "average" else None,
            samples=client.samples if self.weighted else None,
        )

    def local_model(self, model: State, client: Client) -> State | None:
        kept = client.recall(OwnNorms)
        return {**model, **kept.norms} if kept else None

    def round(self, state: Global, clients: Cohort) -> Global:
        ups = clients.ask(self.train, Down(model=state.model))
        shared, norms = means(((up.model, up.norms or {}), (up.samples or 0) if self.weighted else 1) for up in ups.values())
        return Global({**state.model, **shared, **norms})
