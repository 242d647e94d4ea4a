"""FedSB. Soltany et al., "Federated domain generalization with label smoothing and balanced decentralized training", 2024.

Clients train on smoothed labels, and every client trains on exactly the same number of samples a round, however many it
holds; the server takes the plain mean of all weights and buffers.

The paper does not say: how samples are drawn (here without replacement, afresh each round; a small client starts a new pass),
how many rounds (100), which augmentation (DomainBed's), which split (90/10).
The released code departs from it: smoothing 0.01, 45 batches, lr 5e-5, MixStyle on, and the loader is not shuffled, so that
the same first samples are seen every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.parts import part_obstacles
from unseen.parts.aggregation import Aggregate, Aggregation, Uniform
from unseen.parts.mixstyle import MixStyle, mixed, mixing_of
from unseen.parts.sam import SAM, descend
from unseen.parts.views import Views, task_loss, views_of
from unseen.payload import Payload, State
from unseen.settings import hyper
from unseen.state import state_of

__all__ = ["FedSB"]


class Down(Payload):
    model: State


class Up(Payload):
    model: State  # all that leaves a client, unless it is averaged otherwise than in the paper
    samples: int | None  # leaves only where the average is weighted by it
    perturbed: State | None  # leaves only where the aggregation is sha


@dataclass(frozen=True)
class FedSB(Method[Aggregate]):
    """Label smoothing against overconfident clients, and one training budget for all of them."""

    title = "FedSB"
    paper = "Soltany et al., 2024"
    tasks = ("classification",)
    presets = {
        "paper": {"rounds": 100, "validation": 0.1, "augment": "domainbed"},
        "released": {
            "smoothing": 0.01,
            "budget": 45,
            "resample": False,
            "lr": 5e-5,
            "mixstyle": "mixstyle",
            "rounds": 100,
            "validation": 0.1,
            "augment": "fedsb-released",
        },
    }

    smoothing: float = hyper(0.1, "mass moved from the true class to all classes", symbol="epsilon, Eq. 1", low=0.0, high=1.0)
    budget: int | None = hyper(30, "batches a round, the same for every client; none or 0: one pass", symbol="S / B, Eq. 7", low=0)
    batch: int = hyper(64, "samples in a batch", symbol="B", low=1)
    lr: float = hyper(1e-4, "learning rate of Adam", symbol="eta, Eq. 4", low=0.0)
    resample: bool = hyper(True, "draw the budget's samples afresh each round")
    aggregation: Aggregation = hyper(Uniform(), "how the server averages: uniform is the plain mean", symbol="1 / K, Eq. 5")
    views: Views | None = hyper(None, "restyled copies that train along with each batch, and their consistency loss")
    mixstyle: MixStyle | None = hyper(None, "mixes the style of feature maps within a batch")
    sam: SAM | None = hyper(None, "sharpness-aware steps")

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        optimizer = client.optimizer(torch.optim.Adam, net, lr=self.lr)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                return task_loss(client.task, mixed(net, x, mixing), y, self.views, self.smoothing)  # Eq. 1-3

            descend(net, optimizer, loss, self.sam)

        epochs = None if self.budget else 1
        for x, y in client.batches(size=self.batch, steps=self.budget or None, epochs=epochs, shuffle=self.resample, drop_last=True):
            x = views_of(self.views, x, client.rng)
            step(x, y, *mixing_of(self.mixstyle, x, client.rng))
        return Up(model=state_of(net), **self.aggregation.upload(client, net))

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        return part_obstacles(self, around)

    def start(self, fresh: Fresh, clients: Cohort) -> Aggregate:
        return Aggregate(fresh("task"))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        ups = clients.ask(self.train, Down(model=state.model))
        return self.aggregation.combine(clients, ups.items(), state)  # Eq. 5

    def notes(self, state: Aggregate) -> Mapping[str, Any]:
        return self.aggregation.notes(state)
