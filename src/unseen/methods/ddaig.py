"""DDAIG. Zhou et al., "Deep domain-adversarial image generation for domain generalisation", AAAI 2020; on clients as in FedDAG's tables.

For every batch a generator G learns to perturb images, x' = x + lambda G(x), so that the label net L still knows them and a domain net D
does not; then L learns from the images and from what G makes of them, and D learns whose the images are. L is the model.

A client has one domain, so a domain net of its own would have one class. FedDAG does not say what it did, and here it is so:
- `domain_net = "shared"`: D has a class for every client and is averaged with L and G, so that at the beginning of a round it knows the
  others' classes too; a client knows its class from its place in the list of names that comes with the question;
- `domain_net = "none"`: G only learns not to hurt;
- D is a network like L with room for `domains` classes, of which the first K count; on a U-Net its answer is the mean over pixels. It
  begins with random weights, whatever L begins with;
- a network that judges another's step runs with its running statistics; images are on the network's scale (pixels normalised as the
  data set says, where the paper has 0 to 1), and x' is not clamped; optimisers start afresh every round;
- views join a batch first, so that each is perturbed; MixStyle acts in L's own step, and sharpness-aware steps are L's.
A client that is missing has no part in the means; its class at D stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.client import Client
from unseen.errors import BadInput
from unseen.method import Cohort, Fresh, Method, Shapes, Surroundings, on_client
from unseen.networks.base import TaskNet
from unseen.networks.generator import ImageGenerator
from unseen.ops.descent import judging, own_step
from unseen.ops.discrepancy import perturb
from unseen.parts.aggregation import Aggregate, Told
from unseen.parts.combining import Combining
from unseen.parts.local import Local
from unseen.parts.views import task_loss
from unseen.payload import Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of
from unseen.task import Task

__all__ = ["DDAIG"]


class Down(Payload):
    model: State = carries("model")  # L
    generator: State = carries("model", role="generator")  # G
    domain: State | None = carries("model", role="domain")  # D, where there is one
    names: str = carries("text")  # of all clients, one a line: the place of its own is a client's class d
    round: int = carries("number")  # how many there were


class Up(Told):
    model: State = carries("model", mean=True)
    generator: State = carries("model", role="generator", mean=True)
    domain: State | None = carries("model", role="domain", mean=True)


@dataclass(frozen=True)
class Server:
    task: Aggregate  # L
    generator: State
    domain: State | None


@dataclass(frozen=True)
class DDAIG(Method[Server]):
    """A generator perturbs images so that the label is still known and the domain is not."""

    paper = "Zhou et al., AAAI 2020"

    strength: float = hyper(0.3, "how strongly an image is perturbed", symbol="lambda", low=0.0)
    alpha: float = hyper(0.5, "weight of perturbed images in the loss of L", symbol="alpha", low=0.0, high=1.0)
    domain_net: Literal["shared", "none"] = hyper("shared", "D over all clients, averaged; none: G only keeps the label")
    domains: int = hyper(8, "for how many clients D has room", symbol="K", low=2, high=1024)
    width: int = hyper(64, "channels of the generator; the paper has 32 for digits", symbol="released", low=1)
    warmup: int = hyper(3, "first rounds in which L learns from its own images alone", symbol="released", low=0)
    local: Local = group(
        Local(batch=16, optimizer="momentum", lr=5e-4, weight_decay=5e-4),
        meanings={"lr": "learning rate of L, G and D (digits: 0.05)"},
        without=["jigen"],
    )
    combining: Combining = group(Combining())

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        clients = len(around.training)
        if self.domain_net == "shared" and clients < 2:
            yield "a single client is one domain, and there is nothing to tell apart; use at least two clients, or domain_net = none"
        if self.domain_net == "shared" and clients > self.domains:
            yield f"{clients} clients and room for {self.domains} classes at D; set domains = {clients}"
        elif self.domain_net == "shared":
            try:
                around.shapes.network(self.domains)
            except BadInput:
                needs = (
                    f"D is another such network, with {self.domains} outputs, and this one has {around.shapes.outputs} whatever is asked"
                )
                yield f"{needs}; let its function take `outputs`, or set domain_net = none"

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        roles: dict[str, Callable[[], nn.Module]] = {"generator": partial(ImageGenerator, shapes.channels, self.width)}
        return roles | ({"domain": partial(shapes.network, self.domains)} if self.domain_net == "shared" else {})

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        generator = client.build("generator", down.generator)
        domain = client.build("domain", down.domain) if down.domain is not None else None
        for_g = self.local.optimizer_of(client, generator)
        for_d: Any = domain and self.local.optimizer_of(client, domain)
        names, alpha = down.names.split("\n"), self.alpha if down.round >= self.warmup else 0.0
        clients = len(names)

        @client.step
        def step(x: Tensor, y: Tensor, d: Tensor, *mixing: Tensor) -> None:
            with judging(net), judging(domain) if domain else nullcontext():  # 1: G
                own_step(for_g, self.generator_loss(net, domain, client.task, perturb(x, generator(x), self.strength), y, d, clients))
            with torch.no_grad():
                made = perturb(x, generator(x), self.strength) if alpha else x
            self.local.descend(net, optimizer, lambda: self.label_loss(net, client.task, x, made, y, mixing, alpha))  # 2: L
            if domain:
                own_step(for_d, domain_loss(domain, x, d, clients))  # 3: D, on clean images

        for x, y, *mixing in self.local.batches(client):
            step(x, y, torch.full((len(x),), names.index(client.id), device=x.device), *mixing)
        shared = state_of(domain) if domain else None
        return Up(model=state_of(net), generator=state_of(generator), domain=shared, **self.combining.upload(client, net))

    def generator_loss(self, net: TaskNet, domain: Any, task: Task, made: Tensor, y: Tensor, d: Tensor, clients: int) -> Tensor:
        """CE(L(x'), y) - CE(D(x'), d)."""
        label = task_loss(task, net(made), y, smoothing=self.local.smoothing)
        return label - domain_loss(domain, made, d, clients) if domain else label

    def label_loss(self, net: TaskNet, task: Task, x: Tensor, made: Tensor, y: Tensor, mixing: tuple[Tensor, ...], alpha: float) -> Tensor:
        """(1 - alpha) CE(L(x), y) + alpha CE(L(x'), y)."""
        if not alpha:
            return self.local.loss(task, net, x, y, mixing)
        clean, perturbed = (self.local.loss(task, net, images, y, mixing) for images in (x, made))
        return (1 - alpha) * clean + alpha * perturbed

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        return Server(Aggregate(fresh("task")), fresh("generator"), fresh("domain") if self.domain_net == "shared" else None)

    def round(self, state: Server, clients: Cohort) -> Server:
        names = "\n".join(clients.names)
        down = Down(model=state.task.model, generator=state.generator, domain=state.domain, names=names, round=state.task.round)
        task = self.combining.combine(clients, clients.ask(self.train, down), state.task, also=("generator", "domain"))
        return Server(task, task.also["generator"], task.also.get("domain"))


def domain_loss(domain: Any, x: Tensor, d: Tensor, clients: int) -> Tensor:
    """CE(D(x), d) over the classes that are clients."""
    logits = domain(x)
    return F.cross_entropy((logits.flatten(2).mean(2) if logits.ndim == 4 else logits)[:, :clients], d)
