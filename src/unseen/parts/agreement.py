"""An aggregation that holds back the weights on whose direction clients disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from unseen.client import Client
from unseen.method import Cohort
from unseen.ops.agreement import change_signs, masked_change
from unseen.ops.averaging import RunningMean
from unseen.parts.aggregation import Aggregate, Aggregation, Updates, aggregate_in
from unseen.settings import hyper

__all__ = ["GMA"]


@dataclass(frozen=True)
class GMA(Aggregation):
    """Gradient masked averaging (Tenison et al., 2023): the mean by samples, where a weight on which clients disagree moves less.

    Agreement is the size of the mean sign of the clients' changes, all alike. A weight below the threshold moves by that part of the mean
    change. Buffers, and networks beside the task network, are averaged and nothing else.
    """

    name = "gma"

    threshold: float = hyper(0.4, "agreement from which on a weight moves by the whole mean change", symbol="tau", low=0.0, high=1.0)

    def upload(self, client: Client, net: nn.Module, learner: nn.Module) -> dict[str, Any]:
        return {"samples": client.samples}

    def needs_each(self) -> Iterable[str]:
        yield f"the aggregation {self.name} reads the signs of each client's change"

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        """One update in memory at a time."""
        trained, average, signs, weights = clients.entries("parameters"), RunningMean(), RunningMean(), dict[str, float]()
        for client, update in updates:
            weights[client] = float(update.samples or 0)
            average.add(update.model, weights[client])
            signs.add(change_signs(update.model, before.model, trained), float(weights[client] > 0))
        mean, agreement = average.result(), signs.result()
        agreed = sum(int((sign.abs() >= self.threshold).sum()) for sign in agreement.values())
        share = agreed / max(1, sum(sign.numel() for sign in agreement.values()))
        model = masked_change(before.model, mean, agreement, self.threshold)
        return Aggregate(model, before.round + 1, weights, numbers={"agreement": {"share": share}})

    def notes(self, state: Any) -> dict[str, Any]:
        aggregate = aggregate_in(state)
        clients = sum(weight > 0 for weight in aggregate.weights.values())
        notes: dict[str, Any] = {"agreement": aggregate.numbers.get("agreement", {}).get("share", 0.0)}
        if clients == 1:
            notes["warning"] = "one client gave a model, and agrees with itself, so this is the mean; have more take part"
        elif self.threshold <= (1 / clients if clients % 2 else 0):  # what is left over where as many as can be go either way
            notes["warning"] = f"threshold = {self.threshold:g} of {clients} clients holds no weight back, so this is the mean; raise it"
        return notes
