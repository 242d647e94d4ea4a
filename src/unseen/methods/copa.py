"""COPA. Wu and Gong, "Collaborative optimization and aggregation for decentralized domain generalization and adaptation", ICCV 2021.

One feature extractor F is averaged over the clients, and every client keeps a head C_k of its own, of which the others get a copy: a client
trains F so that its images are classified well by its own head and by the others', which stay fixed. The prediction is the mean over the
heads. The model holds that ensemble: its head is an `EnsembleHead`, whose output is the log of the mean prediction.

No code was released, and the paper was not at hand. Read from its abstract: the averaged F, the ensemble, the training through the
others' heads. Left out: the hybrid of batch and instance norm, and RandAugment, of which only memory told. Here it is so:
- the network has room for `heads` heads, a client's head lies at the place of its name among all clients' names, and a head that no client
  has trained yet counts nowhere: in round 1 there are no others to train through;
- a client sends its whole network, in which the others' heads are as it got them: the server reads F and the client's own head;
- a client that is missing keeps its last head in the ensemble; F is averaged by `aggregation` over those who answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.networks import EnsembleHead, with_option
from unseen.parts.aggregation import Aggregate
from unseen.parts.combining import Combining, Up
from unseen.parts.local import Local
from unseen.parts.views import task_loss
from unseen.payload import Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["COPA"]


class Down(Payload):
    model: State = carries("model", passed_on=True)  # F, and the head of every client
    own: int = carries("number")  # which of the heads is this client's


@dataclass(frozen=True)
class COPA(Method[Aggregate]):
    """One feature extractor that must serve every client's head, and the heads' mean as prediction."""

    paper = "Wu and Gong, ICCV 2021"

    weight: float = hyper(1.0, "weight of the losses through the other clients' heads", symbol="sum over j != k", low=0.0)
    heads: int = hyper(8, "for how many clients the network has room", symbol="K", low=1, high=1024)
    local: Local = group(Local(), symbols={"epochs": "E"}, without=["rsc", "jigen"])
    combining: Combining = group(Combining(), meanings={"aggregation": "how the server averages F; heads are not averaged"})

    def network(self, name: str) -> str:
        return with_option(name, "heads", self.heads)

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if not isinstance(around.net.head(), EnsembleHead):  # type: ignore[operator]
            yield f"the head of {type(around.net).__name__} is one head; use a network by name (`unseen networks`), which can have several"
        if len(around.training) > self.heads:
            yield f"{len(around.training)} clients and room for {self.heads} heads; set heads = {len(around.training)}"

    def needs_each(self) -> Iterable[str]:
        yield from super().needs_each()
        yield "the server keeps each client's head apart and sends it to the others"

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        ensemble = net.head()
        assert isinstance(ensemble, EnsembleHead)  # the obstacles saw to it
        own, others = ensemble.heads[down.own], []
        for number, counts in enumerate(ensemble.share.tolist()):
            if number != down.own:
                ensemble.heads[number].requires_grad_(False)
                others += [ensemble.heads[number]] if counts else []
        ensemble.share[down.own] = 1.0

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:  # CE(C_k(F(x))) + sum_{j != k} CE(C_j(F(x)))
                features = self.local.look(net, x, mixing).features
                through = [task_loss(client.task, head(features), y, smoothing=self.local.smoothing) for head in others]
                return self.local.loss_of(client.task, own(features), y) + self.weight * sum(through, start=features.new_zeros(()))

            self.local.descend(net, optimizer, loss)

        for batch in self.local.batches(client):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def start(self, fresh: Fresh, clients: Cohort) -> Aggregate:
        model = fresh("task")
        return Aggregate({name: torch.zeros_like(value) if name in _shares(clients) else value for name, value in model.items()})

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        downs = {name: Down(model=state.model, own=number) for number, name in enumerate(clients.names)}
        ups = clients.ask(self.train, downs).all()
        like = next(iter(ups.values()), state).model
        heads = {entry: state.model[entry].to(like[entry].device, copy=True) for entry in clients.entries("head")}
        for number, name in enumerate(clients.names):
            if name in ups:
                heads |= {entry: ups[name].model[entry] for entry in heads if f".heads.{number}." in entry}  # C_k
                for entry in _shares(clients):
                    heads[entry][number] = 1.0
        # With the same heads before and after, whatever averages, bounds or scores models does it to F alone.
        alike = {name: _joined(ups[name], heads, number) for number, name in enumerate(clients.names) if name in ups}
        after = self.combining.combine(clients, alike, replace(state, model={**state.model, **heads}))  # F <- mean_k F_k
        return replace(after, model={**after.model, **heads})


def _joined(up: Up, heads: State, own: int) -> Up:
    """A client's upload with the others' heads as they are now."""
    others = {entry: value for entry, value in heads.items() if f".heads.{own}." not in entry}
    uphill = up.perturbed and {**up.perturbed, **{entry: value.to(up.perturbed[entry]) for entry, value in others.items()}}
    return replace(up, model={**up.model, **others}, perturbed=uphill)


def _shares(clients: Cohort) -> list[str]:
    """The entry of the model that says which heads count."""
    return [entry for entry in clients.entries("head") if entry.endswith(".share")]
