"""FedIIR. Guo et al., "Out-of-distribution generalization of federated learning via implicit invariant relationships", ICML 2023.

What relates features to labels in the same way everywhere is what the head should use. So the head's gradient is asked to be the same
at every client. A round has two exchanges: the clients send the mean gradient of their head at the global model, the server keeps a
moving average of it, and then each client trains with a penalty on how far its own gradient is from that average.

The released code runs step 1 on the server's network in training mode, so that its batch-norm statistics move with every client's data
before anybody trains; here they are the batch's own, and are forgotten. The average starts at zero without a bias correction, as
released: with ema = 0.95 it is small in the first rounds. The gradient is of the whole local loss, views and smoothing included.
The average is over the clients that answered step 1. A client that missed it trains with what the others told. With gamma = 0 nothing
is asked for in step 1, and the method is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.networks.base import TaskNet
from unseen.ops.averaging import RunningMean, mean
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.payload import Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import only, state_of

__all__ = ["FedIIR"]


class HeadGradient(Payload):
    gradient: State = carries("gradient", of="model", part="head", mean=True)  # of the loss at the global model, the mean over a pass
    batches: int = carries("count")  # how many it is the mean of: its weight


class Aligned(Payload):
    model: State = carries("model")
    gradient: State = carries("gradient", part="head")  # the moving average over clients and rounds


@dataclass(frozen=True)
class Server:
    task: Aggregate
    gradient: State  # gbar


@dataclass(frozen=True)
class FedIIR(Method[Server]):
    """The head's gradient is to be the same at every client."""

    paper = "Guo et al., ICML 2023"
    presets = {
        "paper": {"rounds": 100, "augment": "domainbed"},  # the defaults are those for PACS
        "vlcs": {"gamma": 5e-3, "lr": 1e-3, "rounds": 100, "augment": "domainbed"},
        "office-home": {"gamma": 5e-4, "lr": 1e-3, "rounds": 100, "augment": "domainbed"},
    }

    gamma: float = hyper(1e-3, "weight of the distance between the gradients; 0: FedAvg", symbol="gamma", low=0.0)
    ema: float = hyper(0.95, "how much of the average gradient stays from round to round", symbol="ema", low=0.0, high=1.0)
    local: Local = group(Local(batch=32, optimizer="momentum", lr=2.5e-3), symbols={"lr": "eta"})
    combining: Combining = group(Combining(Uniform()), symbols={"aggregation": "1 / K"})

    def contradictions(self) -> Iterable[str]:
        if self.ema == 1 and self.gamma:
            yield "ema is 1, so the average gradient stays zero; give a smaller number"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if self.gamma and not any(w.requires_grad for w in around.net.head().parameters()):  # type: ignore[operator]
            yield "the network's head is frozen, so it has no gradient; let it train, or use fedavg"

    @on_client
    def gradient(self, down: Down, client: Client) -> HeadGradient:
        """Step 1: g = dL / dC over one pass, without a step. The network is thrown away, and what batch norm saw with it."""
        net: TaskNet = client.build("task", down.model)
        head = self.head_of(net, client)
        trained = [w for w in head.values() if w.requires_grad]

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            net.zero_grad()
            self.local.loss(client.task, net, x, y, mixing).backward(inputs=trained)

        average, batches = RunningMean(), 0
        for batch in self.local.prepared(client, client.batches(size=self.local.batch, epochs=1)):
            step(*batch)
            average.add({name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in head.items()})
            batches += 1
        nothing = {name: torch.zeros_like(w) for name, w in head.items()}  # of a client without images, which weighs nothing
        return HeadGradient(gradient=average.result() if batches else nothing, batches=batches)

    @on_client
    def train(self, down: Aligned, client: Client) -> Up:
        """Step 3: L + gamma |dL / dC - gbar|^2. The penalty's gradient reaches the features and the head."""
        net, optimizer = self.local.begin(client, down.model)
        goal = self.head_of(client.frozen("task", {**down.model, **down.gradient}), client)
        head = {name: w for name, w in self.head_of(net, client).items() if w.requires_grad}

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                value = self.local.loss(client.task, net, x, y, mixing)
                if not self.gamma:
                    return value
                own = torch.autograd.grad(value, [*head.values()], create_graph=True)
                apart = [(g - goal[name]).square().sum() for name, g in zip(head, own, strict=True)]
                return value + self.gamma * torch.stack(apart).sum()

            self.local.descend(net, optimizer, loss)

        for batch in self.local.batches(client):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def head_of(self, net: nn.Module, client: Client) -> dict[str, nn.Parameter]:
        names = set(client.entries("head"))
        return {name: w for name, w in net.named_parameters() if name in names}

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        model, parameters = fresh("task"), set(clients.entries("parameters"))
        head = only(model, (name for name in clients.entries("head") if name in parameters))
        return Server(Aggregate(model), {name: torch.zeros_like(w) for name, w in head.items()})

    def round(self, state: Server, clients: Cohort) -> Server:
        average = state.gradient
        if self.gamma:  # step 2: gbar <- ema gbar + (1 - ema) g
            ups = clients.ask(self.gradient, Down(model=state.task.model))
            now = mean((up.gradient, up.batches) for up in ups.values())
            average = {name: torch.lerp(g, average[name].to(g), self.ema) for name, g in now.items()}
        trained = clients.ask(self.train, Aligned(model=state.task.model, gradient=average))
        return Server(self.combining.combine(clients, trained, state.task), average)  # step 4
