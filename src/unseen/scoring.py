"""How good the global model is: asked of the clients about their validation parts, and of the unseen domains about themselves.

Where a method gives each client a model of its own, that one is scored too, at that client.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from unseen.client import Client
from unseen.method import Method, on_client
from unseen.payload import Payload, State, carries

__all__ = ["Model", "Scores", "Scoring"]

_NUMBERS_AT_ONCE = {"cpu": 2**24, "cuda": 2**26}  # enough to keep the device busy


class Model(Payload):
    model: State = carries("model")


class Scores(Payload):
    metrics: dict[str, float] = carries("score")
    samples: int = carries("count")
    own: dict[str, float] | None = carries("score")  # metrics of the client's own model; None where it has none


class Scoring:
    """The harness's own question, asked after every round. It trains nothing."""

    def __init__(self, method: Method[Any]) -> None:
        self._method = method

    @on_client
    def score(self, down: Model, client: Client) -> Scores:
        metrics, samples = _measured(down.model, client)
        own = self._own_model(down.model, client)
        return Scores(metrics=metrics, samples=samples, own=None if own is None else _measured(own, client)[0])

    def _own_model(self, model: State, client: Client) -> State | None:
        if not client.samples:  # an unseen domain, which no method gets to see
            return None
        own = self._method.local_model(dict(model), client)  # a copy: in one process all clients score the same dict
        if client.remembered:
            raise TypeError(f"{type(self._method).__name__}.local_model remembers something; scoring must leave no trace")
        return own


def _measured(model: State, client: Client) -> tuple[dict[str, float], int]:
    """The metrics of a model on the client's validation part, and of how many samples they are."""
    net = client.build("task", model).eval()
    meter = client.task.meter()
    samples, spacing, size = 0, client.validation_spacing, client.batch_of(_NUMBERS_AT_ONCE[client.device.type])
    with torch.no_grad(), client.autocast():
        for x, y in client.validation(size):
            meter.update(client.predict(net, x, size), y, None if spacing is None else spacing[samples : samples + len(x)])
            samples += len(x)
    metrics = meter.compute() if samples else {}
    return {name: v for name, v in metrics.items() if math.isfinite(v)}, samples
