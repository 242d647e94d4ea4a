"""Epi-FCR. Li et al., "Episodic training for domain generalization", ICCV 2019; on clients as in ELCFS's tables.

Beside the shared network (F, C) every client trains one of its own (F_j, C_j), on its data alone. The shared features must then also work
with another client's head (Epi-F), the shared head with another client's features (Epi-C), and the features with a random head (Epi-R):
a network that meets partners who never saw its domain.

The paper trains all domains in one place, as one pooled client does here: a step for each domain's batch, with a partner drawn among the
other domains' networks. Between clients it is so:
- a client's own network stays with it from round to round (it begins as the global model of the first round in which it takes part), and
  what the others need of it leaves: its head, and with `exchange = "models"` all of it;
- another client j is drawn for each batch among those whose networks have arrived; before any has, as in round 1, there is Epi-R alone;
- the random head C_r is drawn from the run's seed and sent with every question, so that all clients have the same;
- a client that is missing keeps its network, and the others go on with what they last got of it.
The released code keeps batch norm in evaluation mode throughout (`network = "...:norm=frozen"`), and takes one pair of domains per
iteration; here batch norm learns unless it is frozen, and every client takes an episode on each of its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Shapes, Surroundings, on_client
from unseen.parts.aggregation import Aggregate, Told
from unseen.parts.combining import Combining
from unseen.parts.episodes import Partner, Weights, episode_step
from unseen.parts.local import Local
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["EpiFCR"]


class Down(Payload):
    model: State = carries("model")  # F and C
    random: State | None = carries("model", role="random")  # C_r
    heads: dict[str, State] = carries("model", role="head", passed_on=True)  # C_j of the others, by name
    models: dict[str, State] = carries("model", passed_on=True)  # F_j and C_j


class Up(Told):
    model: State = carries("model", of="model", mean=True)
    head: State | None = carries("model", role="head")  # C_k, where heads are exchanged
    own: State | None = carries("model", of="model")  # F_k and C_k, where models are


class Kept(Memory):
    model: State  # F_k and C_k


class KeptByDomain(Memory):
    models: dict[str, State]  # F_j and C_j of every domain, where one client holds them all
    rounds: int


@dataclass(frozen=True)
class Server:
    task: Aggregate
    random: State
    heads: dict[str, State]  # by client, the last that arrived
    models: dict[str, State]


@dataclass(frozen=True)
class EpiFCR(Method[Server]):
    """Features and head must work with partners that were trained on other clients' data."""

    title = "Epi-FCR"
    paper = "Li et al., ICCV 2019"
    presets = {"paper": {}, "heads": {"exchange": "heads", "epi_c": 0.0}}

    epi_f: float = hyper(2.0, "weight of the loss of another client's head on these features", symbol="lambda_1", low=0.0)
    epi_c: float = hyper(0.05, "weight of the loss of this head on another client's features", symbol="lambda_2", low=0.0)
    epi_r: float = hyper(0.1, "weight of the loss of a random head on these features", symbol="lambda_3", low=0.0)
    exchange: Literal["heads", "models"] = hyper("models", "what clients get of each other's networks; heads: without Epi-C")
    warmup: int = hyper(1, "first rounds without episodes", symbol="released", low=0)
    local: Local = group(
        Local(batch=32, optimizer="momentum", lr=1e-3, weight_decay=1e-4),
        meanings={"sam": "sharpness-aware steps of the shared network", "views": "restyled copies; the shared network alone sees them"},
        without=["rsc", "jigen"],
    )
    combining: Combining = group(Combining())

    def contradictions(self) -> Iterable[str]:
        if self.exchange == "heads" and self.epi_c:
            yield f"epi_c is {self.epi_c}, but with heads alone no client has another's features; set epi_c = 0, or exchange = models"
        if self.exchange == "models" and self.epi_f and not self.epi_c:
            yield "epi_c is 0, so that nobody needs another's features, but exchange is models; set exchange = heads"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if self.exchanges and len(around.training) < 2 and max(around.domains.values(), default=1) < 2:
            yield "a single client with one domain has nobody to meet; use two clients or pooled domains, or epi_f = 0 and epi_c = 0"

    def needs_each(self) -> Iterable[str]:
        yield from super().needs_each()
        if self.exchanges:
            yield "the clients' own networks are sent to the others one by one"

    @property
    def exchanges(self) -> bool:
        return self.epi_f > 0 or self.epi_c > 0

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        def head() -> nn.Module:
            return shapes.network(shapes.outputs).head()

        return {"head": head, "random": head}

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        kept = client.recall(Kept)
        own, for_own = self.local.begin(client, kept.model if kept else down.model) if self.exchanges else (None, None)
        random = client.frozen("random", down.random) if down.random else None
        heads = [client.frozen("head", state) for _, state in sorted(down.heads.items())]
        models = [client.frozen("task", state) for _, state in sorted(down.models.items())]
        met = [Partner(head) for head in heads] + [Partner(model.head(), model) for model in models] or [Partner()]  # none has arrived yet
        steps = [episode_step(client, self.local, self.weights, net, optimizer, own, for_own, random, partner) for partner in met]
        for x, y, *mixing in self.local.batches(client):
            j = int(torch.randint(len(steps), (1,), generator=client.rng)) if len(steps) > 1 else 0
            steps[j](x, y, *mixing)
        if own:
            client.remember(Kept(model=state_of(own)))
        return Up(
            model=state_of(net),
            head=state_of(own.head()) if own and self.exchange == "heads" else None,
            own=state_of(own) if own and self.exchange == "models" else None,
            **self.combining.upload(client, net),
        )

    @on_client
    def train_pooled(self, down: Down, client: Client) -> Up:
        """All domains in one place, as in the paper: each has a network of its own here, and the partners are the other domains'."""
        net, optimizer = self.local.begin(client, down.model)
        kept, names = client.recall(KeptByDomain), client.domains
        owns = [self.local.begin(client, kept.models[name] if kept else down.model) for name in names]
        random = client.frozen("random", down.random) if down.random else None
        episodes, weights = (kept.rounds if kept else 0) >= self.warmup, self.weights
        alone = [episode_step(client, self.local, weights, net, optimizer, *own, random, Partner()) for own in owns]
        pairs = {
            (k, j): episode_step(client, self.local, weights, net, optimizer, *own, random, Partner(other.head(), other, learns=True))
            for k, own in enumerate(owns)
            for j, (other, _) in enumerate(owns)
            if j != k
        }
        work = {"steps": self.local.steps} if self.local.steps else {"epochs": self.local.epochs}
        for images, labels, _ in client.domain_batches(size=self.local.batch * len(names), **work):
            for k, part in enumerate(zip(images.chunk(len(names)), labels.chunk(len(names)), strict=True)):
                j = (k + 1 + int(torch.randint(len(names) - 1, (1,), generator=client.rng))) % len(names)
                for batch in self.local.prepared(client, [part]):
                    (pairs[k, j] if episodes else alone[k])(*batch)
        models = {name: state_of(own) for name, (own, _) in zip(names, owns, strict=True)}
        client.remember(KeptByDomain(models=models, rounds=(kept.rounds if kept else 0) + 1))
        return Up(model=state_of(net), head=None, own=None, **self.combining.upload(client, net))

    @property
    def weights(self) -> Weights:
        return Weights(self.epi_f, self.epi_c, self.epi_r)

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        return Server(Aggregate(fresh("task")), fresh("random"), {}, {})

    def round(self, state: Server, clients: Cohort) -> Server:
        episodes = state.task.round >= self.warmup

        def down(name: str) -> Down:
            random = state.random if episodes and self.epi_r else None
            heads, models = (_but(bank, name) if episodes else {} for bank in (state.heads, state.models))
            return Down(model=state.task.model, random=random, heads=heads, models=models)

        task = self.train_pooled if self.exchanges and len(clients.names) == 1 else self.train
        ups = clients.ask(task, {name: down(name) for name in clients.names} if self.exchanges else down("")).all()
        heads = {name: up.head for name, up in ups.items() if up.head is not None}
        models = {name: up.own for name, up in ups.items() if up.own is not None}
        return Server(self.combining.combine(clients, ups, state.task), state.random, {**state.heads, **heads}, {**state.models, **models})


def _but(bank: Mapping[str, State], name: str) -> dict[str, State]:
    return {other: state for other, state in bank.items() if other != name}
