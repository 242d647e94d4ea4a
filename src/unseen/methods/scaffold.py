"""SCAFFOLD. Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020.

A client's drift is its own mean gradient c_i less everybody's, c: every local step takes it off. Afterwards the client renews c_i from
how far it went (option II of Algorithm 1), keeps it, and tells the server by how much it changed; c stays the mean of all c_i.

Control variates cover parameters; buffers are averaged and nothing else. Weight decay is part of the gradient. Option II holds for plain
SGD alone: other optimisers are refused. All clients weigh alike, as printed; c is the mean over all clients of the run.
Departure: a client that joins late takes its first steps with c_i = c, so without a correction, where the paper has c_i = 0. The
server's mean holds 0 for it until then, so its first change is told from 0.
A client that is missing in a round keeps its c_i, and its part in c stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.ops.averaging import means
from unseen.ops.controls import add_correction, renewed_control
from unseen.parts.local import Local
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import only, state_of

__all__ = ["SCAFFOLD"]


class Steered(Payload):
    model: State = carries("model")  # x
    control: State = carries("control", part="parameters")  # c


class Drifted(Payload):
    model: State = carries("model", mean=True)  # y_i
    change: State = carries("control", part="parameters", mean=True)  # c_i+ - c_i


class Control(Memory):
    control: State  # c_i


@dataclass(frozen=True)
class Controls:
    """The server's state."""

    model: State  # x
    control: State  # c


@dataclass(frozen=True)
class SCAFFOLD(Method[Controls]):
    """Control variates take the clients' drift off every local step."""

    paper = "Karimireddy et al., ICML 2020"
    compiles = True

    server_lr: float = hyper(1.0, "learning rate of the server; 1: the mean of the clients' models", symbol="eta_g", low=0.0)
    local: Local = group(Local(optimizer="sgd", lr=0.1, batch=64), symbols={"steps": "K", "lr": "eta_l"})

    def contradictions(self) -> Iterable[str]:
        if self.local.optimizer != "sgd":
            yield f'optimizer is {str(self.local.optimizer)!r}, under which a client\'s way is no sum of gradients; set optimizer = "sgd"'
        if self.local.lr == 0:
            yield "lr is 0, and a client divides by it; give a larger one"
        if self.server_lr == 0:
            yield "server_lr is 0, so that no weight would ever change; give a larger one"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        for name in sorted(name for name, samples in around.training.items() if not samples):
            yield f"client {name!r} has no training image, so no gradient to tell of; leave it out"

    @on_client
    def train(self, down: Steered, client: Client) -> Drifted:
        net, optimizer = self.local.begin(client, down.model)
        kept, c = client.recall(Control), down.control
        own = {name: kept.control[name].to(value.device) if kept else value for name, value in c.items()}  # c_i
        correction = {name: value - own[name] for name, value in c.items()}
        steering = client.frozen("task", {**down.model, **correction})  # in a network, so that a recorded step finds it again

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:  # y_i <- y_i - eta_l (g(y_i) - c_i + c)
            loss = partial(self.local.loss, client.task, net, x, y, mixing)
            self.local.descend(net, optimizer, loss, partial(add_correction, net, steering))

        steps = 0
        for steps, batch in enumerate(self.local.batches(client), 1):  # noqa: B007
            step(*batch)
        reached = state_of(net)
        control = renewed_control(correction, down.model, reached, steps * self.local.rate(client))
        client.remember(Control(control=control))
        return Drifted(model=reached, change={name: new - own[name] if kept else new for name, new in control.items()})

    def start(self, fresh: Fresh, clients: Cohort) -> Controls:
        model = fresh("task")
        return Controls(model, {name: torch.zeros_like(w) for name, w in only(model, clients.entries("parameters")).items()})

    def round(self, state: Controls, clients: Cohort) -> Controls:
        """x <- x + eta_g mean_i (y_i - x); c <- c + |S| / N mean_i (c_i+ - c_i)."""
        ups = clients.ask(self.train, Steered(model=state.model, control=state.control))
        mean, change = means(((up.model, up.change), 1) for up in ups.values())
        part = ups.replied / len(clients.names)
        control = {name: c.to(change[name].device) + part * change[name] for name, c in state.control.items()}
        moved = {name: torch.lerp(state.model[name].to(mean[name].device), mean[name], self.server_lr) for name in control}
        return Controls({**mean, **moved}, control)
