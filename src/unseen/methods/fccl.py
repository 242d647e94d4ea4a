"""FCCL. Huang, Ye and Du, "Learn from others and be yourself in heterogeneous federated learning", CVPR 2022.

Clients agree through what their models say of unlabelled PUBLIC images: each pulls its logits to the mean of all clients', class by class,
by their cross-correlation. On its own images a client is kept from forgetting by two teachers: the model that it trained alone before
round 1 (intra), and its own model of the end of the last round (inter). Here all networks are alike, and their weights are averaged too.

The public set is a setting: every client loads the same images itself, by the set's name. The released code exchanges logits for every
public batch; here it is once a round, and so:
- a client answers with its trained model and with that model's logits on all public images, in evaluation mode; the mean of these is what
  the next round begins with. As released for equal networks, all clients would show logits of one averaged model, and pull each to itself;
- one optimiser goes through the public images, the released code makes a new Adam for every batch; optimisers start afresh every round;
- teachers run with their running statistics; the first global model is the plain mean of the models that were trained alone;
- the rate of that training stays as it is (released: falling by a cosine); a client that missed it trains alone when it first takes part;
- a client that is missing has no part in the means; its inter teacher is the model of the last round that it took part in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.client import Client
from unseen.data.public import open_public
from unseen.errors import BadInput
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.ops.averaging import means
from unseen.ops.correlation import correlation_loss, divergence_from
from unseen.ops.descent import own_step
from unseen.parts.aggregation import Aggregate, Told, Uniform
from unseen.parts.combining import Combining
from unseen.parts.local import Local
from unseen.parts.mixstyle import mixed
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["FCCL"]


class Down(Payload):
    model: State = carries("model")
    logits: State | None = carries("statistic")  # Zbar: the clients' mean, [public images, classes]


class TrainedAlone(Payload):
    model: State = carries("model", mean=True)
    # What a model that learnt from the client's images says of images that are nobody's: a statistic of the client's data, of fixed size.
    logits: State | None = carries("statistic", mean=True)


class Up(Told):
    model: State = carries("model", mean=True)
    logits: State | None = carries("statistic", mean=True)


class Kept(Memory):
    intra: State  # trained alone, fixed
    inter: State  # of the end of the last round


@dataclass(frozen=True)
class FCCL(Method[Aggregate]):
    """Agreement through logits on public images, and two teachers of its own against forgetting."""

    paper = "Huang et al., CVPR 2022"
    tasks = ("classification",)
    presets = {"paper": {"rounds": 40}}

    public: str | None = hyper(
        None, "public images: a data set by name (see `unseen data`), on one machine also folder:PATH", symbol="public data"
    )
    public_images: int = hyper(5000, "how many of them, at most", symbol="released", low=2)
    public_batch: int = hyper(256, "public images in a batch", symbol="released", low=2)
    public_epochs: int = hyper(
        1, "passes over the public images in a round; 0: no agreement, and no public images", symbol="released", low=0
    )
    off_diagonal: float = hyper(0.0051, "weight of the correlations between different classes", symbol="lambda", low=0.0)
    intra: float = hyper(1.0, "weight of the teacher that was trained alone", symbol="intra", low=0.0)
    inter: float = hyper(1.0, "weight of the client's own model of the last round", symbol="inter", low=0.0)
    private_epochs: float = hyper(50.0, "passes in which a client trains alone before round 1", symbol="released", low=0.0)
    local: Local = group(
        Local(epochs=20.0, batch=128, lr=1e-3), meanings={"sam": "sharpness-aware steps on a client's own images"}, without=["rsc", "jigen"]
    )
    combining: Combining = group(Combining(Uniform()), symbols={"aggregation": "1 / K"})

    def contradictions(self) -> Iterable[str]:
        if self.public and not self.public_epochs:
            yield f"public is {self.public!r}, but public_epochs is 0 and nobody looks at it; leave public out, or set public_epochs = 1"
        if self.intra and not self.private_epochs:
            yield "private_epochs is 0, so that the intra teacher would have learnt nothing; set intra = 0, or train alone first"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if not self.public_epochs:
            return
        if self.public is None:
            yield "the clients agree through public images, and none are named; set public to a data set, or public_epochs = 0"
        elif self.public == around.data:
            yield f"public is {self.public!r}, this run's own data set, with the unseen images in it; choose another one"
        else:
            try:
                open_public(self.public, around.shapes.channels, around.shapes.size, self.public_images)
            except BadInput as bad:
                yield from bad.problems

    def public_sets(self) -> Iterable[str]:
        return [self.public] if self.public else []

    @on_client
    def prepare(self, down: Down, client: Client) -> TrainedAlone:
        """Once: each client alone."""
        net = self.alone(down.model, client)
        teacher = state_of(net)
        client.remember(Kept(intra=teacher, inter=teacher))
        return TrainedAlone(model=teacher, logits=self.said(client, net))

    def alone(self, model: State, client: Client) -> Any:
        net, optimizer = self.local.begin(client, model)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            own_step(optimizer, self.local.loss(client.task, net, x, y, mixing))

        for batch in self.local.prepared(client, client.batches(size=self.local.batch, epochs=self.private_epochs)):
            step(*batch)
        return net

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        kept = client.recall(Kept)
        teacher = kept.intra if kept else state_of(self.alone(down.model, client))
        net = client.build("task", down.model)
        if down.logits is not None:
            self.agree(client, net, down.logits["public"])
        optimizer = self.local.optimizer_of(client, net)
        intra, inter = client.frozen("task", teacher), client.frozen("task", kept.inter if kept else teacher)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:  # CE + KL(p_intra || p) + KL(p_inter || p)
                logits = mixed(self.local.mixstyle, net, x, mixing)
                value = self.local.loss_of(client.task, logits, y)
                for weight, judge in ((self.intra, intra), (self.inter, inter)):
                    if weight:
                        with torch.no_grad():
                            said = judge(x)
                        value = value + weight * divergence_from(said, logits)
                return value

            self.local.descend(net, optimizer, loss)

        for batch in self.local.batches(client):
            step(*batch)
        after = state_of(net)
        client.remember(Kept(intra=teacher, inter=after))
        upload = self.combining.upload(client, net)
        return Up(model=after, logits=self.said(client, net), **upload)

    def agree(self, client: Client, net: Any, average: Tensor) -> None:
        """Public passes: logits are pulled to the clients' mean."""
        optimizer = self.local.optimizer_of(client, net)

        @client.step
        def step(x: Tensor, zbar: Tensor) -> None:
            own_step(optimizer, correlation_loss(net(x), zbar, self.off_diagonal))

        for _ in range(self.public_epochs):
            for places, x in client.public(str(self.public), self.public_images, self.public_batch):
                step(x, average[places.to(average.device)].to(x.device))

    def said(self, client: Client, net: Any) -> State | None:
        """The logits of all public images, in their order."""
        return {"public": client.said_of_public(net, self.public, self.public_images, self.public_batch)} if self.public else None

    def start(self, fresh: Fresh, clients: Cohort) -> Aggregate:
        ups = clients.ask(self.prepare, Down(model=fresh("task"), logits=None)).values()
        model, logits = means(((up.model, up.logits or {}), 1) for up in ups)
        return Aggregate(model, also={"logits": logits} if logits else {})

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        ups = clients.ask(self.train, Down(model=state.model, logits=state.also.get("logits")))
        return self.combining.combine(clients, ups, state, also=("logits",))
