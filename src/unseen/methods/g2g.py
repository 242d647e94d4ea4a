"""G2G. Chen, Zhang and Gong, "G2G: generalized learning by cross-domain knowledge transfer for federated domain generalization",
ICASSP 2024.

One model wanders from client to client and is never averaged. At each client it learns together with a private model that stays
there: both learn from the labels and from each other's predictions. After the last client it is the global model of the round.

The next client gets what the one before it made of the model, so clients see each other's answers. A private model begins as the
travelling one when that first comes by, and keeps its optimiser's state; that of the travelling model begins anew at every client.
The last client's domain weighs most: look at the scores by source. In segmentation the predictions at every pixel are compared.
A client that does not answer is passed over, and keeps its private model as it was.
The released code stops with an error at the end of round 1, and warms its private models up for most of a run; neither is taken over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unseen.client import Client
from unseen.errors import NoReplies
from unseen.method import Cohort, Method, on_client
from unseen.ops.descent import own_step
from unseen.ops.mutual import divergence_from
from unseen.optimizers import moments_of, restore_moments
from unseen.own_code import Own
from unseen.parts.local import Local
from unseen.parts.mixstyle import mixed
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["G2G"]


class Travelling(Payload):
    model: State = carries("model", passed_on=True)  # m, as the client before left it


class Taught(Payload):
    model: State = carries("model")


class Private(Memory):
    model: State
    moments: State  # of its optimiser


@dataclass(frozen=True)
class Journey:
    """The server's state."""

    model: State
    order: list[str] = field(default_factory=list)  # in which clients had the model in the last round


@dataclass(frozen=True)
class G2G(Method[Journey]):
    """One model wanders from client to client and learns together with each client's own."""

    paper = "Chen et al., ICASSP 2024"
    presets = {"paper": {"rounds": 50}}

    private_labels: float = hyper(
        0.5, "weight of the labels for the private model; the rest is the other's prediction", symbol="a", low=0.0, high=1.0
    )
    shared_labels: float = hyper(
        0.5, "weight of the labels for the travelling model; the rest is the other's prediction", symbol="b", low=0.0, high=1.0
    )
    order: Literal["fixed", "shuffled"] = hyper("fixed", "clients by name, or in an order drawn afresh each round")
    keep_moments: bool = hyper(True, "keep the state of the private model's optimiser over the rounds")
    local: Local = group(
        Local(epochs=7.0, batch=32, optimizer="momentum", lr=8e-4, weight_decay=5e-4),
        symbols={"epochs": "E"},
        without=["sam", "rsc", "jigen"],
    )

    def contradictions(self) -> Iterable[str]:
        if self.keep_moments and isinstance(self.local.optimizer, Own):
            yield f"optimizer is {self.local.optimizer}, whose state cannot be kept over the rounds; set keep_moments = false"

    def needs_each(self) -> Iterable[str]:
        yield "the model goes from one client to the next, so the server reads each one's"

    @on_client
    def train(self, down: Travelling, client: Client) -> Taught:
        kept = client.recall(Private)
        shared, for_shared = self.local.begin(client, down.model)
        private, for_private = self.local.begin(client, kept.model if kept else down.model)
        if kept and kept.moments:
            restore_moments(for_private, kept.moments)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            p, q = mixed(self.local.mixstyle, private, x, mixing), mixed(self.local.mixstyle, shared, x, mixing)
            for optimizer, logits, other, a in ((for_private, p, q, self.private_labels), (for_shared, q, p, self.shared_labels)):
                loss = self.local.loss_of(client.task, logits, y)
                own_step(optimizer, a * loss + (1 - a) * divergence_from(other, logits))  # KL(other || own)

        for batch in self.local.batches(client):
            step(*batch)
        client.remember(Private(model=state_of(private), moments=moments_of(for_private) if self.keep_moments else {}))
        return Taught(model=state_of(shared))

    def round(self, state: Journey, clients: Cohort) -> Journey:
        names, model, visited = clients.taking_part, state.model, list[str]()
        if self.order == "shuffled":
            names = [names[at] for at in torch.randperm(len(names), generator=clients.rng("order")).tolist()]
        for name in names:
            for client, up in clients.ask(self.train, {name: Travelling(model=model)}).items():
                model, visited = up.model, [*visited, client]
        if not visited:
            raise NoReplies("no client gave the travelling model back, so there is nothing new of it")
        return Journey(model, visited)

    def notes(self, state: Journey) -> dict[str, Any]:
        return {"order": state.order}
