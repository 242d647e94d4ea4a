"""FedDyn's regulariser at a client and at the server, which FedGCA takes over: what travels, what stays, and both halves of a round."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import nn

from unseen.client import Client
from unseen.method import Cohort, Replies
from unseen.ops.dynamic import add_dynamic_gradient, buffers_of, dynamic_aggregate, dynamic_pull, parameters_of, updated_drift
from unseen.payload import Memory, Payload, State, carries

__all__ = ["Dynamic", "DynamicPenalty", "DynamicUp", "combine_dynamic"]


class DynamicUp(Payload):
    parameters: State = carries("model", part="parameters", mean=True)
    buffers: State = carries("model", part="buffers", mean=True)


class Drift(Memory):
    drift: State  # lambda_i


@dataclass(frozen=True)
class Dynamic:
    """The server's state."""

    model: State
    drift: State = field(default_factory=dict)  # lambda; empty before round 1


class DynamicPenalty:
    """alpha L_OC during one task: -<lambda_i, w> + alpha / 2 |w - w_t|^2."""

    def __init__(self, client: Client, net: nn.Module, model: State, alpha: float) -> None:
        kept = client.recall(Drift)
        self._client, self._net, self._model, self._alpha = client, net, model, alpha
        self._drift = kept.drift if kept else {name: torch.zeros_like(w) for name, w in net.named_parameters()}  # lambda_i
        # In a network of the pool, so that a recorded step finds it where it was in the last task.
        self._pulling = client.frozen("task", {**model, **dynamic_pull(model, self._drift, alpha)})
        self._pull = dict(self._pulling.named_parameters())

    @property
    def recorded_as(self) -> Hashable:
        return id(self._net), id(self._pulling), self._alpha

    def add_gradient(self) -> None:
        """Add the penalty's gradient to that of the loss."""
        add_dynamic_gradient(self._net, self._pull, self._alpha)

    def upload(self) -> DynamicUp:
        """After the loop: the new lambda_i stays here, the weights leave."""
        reached = parameters_of(self._net)
        self._client.remember(Drift(drift=updated_drift(self._drift, self._model, reached, self._alpha)))
        return DynamicUp(parameters=reached, buffers=buffers_of(self._net))


def combine_dynamic(clients: Cohort, ups: Replies[DynamicUp], state: Dynamic, alpha: float) -> Dynamic:
    """The server's half: the mean of the clients' models, moved by the mean of their lambdas."""
    replies = ((up.parameters, up.buffers) for up in ups.values())
    return Dynamic(*dynamic_aggregate(state.model, state.drift, replies, alpha, len(clients.names)))
