"""MOON. Li, He and Song, "Model-contrastive federated learning", CVPR 2021.

FedAvg with a contrastive term in the local loss: the representation of an image is drawn to the global model's, and away from those
of the client's own models of earlier rounds. The models that are compared with are fixed, in evaluation mode.

With `projection` the representation is what two layers make of the network's features, and the output layer reads it, as in the
released code; without, it is the features themselves. A U-Net's feature maps are averaged over the image, of which the paper says nothing.
A client that never trained has nothing to be away from, and takes plain steps, as everyone does in round 1. A client that was
missing compares with its models of the last rounds in which it trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, Surroundings, on_client
from unseen.networks import ProjectionHead, with_option
from unseen.networks.base import Outputs, TaskNet
from unseen.ops.contrast import model_contrast
from unseen.parts.aggregation import Aggregate
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.payload import Memory, State
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["MOON"]


class Earlier(Memory):
    models: dict[str, State]  # the client's own, by age: "000001" is that of the last round in which it trained


@dataclass(frozen=True)
class MOON(Method[Aggregate]):
    """FedAvg whose clients keep their representations near the global model's and away from their own earlier ones."""

    paper = "Li et al., CVPR 2021"
    presets = {"paper": {"mu": 5.0, "projection": 256, "rounds": 100}}  # mu of CIFAR-10; 1 for CIFAR-100 and Tiny-ImageNet

    mu: float = hyper(1.0, "weight of the contrastive term", symbol="mu", low=0.0)
    tau: float = hyper(0.5, "temperature", symbol="tau", low=0.01)
    projection: int = hyper(0, "outputs of a projection before the output layer; 0: the features are compared", low=0, high=65536)
    buffer: int = hyper(1, "how many of its earlier models a client is drawn away from", low=1)
    local: Local = group(
        Local(epochs=10.0, batch=64, optimizer="momentum", lr=0.01, weight_decay=1e-5),
        symbols={"epochs": "E", "lr": "eta"},
        without=["rsc", "jigen"],
    )
    combining: Combining = group(Combining(), symbols={"aggregation": "n_k / n"})

    def network(self, name: str) -> str:
        return with_option(name, "projection", self.projection) if self.projection else name

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if self.projection and not (isinstance(around.net, TaskNet) and isinstance(around.net.head(), ProjectionHead)):
            yield f"projection is {self.projection}, but {type(around.net).__name__} has no projection head; set projection = 0"

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        kept = client.recall(Earlier)
        before = [model for _, model in sorted(kept.models.items())] if kept else []
        others = [client.frozen("task", model) for model in (down.model, *before)] if before else []  # w_t, w_k of earlier rounds

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            with torch.no_grad():
                fixed = [self.represent(other, other(x, full=True)) for other in others]

            def loss() -> Tensor:  # l_sup + mu l_con, Eq. 4
                seen = self.local.look(net, x, mixing)
                value = self.local.loss_of(client.task, seen.logits, y)
                return value + self.mu * model_contrast(self.represent(net, seen), fixed[0], fixed[1:], self.tau) if fixed else value

            self.local.descend(net, optimizer, loss)

        for batch in self.local.batches(client):
            step(*batch)
        trained = state_of(net)
        client.remember(Earlier(models={f"{age:06d}": model for age, model in enumerate([trained, *before][: self.buffer], 1)}))
        return Up(model=trained, **self.combining.upload(client, net))

    def represent(self, net: TaskNet, seen: Outputs) -> Tensor:
        """z [n, c] of a batch."""
        z: Tensor = net.head().inner(seen.features) if self.projection else seen.features  # type: ignore[operator]
        return z.flatten(2).mean(2) if z.ndim > 2 else z

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
