"""How good the global model is: asked of the clients about their validation parts, and of the unseen domains about themselves.

Where a method gives each client a model of its own, that one is scored too, at that client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unseen.client import Client
from unseen.method import Method, on_client
from unseen.payload import Payload, State, carries
from unseen.task import Meter

__all__ = ["Model", "Passes", "Scores", "Scoring", "scoring_batch"]

_NUMBERS_AT_ONCE = {"cpu": 2**24, "cuda": 2**26}  # enough to keep the device busy


class Model(Payload):
    model: State = carries("model")


class Scores(Payload):
    metrics: dict[str, float] = carries("score")
    samples: int = carries("count")
    own: dict[str, float] | None = carries("score")  # metrics of the client's own model; None where it has none


@dataclass(frozen=True)
class Passes:
    """A model's passes over a client's validation part, made or still on their way through a GPU. How good they were is left to say."""

    meter: Meter
    samples: int

    def metrics(self) -> dict[str, float]:
        told = self.meter.compute() if self.samples else {}
        return {name: value for name, value in told.items() if math.isfinite(value)}


class Scoring:
    """The harness's own question, asked after every round. It trains nothing. `made`: the passes by client, where they were made before."""

    def __init__(self, method: Method[Any], made: Mapping[str, Passes] | None = None) -> None:
        self._method, self._made = method, made or {}

    @on_client
    def score(self, down: Model, client: Client) -> Scores:
        passes = self._made.get(client.id) or _passes(down.model, client)
        own = self._own_model(down.model, client)
        return Scores(metrics=passes.metrics(), samples=passes.samples, own=None if own is None else _passes(own, client).metrics())

    def _own_model(self, model: State, client: Client) -> State | None:
        if not client.samples:  # an unseen domain, which no method gets to see
            return None
        own = self._method.local_model(dict(model), client)  # a copy: in one process all clients score the same dict
        if client.remembered:
            raise TypeError(f"{type(self._method).__name__}.local_model remembers something; scoring must leave no trace")
        return own


def scoring_batch(client: Client) -> int:
    """Images of one pass."""
    return client.batch_of(_NUMBERS_AT_ONCE[client.device.type])


def _passes(model: State, client: Client) -> Passes:
    """The model's passes over the client's validation part."""
    net = client.build("task", model).eval()
    meter = client.task.meter()
    samples, spacing, size = 0, client.validation_spacing, scoring_batch(client)
    with torch.no_grad(), client.autocast():
        for x, y in client.validation(size):
            meter.update(client.predict(net, x, size), y, None if spacing is None else spacing[samples : samples + len(x)])
            samples += len(x)
    return Passes(meter, samples)
