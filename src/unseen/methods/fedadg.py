"""FedADG. Zhang et al., "Federated learning with domain generalization", 2021.

Each client aligns its features, class by class, to a reference distribution that all clients generate together. F and C are the task
network (backbone and head), G the generator; they are averaged with weight 1/K, or as another `aggregation` weighs. The discriminator D
stays at home (Algorithm 1), or is averaged too (`discriminators`; Sec. 7: clients "submit the updates of ALN", and D is a part of ALN).

As printed, G raises D(h') (Eq. 4) and so does D (Eq. 2): they pull the same way. `generator_loss = "adversarial"` opposes them.
The paper does not say: rounds (30), the amount of smoothing (0.1), the dimensions of the noise (the features', at most 2048) and after
the projection (a quarter), where the label joins D (after it), whether an epoch is a pass (its text) or one mini-batch (Algorithm 1),
the mode of F while D trains, what the E_1 epochs do without G and D (they minimise lambda_1 L_err), how G and D end (a ReLU, a sigmoid:
as released) and begin: each client draws its D when it first aligns. The released code is the preset `released` (PACS) or
`released-vlcs` (G cut off from its loss: lr_g = 0), but for its rescaled input, its first D and its selection by local accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from unseen.client import Batch, Client
from unseen.method import Cohort, Fresh, Method, on_client
from unseen.ops import adversarial as ops
from unseen.ops.descent import own_step
from unseen.optimizers import moments_of, restore_moments
from unseen.parts.adversaries import Adversaries, WarmedSGD
from unseen.parts.aggregation import Aggregate, Told, Uniform
from unseen.parts.combining import Combining
from unseen.parts.views import Views, repeat_labels, views_of
from unseen.payload import Memory, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of
from unseen.task import Task

__all__ = ["FedADG"]

_PAPER = {"rounds": 30, "augment": "jigen", "validation": 0.3}
_RELEASED = {
    "lambda0": 0.15, "lambda1": 0.85, "order": "d-fc-g", "smoothing_over": "wrong", "noise": 2048, "projection": "trainable",
    "discriminator_width": 1024, "leak": 0.01, "extract": "evaluation", "momentum": 0.9, "weight_decay": 1e-5, "keep_momentum": True,
    "augment": "fedadg-released", "network": "alexnet:hidden=4096",
}  # fmt: skip


class Down(Payload):
    model: State = carries("model")  # F and C
    generator: State | None = carries("model", role="generator")  # G, where there is one
    discriminator: State | None = carries("model", role="discriminator")  # D, where all clients share one


class Up(Told):
    model: State = carries("model", mean=True)
    generator: State | None = carries("model", role="generator", mean=True)
    discriminator: State | None = carries("model", role="discriminator", mean=True)


class Kept(Memory):
    discriminator: State  # D, unless it is shared
    momentum: State  # of its optimiser, where that outlives the round


@dataclass(frozen=True)
class Server:
    task: Aggregate  # F and C
    generator: State | None
    discriminator: State | None = None


@dataclass(frozen=True)
class FedADG(Method[Server]):
    """Every client's features aligned, class by class, to one reference distribution that all clients generate together."""

    tasks = ("classification",)
    paper = "Zhang et al., 2021"
    presets = {
        "paper": _PAPER,  # the defaults are Table 3's for PACS
        "paper-vlcs": {**_PAPER, "lr_f": 0.01, "lr_g": 0.007, "lr_d": 0.007},
        "paper-office-home": {**_PAPER, "lr_f": 0.05, "lr_g": 0.007, "lr_d": 0.001},
        "released": {
            **_RELEASED, "lr_f": 0.01, "lr_g": 0.007, "lr_d": 0.007, "discriminator_loss": "lsgan", "generator_loss": "adversarial",
            "batch": 10, "smoothing": 0.01, "one_hot": 0.7, "warm_up": 100, "rounds": 30, "validation": 0.1,
        },
        "released-vlcs": {
            **_RELEASED, "lr_g": 0.0, "classification_epochs": 5, "alignment_epochs": 10, "smoothing": 0.2, "one_hot": 0.6,
            "label_joins": "before", "warm_up": 500, "rounds": 20, "validation": 0.3,
        },
    }  # fmt: skip

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
    views: Views | None = hyper(None, "restyled copies that train along with each batch, and their consistency loss")
    adversaries: Adversaries = group(Adversaries())
    extract: Literal["training", "evaluation"] = hyper("training", "mode of F while D trains; in evaluation dropout is off")
    sgd: WarmedSGD = group(WarmedSGD())
    combining: Combining = group(Combining(Uniform()), symbols={"aggregation": "1 / K, Step s3"})

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        """Algorithm 1. Each update is a step of its own: a bf16 step keeps copies of weights."""
        net = client.build("task", down.model)  # F and C
        for_fc = self.sgd.over(client, net, self.lr_f)

        @client.step
        def classify(x: Tensor, y: Tensor) -> None:  # Step c3
            own_step(for_fc, self.error(client.task, net(x), y))

        for epoch in range(self.classification_epochs):
            self.sgd.set_rate(client, for_fc, self.lr_f, epoch - 1)
            for x, y in self.epoch_of(client):  # Step c2
                classify(x, y)
        generator, discriminator = self.opponents(net, down, client)  # G and D, None where the method goes without
        for_g, for_d = self.sgd.over(client, generator, self.lr_g), self.sgd.over(client, discriminator, self.lr_d)
        if (kept := client.recall(Kept)) and kept.momentum:
            restore_moments(for_d, kept.momentum)

        def label(y: Tensor, rows: int) -> Tensor:
            return self.adversaries.label(repeat_labels(y, rows), client.task.outputs)

        @client.step
        def update_fc(x: Tensor, y: Tensor, _z: Tensor) -> None:  # Step c5
            out = net(x, full=True)
            loss = self.lambda1 * self.error(client.task, out.logits, y)
            if discriminator:
                loss = loss + self.lambda0 * ops.feature_loss(discriminator(out.features, label(y, len(x))))
            own_step(for_fc, loss)

        @client.step
        def update_d(x: Tensor, y: Tensor, z: Tensor) -> None:  # Step c7
            of_y = label(y, len(x))
            with torch.no_grad():
                h = net.train(self.extract == "training")(x, full=True).features
                h_ref = generator(z, of_y) if generator else z
            net.train()
            own_step(for_d, ops.discriminator_loss(discriminator(h, of_y), discriminator(h_ref, of_y), self.discriminator_loss))

        @client.step
        def update_g(_x: Tensor, y: Tensor, z: Tensor) -> None:  # Step c8
            of_y = label(y, len(z))
            own_step(for_g, ops.generator_loss(discriminator(generator(z, of_y), of_y), self.generator_loss))

        steps = {"fc": update_fc, "d": discriminator and update_d, "g": generator and update_g}
        updates = [steps[name] for name in self.order.split("-") if steps[name]]
        for epoch in range(self.alignment_epochs):
            released_count = self.classification_epochs + (epoch or -1)  # E_0 - 1, E_0 + 1, E_0 + 2, ...
            for of, lr, count in ((for_fc, self.lr_f, released_count), (for_d, self.lr_d, epoch), (for_g, self.lr_g, epoch)):
                self.sgd.set_rate(client, of, lr, count)
            for x, y in self.epoch_of(client):  # Step c4
                z = self.adversaries.draw(len(x), net.feature_size, client)  # Step c6: one S_z for D and G
                for update in updates:
                    update(x, y, z)
        g, d = (opponent and state_of(opponent) for opponent in (generator, discriminator))
        momentum, shared = moments_of(for_d) if self.sgd.keep_momentum and d else {}, down.discriminator is not None
        if d and (momentum or not shared):
            client.remember(Kept(discriminator={} if shared else d, momentum=momentum))
        g, d = g or down.generator, (d or down.discriminator) if shared else None
        return Up(model=state_of(net), generator=g, discriminator=d, **self.combining.upload(client, net))  # Step c9

    def opponents(self, net: Any, down: Down, client: Client) -> tuple[Any, Any]:
        if not (self.adversaries.adversary and self.alignment_epochs):
            return None, None
        d = down.discriminator or ((kept := client.recall(Kept)) and kept.discriminator)
        d = d or state_of(self.adversaries.discriminator(net.feature_size, client.task.outputs))
        return client.build("generator", down.generator) if down.generator is not None else None, client.build("discriminator", d)

    def error(self, task: Task, logits: Tensor, y: Tensor) -> Tensor:  # L_err
        loss = ops.smoothed_cross_entropy(logits, repeat_labels(y, len(logits)), self.smoothing, self.smoothing_over)
        return loss + self.views.bond(task, logits, len(y)) if self.views else loss

    def epoch_of(self, client: Client) -> Iterator[Batch]:
        batches = client.batches(size=self.batch, epochs=1) if self.epoch == "pass" else client.batches(size=self.batch, steps=1)
        return ((views_of(self.views, x, client.rng), y) for x, y in batches)

    def start(self, fresh: Fresh, clients: Cohort) -> Server:
        shared = fresh("discriminator") if self.adversaries.discriminators == "shared" else None
        return Server(Aggregate(fresh("task")), fresh("generator") if self.adversaries.generates else None, shared)  # Step s1

    def round(self, state: Server, clients: Cohort) -> Server:
        ups = clients.ask(self.train, Down(model=state.task.model, generator=state.generator, discriminator=state.discriminator))  # s2
        task = self.combining.combine(clients, ups, state.task, also=("generator", "discriminator"))  # Step s3: 1/K of those who answered
        return Server(task, task.also.get("generator"), task.also.get("discriminator"))

    def contradictions(self) -> Iterable[str]:
        if not self.classification_epochs + self.alignment_epochs:
            yield "classification_epochs and alignment_epochs are both 0; nothing would be trained"
