"""Dynamic regularisation: the client's and the server's half of FedDyn (Acar et al., ICLR 2021, Algorithm 1), which FedGCA takes over.

lambda is FedDyn's copy of the local gradient: at a client's optimum, grad L_i(w_i) = lambda_i. It covers parameters; buffers,
which are not trained, are averaged and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.codec import State, copied
from unseen.ops.averaging import mean

__all__ = ["buffers_of", "dynamic_aggregate", "dynamic_term", "parameters_of", "updated_drift"]


def parameters_of(net: nn.Module) -> State:
    """The parameters without the buffers, copied."""
    return {name: copied(value) for name, value in net.named_parameters()}


def buffers_of(net: nn.Module) -> State:
    """The buffers that belong to the state, copied."""
    trained = dict(net.named_parameters())
    return {name: copied(value) for name, value in net.state_dict().items() if name not in trained}


def dynamic_term(
    parameters: Iterable[tuple[str, Tensor]], anchor: Mapping[str, Tensor], drift: Mapping[str, Tensor], alpha: float
) -> Tensor:
    """alpha L_OC = -<lambda_i, w> + alpha / 2 |w - w_t|^2: FedGCA's Eq. 5 times the alpha of Eq. 6, FedDyn's local penalty."""
    terms = [
        alpha / 2 * F.mse_loss(w, anchor[name], reduction="sum") - torch.dot(*_flat(drift[name], w)) for name, w in parameters
    ]  # fused sums: on millions of weights the plain ones cost twice as much
    return torch.stack(terms).sum()


def _flat(*alike: Tensor) -> list[Tensor]:
    """As vectors in the order of the last one's memory: channels_last weights would be copied at every step."""
    last = alike[-1]
    if last.ndim == 4 and not last.is_contiguous() and last.is_contiguous(memory_format=torch.channels_last):
        return [tensor.permute(0, 2, 3, 1).flatten() for tensor in alike]
    return [tensor.flatten() for tensor in alike]


def updated_drift(drift: Mapping[str, Tensor], anchor: Mapping[str, Tensor], reached: State, alpha: float) -> State:
    """lambda_i - alpha (w_i - w_t); a client without a lambda starts from zero.

    >>> updated_drift({}, {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}, 0.5)
    {'w': tensor([-1.])}
    """
    before = {name: drift[name].to(w.device) if name in drift else torch.zeros_like(w) for name, w in reached.items()}
    return {name: before[name] - alpha * (w - anchor[name].to(w.device)) for name, w in reached.items()}


def dynamic_aggregate(
    model: State, drift: State, replies: Iterable[tuple[State, State]], alpha: float, clients: int
) -> tuple[State, State]:
    """The server's update from (parameters, buffers) of those who replied, one reply in memory at a time.

    lambda <- lambda - alpha / K sum_i (w_i - w_t) over those who replied, K being all clients; w <- mean of w_i - lambda / alpha.
    Returns the new model and the new lambda, which is empty before round 1.
    """
    names: list[str] = []
    replied = 0

    def whole_models() -> Iterator[State]:
        nonlocal names, replied
        for parameters, buffers in replies:
            names, replied = [*parameters], replied + 1
            yield {**parameters, **buffers}

    average = mean(whole_models())
    moved = updated_drift(drift, {n: model[n] for n in names}, {n: average[n] for n in names}, alpha * replied / clients)
    return {name: value - moved[name] / alpha if name in moved else value for name, value in average.items()}, moved
