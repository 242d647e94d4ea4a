"""How good the global model is: asked of the clients about their validation parts, and of the unseen domains about themselves."""

from __future__ import annotations

import math

import torch

from unseen.client import Client
from unseen.method import on_client
from unseen.payload import Payload, State, carries

__all__ = ["Model", "Scores", "Scoring"]

_PIXELS_AT_ONCE = 2**24


class Model(Payload):
    model: State = carries("model")


class Scores(Payload):
    metrics: dict[str, float] = carries("score")
    samples: int = carries("count")


class Scoring:
    """The harness's own question, asked after every round. It trains nothing."""

    @on_client
    def score(self, down: Model, client: Client) -> Scores:
        net = client.build("task", down.model).eval()
        meter = client.task.meter()
        samples, spacing, size = 0, client.validation_spacing, client.batch_of(_PIXELS_AT_ONCE)
        with torch.no_grad(), client.autocast():
            for x, y in client.validation(size):
                meter.update(client.predict(net, x, size), y, None if spacing is None else spacing[samples : samples + len(x)])
                samples += len(x)
        metrics = meter.compute() if samples else {}
        return Scores(metrics={name: v for name, v in metrics.items() if math.isfinite(v)}, samples=samples)
