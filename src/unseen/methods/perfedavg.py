"""Per-FedAvg. Fallah, Mokhtari and Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020.

The clients look for one start from which a single step on a client's own data does well. A local iteration takes an inner step on one
batch, the gradient after it on a second, and applies that at the start (FO); with a third batch the derivative through the inner step is
taken by differences (HF). The server takes the plain mean.

An unseen domain has no labels to take the inner step with: it gets the start itself. A client's own model is the start after one inner
step on a batch of its own images, and is scored at the client.
An iteration consumes two batches (FO) or three (HF), all of them full. Batch-norm statistics are taken in the inner step's pass alone.
A client that is missing in a round has no part in the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, on_client
from unseen.ops.meta import meta_step
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.payload import State
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["PerFedAvg"]


@dataclass(frozen=True)
class PerFedAvg(Method[Aggregate]):
    """A start from which one step on a client's own data does well."""

    title = "Per-FedAvg"
    paper = "Fallah et al., NeurIPS 2020"

    form: Literal["fo", "hf"] = hyper("fo", "fo leaves out the derivative through the inner step; hf takes it by differences")
    alpha: float = hyper(0.01, "learning rate of the inner step", symbol="alpha", low=0.0)
    delta: float = hyper(1e-3, "how far the differences of hf reach, in gradients", symbol="delta", low=1e-8)
    iterations: int = hyper(10, "local iterations a round, each of two batches (fo) or three (hf)", symbol="tau", low=1)
    local: Local = group(
        Local(optimizer="sgd", lr=1e-3, batch=40),
        symbols={"lr": "beta", "batch": "D"},
        meanings={"lr": "learning rate of the step on the gradient after the inner step"},
        without=["epochs", "steps", "sam"],
    )
    combining: Combining = group(Combining(Uniform()), symbols={"aggregation": "1 / K"})

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        number = 2 if self.form == "fo" else 3

        @client.step
        def step(*tensors: Tensor) -> None:
            each = len(tensors) // number
            drawn = [tensors[at : at + each] for at in range(0, len(tensors), each)]  # D, D' and, for hf, D''
            losses = [partial(self.local.loss, client.task, net, x, y, tuple(mixing)) for x, y, *mixing in drawn]
            meta_step(net, optimizer, losses, self.alpha, self.delta)

        batches = self.local.prepared(client, client.batches(size=self.local.batch, steps=number * self.iterations))
        for together in zip(*[batches] * number, strict=False):
            step(*(tensor for batch in together for tensor in batch))
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def local_model(self, model: State, client: Client) -> State | None:
        """w - alpha grad f(w; D), with a batch of the client's own training images."""
        net = client.build("task", model)
        optimizer = client.optimizer(torch.optim.SGD, net, lr=self.alpha)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))

        for batch in self.local.prepared(client, client.batches(size=self.local.batch, steps=1)):
            step(*batch)
        return state_of(net)

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
