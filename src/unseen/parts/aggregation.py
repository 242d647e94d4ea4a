"""How the server makes one model of the clients': the mean, or a mean weighted by what the other clients think of each model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unseen.client import Client
from unseen.method import Cohort, Surroundings, on_client
from unseen.ops.averaging import RunningMean, mean
from unseen.ops.contribution import (
    Eps,
    Scored,
    balanced_weights,
    changed_share,
    generalisation_scores,
    left_gradient,
    perturbed,
    retained,
    within_client,
)
from unseen.payload import Payload, State, carries
from unseen.settings import Configured, hyper
from unseen.state import on_the_host

__all__ = [
    "CEA",
    "SHA",
    "Aggregate",
    "Aggregation",
    "Assessed",
    "Candidates",
    "Losses",
    "Mean",
    "Told",
    "Uniform",
    "Update",
    "Updates",
    "aggregate_in",
]

_NUMBERS_AT_ONCE = 2**24
_NUMBERS_TO_LEARN_FROM = 2**22  # a pass with a gradient keeps every layer's maps
_WORST_LOSS = 1e9  # of a model that the perturbation broke: a finite number, so that the evaluator's other losses still count


class Update(Protocol):
    """What every aggregation reads of a client's upload; what else it asks for is a field of `Told`."""

    @property
    def model(self) -> State: ...


Updates = Iterable[tuple[str, Any]]  # by client: an Update, with what this aggregation asked for


class Told(Payload):
    """What an aggregation may ask of a client beside its model. Each field leaves only where the aggregation in use reads it."""

    samples: int | None = carries("count")  # mean: the weight
    perturbed: State | None = carries("model")  # sha: the model after a small step uphill


@dataclass(frozen=True)
class Aggregate:
    """The global model and what led to it: a server state of its own, or a part of one."""

    model: State
    round: int = 0  # how many rounds made it
    weights: dict[str, float] = field(default_factory=dict)  # of each client in the last round, up to a common factor
    also: dict[str, State] = field(default_factory=dict)  # further networks that clients sent, averaged with the same weights
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)  # what an aggregation notes, by client
    kept: dict[str, State] = field(default_factory=dict)  # what an aggregation or the server's optimiser keeps for later rounds
    history: dict[str, list[Scored]] = field(default_factory=dict)  # earlier models by client, oldest first


class Aggregation(Configured, ABC):
    """Abstract. What differs between aggregations: what they need of a client, and how they weigh."""

    name: ClassVar[str]

    def upload(self, client: Client, net: nn.Module, learner: nn.Module) -> dict[str, Any]:
        """The fields of `Told` that this aggregation reads, about the upload of `net`. `learner` took the last step."""
        return {}

    @abstractmethod
    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        """The next global model, with the weight that each client had in it. A client that is not among the updates has no part in it."""

    def merged(self, states: Mapping[str, State], weights: Mapping[str, float]) -> State:
        """Further networks that clients sent beside their models, as one: their mean by the weights that the clients had."""
        return mean((state, weights.get(client, 0.0)) for client, state in states.items())

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        """Why this aggregation cannot run here, one sentence each."""
        return ()

    def needs_each(self) -> Iterable[str]:
        """Why this aggregation reads single models, one sentence each; () where it only averages, by `samples` or all alike."""
        yield f"the aggregation {self.name} reads each client's model"

    def notes(self, state: Any) -> dict[str, Any]:
        """What a run's record should say of the last aggregation, from the server's state."""
        return {}


def aggregate_in(state: Any) -> Aggregate:
    """The aggregate that a server's state is, or holds."""
    if isinstance(state, Aggregate):
        return state
    return next(value for value in vars(state).values() if isinstance(value, Aggregate))


def _streamed(updates: Updates, weigh: Callable[[Any], float], before: Aggregate) -> Aggregate:
    """One update in memory at a time."""
    model, weights = RunningMean(), dict[str, float]()
    for client, update in updates:
        weights[client] = float(weigh(update))
        model.add(update.model, weights[client])
    return Aggregate(model.result(), before.round + 1, weights)


@dataclass(frozen=True)
class Mean(Aggregation):
    """The mean weighted by the number of training samples (FedAvg). A client that does not tell it weighs nothing."""

    name = "mean"

    def upload(self, client: Client, net: nn.Module, learner: nn.Module) -> dict[str, Any]:
        return {"samples": client.samples}

    def needs_each(self) -> Iterable[str]:
        return ()

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        return _streamed(updates, lambda update: update.samples or 0, before)


