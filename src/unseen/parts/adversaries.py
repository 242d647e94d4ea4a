"""FedADG's generator G and discriminator D: what they read, how they are built, what is drawn for them, and the SGD of its networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unseen.client import Client
from unseen.device.graphs import set_rate
from unseen.method import Shapes, Surroundings
from unseen.networks.adversarial import Discriminator, DistributionGenerator
from unseen.ops import adversarial as ops
from unseen.parts.schedules import Schedule, share_in
from unseen.settings import Configured, hyper

__all__ = ["Adversaries", "WarmedSGD"]


@dataclass(frozen=True)
class Adversaries(Configured):
    """The fields about G and D."""

    adversary: bool = hyper(True, "false: w/o G&D", symbol="G, D")
    reference: ops.Reference = hyper("generated", "source of h': G, N(0, I), U[-1, 1] or Laplace(1/sqrt 2)", symbol="p(h')")
    class_wise: bool = hyper(True, "G and D read the label; false: w/o one-hot", symbol="y")
    one_hot: float = hyper(1.0, "value that marks the class for G and D", symbol="y", low=0.0)
    noise: int | None = hyper(None, "dimension of z; none: the features', at most 2048", low=1)
    nonnegative: bool = hyper(True, "G ends in a ReLU; turn it off for features of both signs (a ViT's)")
    projection: Literal["fixed", "trainable", "none"] = hyper("fixed", "random projection in front of D; none: w/o RP", symbol="R")
    projected: int | None = hyper(None, "dimension after the projection; none: a quarter of the features'", symbol="d_2", low=1)
    label_joins: Literal["after", "before"] = hyper("after", "the label joins D after or before the projection")
    discriminator_width: int | None = hyper(None, "first layer of D; none: the features' dimension, as printed", low=1)
    discriminators: Literal["local", "shared"] = hyper("local", "each client's own D, or one that is averaged like G", symbol="ALN, Sec. 7")
    leak: float = hyper(0.0, "slope below zero of the units inside G and D; 0: ReLU, as printed", low=0.0, high=1.0)

    def contradictions(self) -> Iterable[str]:
        if self.projection == "none" and self.projected is not None:
            yield f"projected is {self.projected}, but projection is none; leave one of them out"
        if not self.adversary and self.reference != "generated":
            yield f"reference is {self.reference!r}, but adversary is false, so nothing is aligned to it; leave one of them out"
        if not self.adversary and self.discriminators == "shared":
            yield "discriminators is 'shared', but adversary is false, so there is none to share; leave one of them out"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        features, classes = around.shapes.features, around.shapes.outputs
        if classes < 2:
            yield f"the data set has {classes} class; label smoothing and class-wise alignment need at least 2"
        projected = self._projected(features)
        if self.adversary and projected is not None and projected >= features:
            yield f"the projection leads from {features} features to {projected}, which must be fewer; lower `projected`"

    @property
    def generates(self) -> bool:
        return self.adversary and self.reference == "generated"

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        """G and D by role."""
        made = {"generator": self.generator, "discriminator": self.discriminator} if self.adversary else {}
        return {role: partial(make, shapes.features, shapes.outputs) for role, make in made.items()}

    def generator(self, features: int, classes: int) -> DistributionGenerator:
        labels = classes if self.class_wise else 0
        return DistributionGenerator(self._noise(features), labels, features, nonnegative=self.nonnegative, leak=self.leak)

    def discriminator(self, features: int, classes: int) -> Discriminator:
        labels, width = classes if self.class_wise else 0, self.discriminator_width
        kind: Literal["fixed", "trainable"] = "trainable" if self.projection == "trainable" else "fixed"
        return Discriminator(features, labels, self._projected(features), width, projection=kind, label=self.label_joins, leak=self.leak)

    def draw(self, rows: int, features: int, client: Client) -> Tensor:
        """z for G, or h' itself; nothing where there is no D to read it."""
        size = self._noise(features) if self.reference == "generated" else features
        return ops.draw_reference(self.reference, rows, size if self.adversary else 0, client.rng).to(client.device, non_blocking=True)

    def label(self, y: Tensor, classes: int) -> Tensor:
        """y as G and D read it."""
        return ops.one_hot(y, classes, self.one_hot)

    def _noise(self, features: int) -> int:
        return self.noise or min(features, 2048)

    def _projected(self, features: int) -> int | None:
        return None if self.projection == "none" else self.projected or max(1, features // 4)


@dataclass(frozen=True)
class WarmedSGD(Configured):
    """The paper's SGD, plain by default, and what the released code adds to it."""

    momentum: float = hyper(0.0, "momentum of SGD", low=0.0, high=1.0)
    weight_decay: float = hyper(0.0, "weight decay of SGD", low=0.0)
    keep_momentum: bool = hyper(False, "the momentum of D outlives the round")
    warm_up: int = hyper(0, "epochs of a warm-up that starts anew each round, counted as released; 0: none", low=0)
    schedule: Schedule | None = hyper(None, "how the three learning rates change over the rounds")

    def contradictions(self) -> Iterable[str]:
        if self.keep_momentum and not self.momentum:
            yield "keep_momentum is on, but momentum is 0; turn it off, or give a momentum"

    def over(self, client: Client, net: nn.Module | None, lr: float) -> Any:
        """A fresh optimiser over this network, where there is one."""
        own = {"lr": lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return net and client.optimizer(torch.optim.SGD, net, share=share_in(self.schedule, client), **own)

    def set_rate(self, client: Client, optimizer: Any, lr: float, epochs: int) -> None:
        share = share_in(self.schedule, client)
        for weights in optimizer.param_groups if optimizer else ():
            rate = lr if share is None else lr * share
            set_rate(weights, ops.warmed_up(rate, max(1, epochs), self.warm_up))  # the released code counts at least one
