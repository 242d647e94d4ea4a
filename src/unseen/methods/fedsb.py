"""FedSB. Soltany et al., "Federated domain generalization with label smoothing and balanced decentralized training", 2024.

Clients train on smoothed labels, and every client trains on exactly the same number of samples a round, however many it
holds; the server takes the plain mean of all weights and buffers.

The paper does not say: how samples are drawn (here without replacement, afresh each round; a small client starts a new pass),
how many rounds (100), which augmentation (DomainBed's), which split (90/10).
The released code departs from it: smoothing 0.01, 45 batches, lr 5e-5, MixStyle on, and the loader is not shuffled, so that
the same first samples are seen every round.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, on_client
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["FedSB"]


@dataclass(frozen=True)
class FedSB(Method[Aggregate]):
    """Label smoothing against overconfident clients, and one training budget for all of them."""

    paper = "Soltany et al., 2024"
    compiles = True
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

    budget: int | None = hyper(30, "batches a round, the same for every client; none or 0: one pass", symbol="S / B, Eq. 7", low=0)
    resample: bool = hyper(True, "draw the budget's samples afresh each round")
    local: Local = group(
        Local(smoothing=0.1, batch=64, lr=1e-4),
        symbols={"smoothing": "epsilon, Eq. 1", "batch": "B", "lr": "eta, Eq. 4"},
        without=["epochs", "steps", "optimizer", "weight_decay"],  # Adam
    )
    combining: Combining = group(Combining(Uniform()), symbols={"aggregation": "1 / K, Eq. 5"})

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))  # Eq. 1-3

        work = {"steps": self.budget} if self.budget else {"epochs": 1}
        for batch in self.local.prepared(client, client.batches(size=self.local.batch, **work, shuffle=self.resample, drop_last=True)):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)  # Eq. 5
