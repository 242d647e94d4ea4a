"""Episodic training's step: a shared network meets a partner that was trained on another domain (Epi-FCR)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unseen.client import Client
from unseen.ops.descent import judging, own_step
from unseen.parts.local import Local
from unseen.parts.views import task_loss

__all__ = ["Partner", "Weights", "episode_step"]


class Weights(NamedTuple):
    """Of the losses beside the shared network's own."""

    epi_f: float
    epi_c: float
    epi_r: float


class Partner(NamedTuple):
    """C_j, and F_j where there is one. A partner that learns here too is fixed for the step."""

    head: Any = None
    model: Any = None
    learns: bool = False


def episode_step(
    client: Client, local: Local, weights: Weights, net: Any, optimizer: Any, own: Any, for_own: Any, random: Any, partner: Partner
) -> Callable[..., None]:
    """A step of the shared network with one partner, and a step of the own network on the same images."""
    head, model, learns = partner

    @client.step
    def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
        def judged(logits: Tensor) -> Tensor:
            return task_loss(client.task, logits, y, smoothing=local.smoothing)

        def loss() -> Tensor:
            seen = local.look(net, x, mixing)
            value = local.loss_of(client.task, seen.logits, y)
            with judging(model) if learns else nullcontext():
                if head is not None and weights.epi_f:
                    value = value + weights.epi_f * judged(head(seen.features))  # Epi-F
                if model is not None and weights.epi_c:
                    with torch.no_grad():
                        features = model(x, full=True).features
                    value = value + weights.epi_c * judged(net.head()(features))  # Epi-C
            if random is not None and weights.epi_r:
                value = value + weights.epi_r * judged(random(seen.features))  # Epi-R
            return value

        local.descend(net, optimizer, loss)
        if own:
            own_step(for_own, judged(own(x[: len(y)])))

    return step
