"""FedADG. Zhang et al., "Federated learning with domain generalization", 2021.

Each client aligns its features, class by class, to a reference distribution that all clients generate together. F and C are
the task network (backbone and head), G the generator; they are averaged with weight 1/K. The discriminator D stays at home.
With another `aggregation` F and C are averaged by that, and G with the same weights.

As printed, G raises D(h') (Eq. 4) and so does D (Eq. 2): they pull the same way. `generator_loss = "adversarial"` opposes them.
The paper does not say: rounds (30), the amount of smoothing (0.1), the dimensions of the noise (the features', at most 2048) and
after the projection (a quarter), where the label joins D (after it), a schedule (none), whether an epoch is a pass over the data
(its text) or one mini-batch (its Algorithm 1), the mode of F while D trains, what the E_1 epochs do without G and D (they minimise
lambda_1 L_err), how G and D end (a ReLU, a sigmoid: as released) and begin. Each client draws its own D when it first aligns.
The released code is the preset `released` (PACS) or `released-vlcs`, where G was cut off from its own loss (lr_g = 0). Not offered of
it: the rescaled input, the first weights of D, the selection by the local models' accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unseen.client import Batch, Client
from unseen.method import Cohort, Fresh, Method, Shapes, Surroundings, on_client
from unseen.networks.adversarial import Discriminator, DistributionGenerator
from unseen.ops import adversarial as ops
from unseen.ops.averaging import mean
from unseen.ops.descent import give_momentum, momentum_of, own_step
from unseen.parts import part_obstacles
from unseen.parts.aggregation import Aggregate, Aggregation, Uniform
from unseen.payload import Memory, Payload, State
from unseen.settings import hyper
from unseen.state import state_of

__all__ = ["FedADG"]

_PAPER = {"rounds": 30, "augment": "jigen", "validation": 0.3}
_RELEASED = {
    "lambda0": 0.15, "lambda1": 0.85, "order": "d-fc-g", "smoothing_over": "wrong", "noise": 2048, "projection": "trainable",
    "discriminator_width": 1024, "leak": 0.01, "extract": "evaluation", "momentum": 0.9, "weight_decay": 1e-5, "keep_momentum": True,
    "augment": "fedadg-released", "network": "alexnet:hidden=4096",
}  # fmt: skip
_RELEASED_PACS = {
    "lr_f": 0.01, "lr_g": 0.007, "lr_d": 0.007, "discriminator_loss": "lsgan", "generator_loss": "adversarial", "batch": 10,
    "smoothing": 0.01, "one_hot": 0.7, "warm_up": 100, "rounds": 30, "validation": 0.1,
}  # fmt: skip
_RELEASED_VLCS = {
    "lr_g": 0.0, "classification_epochs": 5, "alignment_epochs": 10, "smoothing": 0.2, "one_hot": 0.6, "label_joins": "before",
    "warm_up": 500, "rounds": 20, "validation": 0.3,
}  # fmt: skip


class Down(Payload):
    model: State  # F and C
    generator: State | None  # G, where there is one


class Up(Payload):
    model: State
    generator: State | None
    samples: int | None  # leaves only where the average is weighted by it
    perturbed: State | None  # leaves only where the aggregation is sha


class Kept(Memory):
    """What never leaves a client: D, and its optimiser's momentum where that outlives the round."""

    discriminator: State
    momentum: State


@dataclass(frozen=True)
class Server:
    task: Aggregate  # F and C
    generator: State | None


