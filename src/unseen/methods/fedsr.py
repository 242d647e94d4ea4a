"""FedSR. Nguyen et al., "FedSR: a simple and effective domain generalization method for federated learning", NeurIPS 2022.

A representation is drawn from a Gaussian that the network gives for each image, z ~ N(mu(x), sigma(x)^2), and kept simple: short (L2R),
and telling no more of the image than its label does (CMI, bounded by the distance to one Gaussian for each class, the reference r).
mu is the first layer of a two-layer head, so the task network predicts from it; the layer that gives sigma is a network of its own
("spread"), which is averaged too. With z = none there is no such layer, and mu is what the network's own head reads.

Prediction uses z = mu. The released code averages the softmax of 20 draws: a departure, so that what is scored is what is deployed.
Departures of the released code are the preset `released`: |z| instead of |z|^2, a reference that stays at its client, a learned scale
before the comparison; there the optimiser outlives a round, here it does not. The paper's side of these is from memory.
A client that first takes part begins with the start of the reference; one that is missing keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Shapes, Surroundings, on_client
from unseen.networks import with_option
from unseen.networks.base import TaskNet
from unseen.networks.headed import TwoLayerHead
from unseen.networks.reference import ClassReference
from unseen.ops.gaussian import Length, deviation, drawn, gaussian_divergence, representation_length
from unseen.parts.aggregation import Aggregate, Told, Uniform
from unseen.parts.combining import Combining
from unseen.parts.local import Local
from unseen.parts.views import repeat_labels
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["FedSR"]


class Down(Payload):
    model: State = carries("model")  # features, mu and the classifier C
    spread: State = carries("model", role="spread")  # sigma
    reference: State | None = carries("model", role="reference")  # r, where it is shared


class Up(Told):
    model: State = carries("model", mean=True)
    spread: State = carries("model", role="spread", mean=True)
    reference: State | None = carries("model", role="reference", mean=True)


class Kept(Memory):
    reference: State  # r, where it stays here


@dataclass(frozen=True)
class Server:
    task: Aggregate
    spread: State
    reference: State | None


@dataclass(frozen=True)
class FedSR(Method[Server]):
    """A random representation that is short and tells nothing of an image beyond its label."""

    tasks = ("classification",)
    paper = "Nguyen et al., NeurIPS 2022"
    presets = {
        "paper": {"rounds": 1000, "validation": 0.1, "augment": "domainbed"},
        "released": {
            "length": "norm", "reference": "local", "scaled": True, "rounds": 1000, "validation": 0.1, "augment": "domainbed",
        },
    }  # fmt: skip

    z: int | None = hyper(512, "dimensions of the representation; none: what the network's own head reads", symbol="z", low=1, high=65536)
    l2r: float = hyper(0.01, "weight of the representation's length", symbol="alpha_L2R", low=0.0)
    cmi: float = hyper(0.001, "weight of what it tells beyond the label", symbol="alpha_CMI", low=0.0)
    length: Length = hyper("squared", "squared: the mean of |z|^2; norm: of |z|, as released", symbol="L2R")
    reference: Literal["shared", "local"] = hyper("shared", "one reference for all, or as released one at each client", symbol="r(z | y)")
    scaled: bool = hyper(False, "mu and sigma are multiplied by a learned number before they are compared with r, as released")
    local: Local = group(
        Local(steps=5, batch=64, optimizer="momentum", lr=0.01, weight_decay=5e-4),
        symbols={"steps": "E", "lr": "eta"},
        without=["rsc", "jigen"],
    )
    combining: Combining = group(Combining(Uniform()), symbols={"aggregation": "1 / K"})

    def network(self, name: str) -> str:
        return with_option(name, "hidden", self.z) if self.z else name

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        size = self.z or shapes.features
        spread, reference = partial(nn.Linear, shapes.features, size), partial(ClassReference, shapes.outputs, size)
        return {**super().networks(shapes), "spread": spread, "reference": reference}

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        head = around.net.head()  # type: ignore[operator]
        if self.z and isinstance(head, TwoLayerHead) and head.relu:
            yield "z is drawn where the network has a ReLU, which would be left out; leave relu out of the network's options"
        if self.z and not isinstance(head, TwoLayerHead):
            yield f"z is {self.z}, but the head of a network of your own has no layer for it; set z = none: then z is what the head reads"

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        spread = client.build("spread", down.spread)
        reference = client.build("reference", self.reference_for(down, spread, client))
        optimizer = self.local.optimizer_of(client, net, spread, reference)

        @client.step
        def step(x: Tensor, y: Tensor, noise: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.objective(net, spread, reference, client, x, y, noise, mixing))

        for x, y, *mixing in self.local.batches(client):
            step(x, y, torch.randn(len(x), spread.out_features, generator=client.rng).to(x.device, non_blocking=True), *mixing)
        after = state_of(reference)
        if self.reference == "local":
            client.remember(Kept(reference=after))
        shared = after if self.reference == "shared" else None
        return Up(model=state_of(net), spread=state_of(spread), reference=shared, **self.combining.upload(client, net))

    def objective(
        self, net: TaskNet, spread: nn.Module, r: Any, client: Client, x: Tensor, y: Tensor, noise: Tensor, mixing: tuple[Tensor, ...]
    ) -> Tensor:
        """CE(C(z), y) + alpha_L2R L2R + alpha_CMI CMI, on one draw of z for every image."""
        features = self.local.look(net, x, mixing).features
        head: Any = net.head()
        mu, classify = (head.inner(features), head.output) if self.z else (features, head)
        sigma, labels = deviation(spread(features)), repeat_labels(y, len(x))
        z = drawn(mu, sigma, noise)
        scale = r.scale if self.scaled else 1.0
        beyond = gaussian_divergence(scale * mu, scale * sigma, r.mu[labels], deviation(r.rho[labels]))
        return self.local.loss_of(client.task, classify(z), y) + self.l2r * representation_length(z, self.length) + self.cmi * beyond

    def reference_for(self, down: Down, spread: nn.Linear, client: Client) -> State:
        if down.reference is not None:
            return down.reference
        kept = client.recall(Kept)
        return kept.reference if kept else state_of(ClassReference(client.task.outputs, spread.out_features))

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        return Server(Aggregate(fresh("task")), fresh("spread"), fresh("reference") if self.reference == "shared" else None)

    def round(self, state: Server, clients: Cohort) -> Server:
        ups = clients.ask(self.train, Down(model=state.task.model, spread=state.spread, reference=state.reference))
        task = self.combining.combine(clients, ups, state.task, also=("spread", "reference"))
        return Server(task, task.also["spread"], task.also.get("reference"))
