"""Aggregations made for unseen domains: weights that follow generalisation gaps (FedDG-GA), and a direction that all agree on (FedOMG)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from unseen.client import Client
from unseen.errors import NoReplies
from unseen.method import Cohort, Surroundings, on_client
from unseen.ops.adjustment import adjusted_weights
from unseen.ops.averaging import mean
from unseen.ops.matching import least_agreed
from unseen.parts.aggregation import Aggregate, Aggregation, Updates, aggregate_in
from unseen.payload import Payload, State, carries
from unseen.settings import hyper

__all__ = ["GA", "OMG", "Compared", "MeanAndOwn"]

_NUMBERS_AT_ONCE = 2**24
_WORST = 1e9  # of a model that is broken: a finite number, so that the other clients' gaps still count


class MeanAndOwn(Payload):
    models: dict[str, State] = carries("model")  # the mean of all models, and this client's own: nobody else's


class Compared(Payload):
    scores: dict[str, float] = carries("score", of="models", low=-_WORST, high=_WORST)  # of the mean, and of the client's own model


@dataclass(frozen=True)
class GA(Aggregation):
    """Generalisation adjustment: a client weighs more where the mean is worse for it than its own model was. Zhang et al., CVPR 2023.

    After the mean was taken, each client scores it and its own model on its validation part, in an exchange of its own: its model
    comes back to it with the mean, and two numbers leave. The new weights serve the next round. All clients begin with 1 / K. Who is
    missing, or has no gap, keeps its weight; the mean is over those who sent a model. A server's optimiser steps after the scoring.
    The paper lets the step fall to 0 over the run: `rounds` says over how many.
    """

    name = "ga"

    step: float = hyper(0.2, "how far a weight moves in a round", symbol="d", low=0.0, high=1.0)
    rounds: int | None = hyper(None, "rounds over which the step falls to 0; none: it does not fall", symbol="R", low=1)
    score: Literal["loss", "metric"] = hyper("loss", "whose gap: the loss, or the task's metric (accuracy, Dice; as released)")
    centred: bool = hyper(True, "gaps less their mean; false: as released", symbol="mean G")

    @on_client
    def compare(self, down: MeanAndOwn, client: Client) -> Compared:
        return Compared(scores={name: self._scored(client, model) for name, model in down.models.items()})

    @torch.no_grad()
    def _scored(self, client: Client, model: State) -> float:
        """Lower is better."""
        net, size = client.build("task", model).eval(), client.batch_of(_NUMBERS_AT_ONCE)
        meter = client.task.meter(quick=True)
        with client.autocast():
            for x, y in client.validation(size):
                meter.update(client.predict(net, x, size), y)
        told = meter.compute()
        score = told.get("loss", math.nan) if self.score == "loss" else -told.get(client.task.metric, math.nan)
        return min(score, _WORST) if math.isfinite(score) else _WORST

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        models = {client: update.model for client, update in updates}
        kept = before.numbers.get("next", {})
        all_weights = {c: kept.get(c, 1 / len(clients.names)) for c in clients.names}
        weights = {c: all_weights[c] for c in models}
        if not sum(weights.values()):  # only clients without weight answered
            weights = dict.fromkeys(models, 1.0)
        model = mean((models[c], weights[c]) for c in models)
        asked = {c: MeanAndOwn(models={"mean": model, "own": own}) for c, own in models.items()}
        told = {c: reply.scores for c, reply in clients.ask(self.compare, asked).items()}
        # Where neither model has a score, as with an area under the curve of one class, there is no gap.
        gaps = {c: scores["mean"] - scores["own"] for c, scores in told.items() if min(scores.values()) < _WORST}
        step = self.step * (1 - min(before.round, self.rounds) / self.rounds if self.rounds else 1)  # d_r = (1 - r / R) d
        after = adjusted_weights(all_weights, gaps, step, self.centred)
        return Aggregate(model, before.round + 1, weights, numbers={"gaps": gaps, "next": after})

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if len(around.training) < 2:
            yield 'the aggregation ga weighs clients against each other, but there is one client; use aggregation = "mean"'
        empty = sorted(name for name in around.training if not around.validation.get(name))
        if empty:
            yield (
                f"with the aggregation ga clients score models on their validation samples, and {', '.join(empty)} would have none; "
                'raise `validation`, or use aggregation = "mean"'
            )

    def notes(self, state: Any) -> dict[str, Any]:
        numbers = aggregate_in(state).numbers
        return {"gaps": numbers.get("gaps", {}), "weights": numbers.get("next", {})}


@dataclass(frozen=True)
class OMG(Aggregation):
    """On-server matching of changes: the mean's direction, pulled towards the one that agrees with it least. FedOMG, ICLR 2025.

    From memory of the paper. D_k is the change of client k's parameters, D_0 their plain mean; with the D_w that minimises
    D_w . D_0 + kappa |D_0| |D_w| the model moves by rate (D_0 + kappa |D_0| / |D_w| D_w). The paper takes 21 steps towards w; here it is
    found as exactly as floats allow, from the inner products alone. Buffers are the mean's. All models of a round are in memory at once.
    """

    name = "omg"

    kappa: float = hyper(0.5, "how far the mean's direction may be left, as a part of its length", symbol="kappa", low=0.0)
    rate: float = hyper(1.0, "learning rate of the server", symbol="eta_g", low=0.0)

    def contradictions(self) -> Iterable[str]:
        if not self.rate:
            yield "omg has rate = 0, so that the model would never change; give a larger one"

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        models = {client: update.model for client, update in updates}
        if not models:
            raise NoReplies("no client gave an update that can be used, so there is nothing to average")
        names, trained = list(models), clients.entries("parameters")
        start = {n: before.model[n].to(next(iter(models.values()))[n].device) for n in trained}
        products = np.zeros((len(names), len(names)))
        for entry in trained:
            changes = torch.stack([(models[c][entry] - start[entry]).double().flatten() for c in names])
            products += (changes @ changes.T).cpu().numpy()
        w = least_agreed(products, self.kappa)
        length, mean_length = math.sqrt(max(float(w @ products @ w), 0.0)), math.sqrt(max(float(products.mean()), 0.0))
        pull = self.kappa * mean_length / length if length > 0 else 0.0
        shares = {c: self.rate * (1 / len(names) + pull * share) for c, share in zip(names, w.tolist(), strict=True)}
        model = mean(models.values())
        for entry, value in start.items():
            change = sum(((models[c][entry] - value).double() * share for c, share in shares.items()), torch.zeros_like(value).double())
            model[entry] = (value.double() + change).to(value.dtype)
        noted = dict(zip(names, w.tolist(), strict=True))
        return Aggregate(model, before.round + 1, dict.fromkeys(names, 1.0), numbers={"directions": noted})

    def notes(self, state: Any) -> dict[str, Any]:
        return {"directions": aggregate_in(state).numbers.get("directions", {})}