@dataclass(frozen=True)
class Uniform(Aggregation):
    """The plain mean: nothing but the model leaves a client."""

    name = "uniform"

    def needs_each(self) -> Iterable[str]:
        return ()

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        return _streamed(updates, lambda update: 1, before)


class Candidates(Payload):
    models: dict[str, State] = carries("model", passed_on=True)


class Losses(Payload):
    losses: dict[str, float] = carries("score", of="models", low=0.0, high=_WORST_LOSS)  # mean loss on the validation part


@dataclass(frozen=True)
class Assessed(Aggregation):
    """Abstract (FedDAG, section III-C). Clients assess each other's models on their validation parts: a better model weighs more.

    A client that gave no model this round neither counts nor assesses. A model that no evaluator could assess gets the mean of
    the scores that were given; where none was, all models weigh the same.
    """

    beta: float = hyper(0.3, "how much the scores matter: 0 gives the plain mean", symbol="beta, Eq. 6", low=0.0)
    evaluators: int | None = hyper(
        None, "how many clients, drawn afresh each round, assess the others; none: all", symbol="c, Fig. 10", low=1
    )
    own: bool = hyper(False, "a client assesses its own model too, as the sum of Eq. 5 has it but not the text", symbol="Eq. 5")

    @on_client
    def assess(self, down: Candidates, client: Client) -> Losses:
        """The mean loss of each candidate here; it is computed in the candidate's own precision."""
        net = client.build("task", next(iter(down.models.values()))).eval()
        losses, size = {}, client.batch_of(_NUMBERS_AT_ONCE)
        for name, sent in down.models.items():
            model = {key: value.to(client.device) for key, value in sent.items()}
            exact = any(value.dtype is torch.float64 for value in model.values())
            candidate = partial(functional_call, net, model)
            total, samples = torch.zeros((), dtype=torch.float64, device=client.device), 0
            with torch.no_grad(), torch.autocast(client.device.type, enabled=False) if exact else client.autocast():
                for x, y in client.validation(size):
                    logits = client.predict(candidate, x.double() if exact else x, size)
                    total += client.task.loss(logits, y).double() * len(x)
                    samples += len(x)
            if samples:
                mean_loss = float(total) / samples
                losses[name] = min(mean_loss, _WORST_LOSS) if math.isfinite(mean_loss) else _WORST_LOSS
        return Losses(losses=losses)

    def scored(self, clients: Cohort, candidates: Mapping[str, State]) -> dict[str, float]:
        """A score for every candidate (Eq. 5)."""
        names = sorted(candidates)
        if self.evaluators is not None and self.evaluators < len(names):
            draw = torch.randperm(len(names), generator=clients.rng("evaluators"))
            names = sorted(names[i] for i in draw[: self.evaluators].tolist())
        questions = {e: {c: model for c, model in candidates.items() if self.own or c != e} for e in names}
        asked = {e: Candidates(models=models) for e, models in questions.items() if models}
        replies = clients.ask(self.assess, asked).all() if asked else {}
        scores = generalisation_scores({e: reply.losses for e, reply in replies.items()}, len(clients.names))
        return {c: scores[c] for c in candidates if c in scores}

    def weigh(self, clients: Iterable[str], scores: Mapping[str, float]) -> dict[str, float]:
        """Each client's weight, by score (Eq. 6)."""
        typical = sum(scores.values()) / len(scores) if scores else 1.0
        return balanced_weights({c: scores.get(c, typical) for c in clients}, self.beta)

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if len(around.training) < 2 and not self.own:
            yield f'with the aggregation {self.name} clients assess each other\'s models, but there is one client; use aggregation = "mean"'
        empty = sorted(name for name in around.training if not around.validation.get(name))
        if empty:
            yield (
                f"with the aggregation {self.name} clients assess models on their validation samples, and {', '.join(empty)} "
                'would have none; raise `validation`, or use aggregation = "mean"'
            )

    def needs_each(self) -> Iterable[str]:
        yield f"the aggregation {self.name} sends each client's model to the others, who assess it"

    def notes(self, state: Any) -> dict[str, Any]:
        aggregate = aggregate_in(state)
        total = sum(aggregate.weights.values())
        return {"scores": aggregate.numbers.get("scores", {}), "weights": {c: w / total for c, w in aggregate.weights.items()}}


@dataclass(frozen=True)
class CEA(Assessed):
    """Cross-client evaluation-based aggregation: the models are assessed as they are (FedDAG's baseline, the `+` of its Fig. 7)."""

    name = "cea"

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        models = {client: update.model for client, update in updates}
        scores = self.scored(clients, models)
        weights = self.weigh(models, scores)
        model = mean((models[c], weights[c]) for c in models)
        return Aggregate(model, before.round + 1, weights, numbers={"scores": scores})


