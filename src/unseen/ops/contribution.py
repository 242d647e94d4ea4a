"""How much a client's model gives to the generalisation of the global one (FedDAG, section III-C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.ops.averaging import mean
from unseen.state import State, copied

__all__ = [
    "Eps", "Scored", "balanced_weights", "changed_share", "direction", "generalisation_scores", "left_gradient", "perturbed", "retained",
    "within_client",
]  # fmt: skip

Eps = Literal["l2", "sign"]
_SMALLEST_LOSS = 1e-12  # a model without any loss has a large score, not an infinite one


@dataclass(frozen=True)
class Scored:
    """A local model of an earlier round, and the score it had then."""

    model: State
    score: float


def direction(gradient: Sequence[Tensor], eps: Eps) -> list[Tensor]:
    """The step of length 1 that raises the loss most: g / |g|_2 over all weights together, or sign(g) (Foret et al., Eq. 2).

    >>> direction([torch.tensor([3.0]), torch.tensor([0.0, -4.0])], "l2")
    [tensor([0.6000]), tensor([ 0.0000, -0.8000])]
    """
    if eps == "sign":
        return [g.sign() for g in gradient]
    norm = torch.sqrt(sum((g.double().square().sum() for g in gradient), torch.zeros((), dtype=torch.float64, device=gradient[0].device)))
    return [torch.where(norm > 0, g / norm.to(g.dtype), 0.0) for g in gradient]  # nobody waits for the norm


def left_gradient(learner: nn.Module) -> State:
    """The gradient that the network's last step left; zero where there is none."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in learner.named_parameters()}


def perturbed(net: nn.Module, gradient: Mapping[str, Tensor], rho: float, eps: Eps, float64: bool = False) -> State:
    """theta^ = theta + rho eps, eps from a gradient by parameter (FedDAG, before Eq. 5). Buffers stay as they are."""

    def exact(tensors: Mapping[str, Tensor]) -> State:
        return {name: t.double() if float64 and t.is_floating_point() else t for name, t in copied(tensors).items()}

    state = exact(net.state_dict())
    for (name, _), move in zip(net.named_parameters(), direction([*exact(gradient).values()], eps), strict=True):
        state[name] += rho * move
    return state


def changed_share(model: State, other: State, names: Sequence[str]) -> float:
    """The share of these parameters' weights that differ between a model and its perturbed copy, whichever precision that has.

    >>> changed_share({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 2.5])}, ["w"])
    0.5
    """
    differing = [(model[n].double() != other[n].double()).sum() for n in names]
    return int(sum(differing)) / max(1, sum(model[n].numel() for n in names))  # one wait for the device


def generalisation_scores(losses: Mapping[str, Mapping[str, float]], clients: int) -> dict[str, float]:
    """s_i = 1 / sum_j E[L(T^_i; D_j)] (FedDAG, Eq. 5), from evaluator -> model -> mean loss.

    Where fewer than all `clients` assessed a model its sum is scaled up to that number, so that scores of different rounds
    compare. A model that nobody assessed has no score.

    >>> generalisation_scores({"a": {"b": 0.5}, "b": {"a": 0.25}}, clients=2)
    {'b': 1.0, 'a': 2.0}
    """
    given: dict[str, list[float]] = {}
    for by_model in losses.values():
        for model, loss in by_model.items():
            given.setdefault(model, []).append(loss)
    return {model: 1 / max(sum(of) * clients / len(of), _SMALLEST_LOSS) for model, of in given.items()}


def balanced_weights(scores: Mapping[str, float], beta: float) -> dict[str, float]:
    """w_i = s_i^beta / sum_j s_j^beta (FedDAG, Eq. 6).

    >>> balanced_weights({"a": 1.0, "b": 16.0}, beta=0.5)
    {'a': 0.2, 'b': 0.8}
    """
    largest = max(scores.values(), default=1.0)  # its power is 1: no beta overflows, and not all weights vanish
    powers = {name: (score / largest) ** beta for name, score in scores.items()}
    total = sum(powers.values())
    return {name: power / total for name, power in powers.items()}


def within_client(now: Scored, history: Sequence[Scored], k: int) -> Scored:
    """The mean of the current local model and the latest `k` earlier ones whose score exceeds its own; of the scores too."""
    better = [earlier for earlier in history if earlier.score > now.score]
    chosen = better[len(better) - min(k, len(better)) :]
    if not chosen:
        return now
    beside = ({name: value.to(now.model[name].device) for name, value in earlier.model.items()} for earlier in chosen)
    scores = [now.score, *(earlier.score for earlier in chosen)]
    return Scored(mean([now.model, *beside]), sum(scores) / len(scores))


def retained(history: Sequence[Scored], k: int, cap: int) -> list[Scored]:
    """What is worth keeping, oldest first: a model goes only when k later ones score at least as high, since then it can never
    again be among the latest k above any score; and the oldest go beyond `cap`."""
    kept = [earlier for at, earlier in enumerate(history) if sum(later.score >= earlier.score for later in history[at + 1 :]) < k]
    return kept[max(0, len(kept) - cap) :]
