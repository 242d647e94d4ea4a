"""DANN. Ganin et al., "Domain-adversarial training of neural networks", JMLR 2016, as a centralised baseline of domain generalisation.

A discriminator D tells from the features which source domain an image is of; the network F, C learns its task and features from which D
cannot tell: CE(C(F(x)), y) - lambda CE(D(F(x)), d) for F and C, CE(D(F(x)), d) for D. With one domain at a client D would have nothing to
tell apart, and there is no federated form without sharing features: it runs on the pooled sources alone, as in FedADG's tables.

After DomainBed, which the tables' later numbers rest on: D is a perceptron of three layers, both sides use Adam with betas (0.5, 0.9),
batches have equally many images of every domain. Departures: D and the network step on the same batch, D first, where DomainBed lets
them take turns over batches; its gradient penalty, 0 by default, is left out; the paper's schedule of lambda, too. Both optimisers start
afresh every round, so that a round should be long. D travels with the model, and would be averaged with it where several clients hold
several domains each (`dial`); a client that is missing has no part in that round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Shapes, Surroundings, on_client
from unseen.networks.adversarial import domain_classifier
from unseen.ops.averaging import means
from unseen.ops.descent import judging, own_step
from unseen.parts.local import Local
from unseen.parts.views import repeat_labels
from unseen.payload import Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["DANN"]


class Down(Payload):
    model: State = carries("model")
    discriminator: State = carries("model", role="discriminator")


class Up(Payload):
    model: State = carries("model", mean=True)
    discriminator: State = carries("model", role="discriminator", mean=True)
    samples: int = carries("count")


@dataclass(frozen=True)
class Opposed:
    model: State
    discriminator: State


@dataclass(frozen=True)
class DANN(Method[Opposed]):
    """Features from which a discriminator cannot tell the domain; all sources in one place."""

    paper = "Ganin et al., JMLR 2016"
    tasks = ("classification",)
    pooled = True
    presets = {"paper": {"partition": "pooled", "augment": "domainbed"}}

    lam: float = hyper(1.0, "weight of the discriminator's loss, turned round", symbol="lambda", low=0.0)
    width: int = hyper(256, "units of D's hidden layers", low=1)
    depth: int = hyper(3, "layers of D", low=2, high=16)
    discriminator_lr: float | None = hyper(None, "learning rate of D; none: the network's", low=0.0)
    beta1: float = hyper(0.5, "Adam's first momentum", low=0.0, high=0.9999)
    beta2: float = hyper(0.9, "Adam's second momentum", low=0.0, high=0.99999)
    local: Local = group(
        Local(batch=96, lr=5e-5),
        symbols={"lr": "mu"},
        meanings={"batch": "samples in a batch, equally many of every domain (DomainBed: 32 of each)", "lr": "learning rate of Adam"},
        without=["optimizer", "rsc", "jigen", "sam"],
    )

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        return {"discriminator": partial(domain_classifier, shapes.features, shapes.domains, self.width, self.depth)}

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        lone = sorted(client for client, domains in around.domains.items() if domains < 2)
        if lone:
            yield f"{', '.join(lone)} would hold one domain, and D nothing to tell apart; use --partition pooled, with at least two sources"

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, critic = client.build("task", down.model), client.build("discriminator", down.discriminator)
        for_net, for_critic = self.adam(client, net, self.local.lr), self.adam(client, critic, self.discriminator_lr)

        @client.step
        def step(x: Tensor, y: Tensor, domain: Tensor, *mixing: Tensor) -> None:
            seen, d = self.local.look(net, x, mixing), repeat_labels(domain, len(x))
            own_step(for_critic, F.cross_entropy(critic(seen.features.detach()), d))  # D
            with judging(critic):
                told = F.cross_entropy(critic(seen.features), d)
                own_step(for_net, self.local.loss_of(client.task, seen.logits, y) - self.lam * told)  # F and C

        work = {"steps": self.local.steps} if self.local.steps else {"epochs": self.local.epochs}
        for batch in self.local.prepared(client, client.domain_batches(size=self.local.batch, **work)):
            step(*batch)
        return Up(model=state_of(net), discriminator=state_of(critic), samples=client.samples)

    def adam(self, client: Client, net: nn.Module, lr: float | None) -> Any:
        rate = self.local.lr if lr is None else lr
        own = {"betas": (self.beta1, self.beta2), "weight_decay": self.local.weight_decay}
        return client.optimizer(torch.optim.Adam, net, share=self.local.share(client), lr=rate, **own)

    def start(self, fresh: Fresh, clients: Cohort) -> Opposed:
        return Opposed(fresh("task"), fresh("discriminator"))

    def round(self, state: Opposed, clients: Cohort) -> Opposed:
        ups = clients.ask(self.train, Down(model=state.model, discriminator=state.discriminator))
        return Opposed(*means(((up.model, up.discriminator), up.samples) for up in ups.values()))