@dataclass(frozen=True)
class SHA(Assessed):
    """Sharpness-aware hierarchical aggregation (FedDAG, section III-C): models are assessed after a small step uphill, and each
    client's is first averaged with its own earlier ones that did better.

    What is kept for later rounds is a client's own model and score, before averaging or after it (`keeps`); the history of a client that
    is missing waits for it. A model without a score is neither averaged with earlier ones nor kept.
    """

    name = "sha"

    rho: float = hyper(1e-7, "length of the step uphill; up to 5e-2 is sensible", symbol="rho", low=0.0, high=1.0)
    eps: Eps = hyper("l2", "its direction: the gradient over its L2 norm, or its sign")
    float64: bool = hyper(False, "perturb and assess in float64: float32 swallows a step as small as the paper's")
    direction: Literal["sample", "last-batch"] = hyper(
        "sample", "whose gradient: that of a sample of the training images, or what the last mini-batch left"
    )
    sample: int = hyper(256, "training images in the sample, drawn each round; a client with fewer takes all", low=32)
    k: int = hyper(4, "how many earlier models of a client may join its current one", symbol="k", low=0)
    cap: int | None = hyper(None, "the most models kept for one client; none: 4 k", low=0)
    keeps: Literal["own", "averaged"] = hyper(
        "own", "model and score for later rounds: before, or after they were averaged with earlier ones"
    )

    def upload(self, client: Client, net: nn.Module, learner: nn.Module) -> dict[str, Any]:
        gradient = left_gradient(learner) if self.direction == "last-batch" else self.sampled_gradient(client, net)
        return {"perturbed": perturbed(net, gradient, self.rho, self.eps, self.float64)}

    def sampled_gradient(self, client: Client, net: nn.Module) -> State:
        """Of the mean task loss over the sample. Batch norms go by the batch, as in training, and keep nothing of it.

        The perturbed model less the model is this gradient, which the server sees. That of a mini-batch would show it a few images.
        """
        size, number = client.batch_of(_NUMBERS_TO_LEARN_FROM, most=64), min(self.sample, client.samples)
        weights: State = {name: p for name, p in net.named_parameters() if p.requires_grad}
        total, training = [torch.zeros_like(p) for p in weights.values()], net.training

        @client.step
        def differentiate(x: Tensor, y: Tensor) -> None:
            buffers = {name: value.clone() for name, value in net.named_buffers()}
            loss = client.task.loss(functional_call(net, buffers, (x,)), y)
            net.zero_grad()
            loss.backward()

        net.train()
        for x, y in client.drawn(number, size):
            differentiate(x, y)
            torch._foreach_add_(total, [cast(Tensor, p.grad) for p in weights.values()], alpha=len(x) / number)
        net.train(training)
        found = dict(zip(weights, total, strict=True))
        return {name: found[name] if name in found else torch.zeros_like(p) for name, p in net.named_parameters()}

    def exposures(self) -> dict[str, float]:
        return {"images_per_direction": float(self.sample) if self.direction == "sample" else 1.0}

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        ups = dict(updates)
        uphill = {c: up.perturbed for c, up in ups.items() if up.perturbed is not None}  # without it a model has no score
        scores = self.scored(clients, uphill)
        history, merged = dict(before.history), {c: Scored(up.model, 0.0) for c, up in ups.items()}
        for client, score in scores.items():
            now, earlier = Scored(ups[client].model, score), before.history.get(client, [])
            merged[client] = within_client(now, earlier, self.k)
            past = now if self.keeps == "own" else merged[client]
            kept = Scored(on_the_host(past.model), past.score)  # a device's memory is too dear for it
            history[client] = retained([*earlier, kept], self.k, 4 * self.k if self.cap is None else self.cap)
        weights = self.weigh(merged, {c: merged[c].score for c in scores})
        model = mean((merged[c].model, weights[c]) for c in merged)
        trained = clients.entries("parameters")
        shares = {c: changed_share(ups[c].model, state, trained) for c, state in uphill.items()}
        numbers = {"scores": scores, "perturbed_share": shares}
        return Aggregate(model, before.round + 1, weights, numbers=numbers, history=history)

    def notes(self, state: Any) -> dict[str, Any]:
        shares = aggregate_in(state).numbers["perturbed_share"]
        notes = {**super().notes(state), "perturbed_share": shares}
        if self.rho > 0 and shares and min(shares.values()) < 0.5:
            notes["warning"] = (
                f"rho = {self.rho:g} changed fewer than half of a model's weights, so its score is in effect its plain validation loss "
                "(CEA); raise rho, or set float64 = true"
            )
        return notes
