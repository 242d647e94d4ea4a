"""CSAC. Yuan et al., "Collaborative semantic aggregation and calibration for federated domain generalization", TKDE 2023.

First each client trains a model alone, which then stays fixed with it. The server fuses models tensor by tensor, and what a client changed
most weighs most. Then in each round a client trains a copy of the fused model so that it keeps agreeing with the client's private one:
the layers of the two are compared across depths by MK-MMD, weighted by how much they attend to each other; so are their logits.

As in the released code the attention weights are numbers through which nothing learns, and the projections begin anew each round; here
with the same weights, which come with the question. Read so, where code and paper leave a choice:
- maps are brought to one shape by a mean over fields and a 1 x 1 convolution, and attention compares them without further projections;
- the released command never fills the list of the trained network's layers, so that its loss has the logits' term alone:
  `calibration = "logits"` is that, `"layers"` is the method as it is described;
- the bottleneck before the head is left out; momentum starts afresh every round;
- a client that was missing before round 1 trains alone in the first round that it takes part in; the server fuses whoever answered.
Two clients are always equally far from their mean: of two, the fused model is the plain mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Shapes, Surroundings, on_client
from unseen.networks.alignment import alignment_of, with_stage_maps
from unseen.networks.headed import stages_of
from unseen.ops.alignment import fuse_by_divergence, kernel_discrepancy, layer_attention
from unseen.parts.local import Local
from unseen.parts.mixstyle import mixed
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["CSAC"]

_LAYERS = 3  # the last stages: 2, 3 and 4 of a ResNet


class Down(Payload):
    model: State = carries("model")  # the fused one; before round 1 that from which every client begins
    alignment: State | None = carries("model", role="alignment")  # first weights of the projections, where layers are compared


class Trained(Payload):
    model: State = carries("model")


class Kept(Memory):
    private: State  # the model of before round 1, fixed for the whole run


@dataclass(frozen=True)
class Server:
    model: State
    alignment: State | None


@dataclass(frozen=True)
class CSAC(Method[Server]):
    """Models fused layer by layer, divergent ones weighing more, then calibrated to each client's own across layers."""

    paper = "Yuan et al., TKDE 2023"
    presets = {"paper": {"rounds": 40}, "released": {"rounds": 40, "calibration": "logits"}}

    strength: float = hyper(0.6, "weight of the calibration", symbol="lambda", low=0.0)
    calibration: Literal["layers", "logits"] = hyper(
        "layers", "what is compared: layers and logits, or logits alone, as the released command does"
    )
    private_steps: int = hyper(1800, "batches that a client trains alone before round 1", symbol="released", low=1)
    width: int = hyper(32, "channels that maps are brought to", symbol="released", low=1)
    side: int = hyper(7, "positions along a side that maps are brought to, at most", symbol="released", low=1)
    momentum: float = hyper(0.5, "momentum of SGD", symbol="released", low=0.0, high=1.0)
    local: Local = group(
        Local(steps=200, lr=0.01), without=["optimizer", "rsc", "jigen"], meanings={"sam": "sharpness-aware steps in the rounds"}
    )

    def contradictions(self) -> Iterable[str]:
        if self.local.batch < 2:
            yield f"batch is {self.local.batch}, and a discrepancy is of pairs of images; expected at least 2"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        found = len(stages_of(around.net))
        if self.calibration == "layers" and found < _LAYERS:
            yield f"{_LAYERS} stages are compared, and {type(around.net).__name__} names {found}; use another one, or calibration = logits"
        for name in sorted(name for name, samples in around.training.items() if samples == 1):
            yield f"client {name!r} has one training image, and a discrepancy is of pairs; leave it out"

    def needs_each(self) -> Iterable[str]:
        yield from super().needs_each()
        yield "the server weighs each client's model by its distance from the mean"

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        def alignment() -> nn.Module:
            net: Any = shapes.network(shapes.outputs)
            return alignment_of(net, shapes.channels, shapes.size, layers=_LAYERS, width=self.width, side=self.side)

        return {"alignment": alignment} if self.calibration == "layers" else {}

    @on_client
    def prepare(self, down: Down, client: Client) -> Trained:
        """Stage 0: each client alone."""
        private = self.alone(down.model, client)
        client.remember(Kept(private=private))
        return Trained(model=private)

    def alone(self, model: State, client: Client) -> State:
        net = client.build("task", model)
        optimizer = self.sgd(client, net)

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            loss = self.local.loss(client.task, net, x, y, mixing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        for batch in self.local.prepared(client, client.batches(size=self.local.batch, steps=self.private_steps)):
            step(*batch)
        return state_of(net)

    @on_client
    def train(self, down: Down, client: Client) -> Trained:
        if (kept := client.recall(Kept)) is None:
            client.remember(kept := Kept(private=self.alone(down.model, client)))
        net, private = client.build("task", down.model), client.frozen("task", kept.private)
        alignment = client.build("alignment", down.alignment) if down.alignment is not None else None
        optimizer = self.sgd(client, *([net] if alignment is None else [net, alignment]))

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                logits, apart = self.compared(net, private, alignment, x, mixing)
                return self.local.loss_of(client.task, logits, y) + self.strength * apart

            self.local.descend(net, optimizer, loss)

        for batch in self.local.batches(client):
            step(*batch)
        return Trained(model=state_of(net))

    def compared(self, net: Any, private: Any, alignment: Any, x: Tensor, mixing: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The logits, and sum_ij alpha_ij MKMMD(T_i, S_j) + MKMMD of the two networks' logits."""
        if alignment is None:
            logits = mixed(self.local.mixstyle, net, x, mixing)
            return logits, kernel_discrepancy(logits, private(x))
        logits, trained = with_stage_maps(net, _LAYERS, lambda: mixed(self.local.mixstyle, net, x, mixing))
        answers, fixed = with_stage_maps(private, _LAYERS, lambda: private(x))
        t, s = alignment(trained, fixed)
        alpha = layer_attention(t, s)
        apart = sum(alpha[i, j] * kernel_discrepancy(t[i], s[j]) for i in range(_LAYERS) for j in range(_LAYERS))
        return logits, apart + kernel_discrepancy(logits, answers)

    def sgd(self, client: Client, *nets: nn.Module) -> Any:
        own = {"lr": self.local.lr, "momentum": self.momentum, "weight_decay": self.local.weight_decay}
        return client.optimizer(torch.optim.SGD, nets, share=self.local.share(client), **own)

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        private = clients.ask(self.prepare, Down(model=fresh("task"), alignment=None)).all()
        alignment = fresh("alignment") if self.calibration == "layers" else None
        return Server(fuse_by_divergence({name: up.model for name, up in private.items()}), alignment)

    def round(self, state: Server, clients: Cohort) -> Server:
        ups = clients.ask(self.train, Down(model=state.model, alignment=state.alignment)).all()
        return Server(fuse_by_divergence({name: up.model for name, up in ups.items()}), state.alignment)