@dataclass(frozen=True)
class FedADG(Method[Server]):
    """Every client's features aligned, class by class, to one reference distribution that all clients generate together."""

    title = "FedADG"
    paper = "Zhang et al., 2021"
    tasks = ("classification",)
    presets = {
        "paper": _PAPER,  # the defaults are Table 3's for PACS
        "paper-vlcs": {**_PAPER, "lr_f": 0.01, "lr_g": 0.007, "lr_d": 0.007},
        "paper-office-home": {**_PAPER, "lr_f": 0.05, "lr_g": 0.007, "lr_d": 0.001},
        "released": {**_RELEASED, **_RELEASED_PACS},
        "released-vlcs": {**_RELEASED, **_RELEASED_VLCS},
    }

    lambda0: float = hyper(0.85, "weight of the adversarial loss of F", symbol="lambda_0", low=0.0)
    lambda1: float = hyper(0.15, "weight of the classification loss while aligning", symbol="lambda_1", low=0.0)
    lr_f: float = hyper(0.001, "learning rate of F and C; VLCS 0.01, Office-Home 0.05", symbol="lr_f", low=0.0)
    lr_g: float = hyper(0.0007, "learning rate of G; VLCS and Office-Home 0.007", symbol="lr_g", low=0.0)
    lr_d: float = hyper(0.0007, "learning rate of D; VLCS 0.007, Office-Home 0.001", symbol="lr_d", low=0.0)
    classification_epochs: int = hyper(3, "epochs of classification alone", symbol="E_0", low=0)
    alignment_epochs: int = hyper(7, "epochs of alignment", symbol="E_1", low=0)
    epoch: Literal["pass", "batch"] = hyper("pass", "an epoch is a pass over the data (text) or one mini-batch", symbol="Algorithm 1")
    batch: int = hyper(16, "samples in a batch", symbol="|S_x|", low=1)
    order: Literal["fc-d-g", "d-fc-g"] = hyper("fc-d-g", "who is updated first, second, third on a batch", symbol="c5, c7, c8")
    discriminator_loss: ops.DiscriminatorLoss = hyper("paper", "lsgan: (1 - D(h'))^2 + D(h)^2 instead", symbol="L_adv_d, Eq. 2")
    generator_loss: ops.GeneratorLoss = hyper("paper", "adversarial: D(h')^2 instead, against D", symbol="L_adv_g, Eq. 4")
    smoothing: float = hyper(0.1, "label smoothing in L_err, used in the paper without its amount", low=0.0, high=1.0)
    smoothing_over: ops.Smoothing = hyper("all", "what is taken off the label goes to all M classes, or to the M - 1 wrong ones")
    one_hot: float = hyper(1.0, "value that marks the class for G and D", symbol="y", low=0.0)
    class_wise: bool = hyper(True, "G and D read the label; false: w/o one-hot", symbol="y")
    adversary: bool = hyper(True, "false: w/o G&D", symbol="G, D")
    reference: ops.Reference = hyper("generated", "source of h': G, N(0, I), U[-1, 1] or Laplace(1/sqrt 2)", symbol="p(h')")
    noise: int | None = hyper(None, "dimension of z; none: the features', at most 2048", low=1)
    nonnegative: bool = hyper(True, "G ends in a ReLU; turn it off for features of both signs (a ViT's)")
    projection: Literal["fixed", "trainable", "none"] = hyper("fixed", "random projection in front of D; none: w/o RP", symbol="R")
    projected: int | None = hyper(None, "dimension after the projection; none: a quarter of the features'", symbol="d_2", low=1)
    label_joins: Literal["after", "before"] = hyper("after", "the label joins D after or before the projection")
    discriminator_width: int | None = hyper(None, "first layer of D; none: the features' dimension, as printed", low=1)
    leak: float = hyper(0.0, "slope below zero of the units inside G and D; 0: ReLU, as printed", low=0.0, high=1.0)
    extract: Literal["training", "evaluation"] = hyper("training", "mode of F while D trains; in evaluation dropout is off")
    momentum: float = hyper(0.0, "momentum of SGD", low=0.0, high=1.0)
    weight_decay: float = hyper(0.0, "weight decay of SGD", low=0.0)
    keep_momentum: bool = hyper(False, "the momentum of D outlives the round")
    warm_up: int = hyper(0, "epochs of a warm-up that starts anew each round, counted as released; 0: none", low=0)
    aggregation: Aggregation = hyper(Uniform(), "how the server averages: uniform is the plain mean", symbol="1 / K, Step s3")

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net = client.build("task", down.model)
        optimizer = self._sgd(client, net, self.lr_f)

        @client.step
        def classify(x: Tensor, y: Tensor) -> None:
            own_step(optimizer, self._error(net(x), y))

        for epoch in range(self.classification_epochs):
            self._warm_up(optimizer, self.lr_f, epoch - 1)
            for x, y in self._epoch(client):  # Step c2
                classify(x, y)  # Step c3
        generator = self._align(net, optimizer, down.generator, client) if self.alignment_epochs else down.generator
        return Up(model=state_of(net), generator=generator, **self.aggregation.upload(client, net))  # Step c9

    def _align(self, net: Any, optimizer_f: Any, shared: State | None, client: Client) -> State | None:
        """The E_1 epochs. G is given back, D remembered. Each update is a step of its own: a bf16 step keeps copies of weights."""
        generator, critic, optimizer_g, optimizer_d = self._adversaries(net, shared, client)

        @client.step
        def update_fc(x: Tensor, y: Tensor, _z: Tensor) -> None:  # Step c5
            out = net(x, full=True)
            loss = self.lambda1 * self._error(out.logits, y)
            if critic:
                loss = loss + self.lambda0 * ops.feature_loss(critic(out.features, self._label(y, client)))
            own_step(optimizer_f, loss)

        @client.step
        def update_d(x: Tensor, y: Tensor, z: Tensor) -> None:  # Step c7
            label = self._label(y, client)
            with torch.no_grad():
                h = net.train(self.extract == "training")(x, full=True).features
                h_ref = generator(z, label) if generator else z
            net.train()
            own_step(optimizer_d, ops.discriminator_loss(critic(h, label), critic(h_ref, label), self.discriminator_loss))

        @client.step
        def update_g(_x: Tensor, y: Tensor, z: Tensor) -> None:  # Step c8
            label = self._label(y, client)
            own_step(optimizer_g, ops.generator_loss(critic(generator(z, label), label), self.generator_loss))

        steps = {"fc": update_fc, **({"d": update_d} if critic else {}), **({"g": update_g} if generator else {})}
        width = self._noise(net.feature_size) if generator else net.feature_size if critic else 0
        for epoch in range(self.alignment_epochs):
            released_count = self.classification_epochs + (epoch or -1)  # the released code counts E_0 - 1, E_0 + 1, E_0 + 2, ...
            self._warm_up(optimizer_f, self.lr_f, released_count)
            self._warm_up(optimizer_d, self.lr_d, epoch)
            self._warm_up(optimizer_g, self.lr_g, epoch)
            for x, y in self._epoch(client):  # Step c4
                z = ops.draw_reference(self.reference, len(x), width, client.rng).to(client.device)  # Step c6: one S_z for D and G
                for name in self.order.split("-"):
                    if name in steps:
                        steps[name](x, y, z)
        if critic:
            client.remember(Kept(discriminator=state_of(critic), momentum=momentum_of(optimizer_d, critic) if self.keep_momentum else {}))
        return state_of(generator) if generator else None

    def _adversaries(self, net: Any, shared: State | None, client: Client) -> tuple[Any, Any, Any, Any]:
        """G and D with their optimisers, each None where the method goes without."""
        if not self.adversary:
            return None, None, None, None
        generator = client.build("generator", shared) if shared is not None else None
        kept = client.recall(Kept)
        state = kept.discriminator if kept else state_of(self._discriminator(net.feature_size, client.task.outputs))
        critic = client.build("discriminator", state)
        optimizer_d = self._sgd(client, critic, self.lr_d)
        give_momentum(optimizer_d, critic, kept.momentum if kept else {})
        return generator, critic, self._sgd(client, generator, self.lr_g) if generator else None, optimizer_d

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        return Server(Aggregate(fresh("task")), fresh("generator") if self._generates else None)  # Step s1

    def round(self, state: Server, clients: Cohort) -> Server:
        ups = clients.ask(self.train, Down(model=state.task.model, generator=state.generator))  # Step s2
        generators: dict[str, State] = {}

        def arriving() -> Iterator[tuple[str, Up]]:  # F and C stream through; G alone waits for the weights
            for client, up in ups.items():
                if up.generator is not None:
                    generators[client] = up.generator
                yield client, up

        task = self.aggregation.combine(clients, arriving(), state.task)  # Step s3: 1/K of those who answered
        return Server(task, mean((g, task.weights[client]) for client, g in generators.items()) if generators else None)

    def model(self, state: Server) -> State:
        return state.task.model

    def notes(self, state: Server) -> Mapping[str, Any]:
        return self.aggregation.notes(state.task)

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        features, classes = shapes.features, shapes.outputs if self.class_wise else 0
        generator = partial(DistributionGenerator, self._noise(features), classes, features, nonnegative=self.nonnegative, leak=self.leak)
        return {"generator": generator, "discriminator": partial(self._discriminator, features, shapes.outputs)} if self.adversary else {}

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from part_obstacles(self, around)
        features, classes = around.shapes.features, around.shapes.outputs
        if classes < 2:
            yield f"the data set has {classes} class; label smoothing and class-wise alignment need at least 2"
        if self.adversary and self.projection != "none" and self._projected(features) >= features:
            yield f"the projection leads from {features} features to {self._projected(features)}, which must be fewer; lower `projected`"

    def contradictions(self) -> Iterable[str]:
        if not self.classification_epochs + self.alignment_epochs:
            yield "classification_epochs and alignment_epochs are both 0; nothing would be trained"
        if self.keep_momentum and not self.momentum:
            yield "keep_momentum is on, but momentum is 0; turn it off, or give a momentum"
        if self.projection == "none" and self.projected is not None:
            yield f"projected is {self.projected}, but projection is none; leave one of them out"
        if not self.adversary and self.reference != "generated":
            yield f"reference is {self.reference!r}, but adversary is false, so nothing is aligned to it; leave one of them out"

    @property
    def _generates(self) -> bool:
        return self.adversary and self.reference == "generated"

    def _noise(self, features: int) -> int:
        return self.noise or min(features, 2048)

    def _projected(self, features: int) -> int:
        return self.projected or max(1, features // 4)

    def _discriminator(self, features: int, classes: int) -> Discriminator:
        labels, projected = classes if self.class_wise else 0, None if self.projection == "none" else self._projected(features)
        kind: Literal["fixed", "trainable"] = "trainable" if self.projection == "trainable" else "fixed"
        return Discriminator(features, labels, projected, self.discriminator_width, projection=kind, label=self.label_joins, leak=self.leak)

    def _error(self, logits: Tensor, y: Tensor) -> Tensor:
        return ops.smoothed_cross_entropy(logits, y, self.smoothing, self.smoothing_over)  # L_err

    def _label(self, y: Tensor, client: Client) -> Tensor:
        return ops.one_hot(y, client.task.outputs, self.one_hot)

    def _epoch(self, client: Client) -> Iterator[Batch]:
        return client.batches(size=self.batch, epochs=1) if self.epoch == "pass" else client.batches(size=self.batch, steps=1)

    def _sgd(self, client: Client, net: nn.Module, lr: float) -> Any:
        return client.optimizer(torch.optim.SGD, net, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def _warm_up(self, optimizer: Any, lr: float, epochs: int) -> None:
        """The learning rate after that many epochs, of which the released code counts at least one."""
        for group in optimizer.param_groups if optimizer else ():
            group["lr"] = ops.warmed_up(lr, max(1, epochs), self.warm_up)
