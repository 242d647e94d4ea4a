"""Dynamic regularisation: the client's and the server's half of FedDyn (Acar et al., ICLR 2021, Algorithm 1), which FedGCA takes over.

lambda is FedDyn's copy of the local gradient: at a client's optimum, grad L_i(w_i) = lambda_i. It covers parameters; buffers,
which are not trained, are averaged and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from unseen.ops.averaging import mean
from unseen.state import State, copied

__all__ = ["add_dynamic_gradient", "buffers_of", "dynamic_aggregate", "dynamic_pull", "parameters_of", "updated_drift"]


def parameters_of(net: nn.Module) -> State:
    """The parameters without the buffers, copied."""
    return copied(dict(net.named_parameters()))


def buffers_of(net: nn.Module) -> State:
    """The buffers that belong to the state, copied."""
    trained = dict(net.named_parameters())
    return copied({name: value for name, value in net.state_dict().items() if name not in trained})


def dynamic_pull(anchor: State, drift: Mapping[str, Tensor], alpha: float) -> State:
    """alpha w_t + lambda_i: what pulls the weights during one task."""
    return {name: alpha * anchor[name].to(value.device) + value for name, value in drift.items()}


def add_dynamic_gradient(net: nn.Module, pull: Mapping[str, Tensor], alpha: float) -> None:
    """Add the gradient of alpha L_OC = -<lambda_i, w> + alpha / 2 |w - w_t|^2 to those that `net`'s weights have.

    That is FedGCA's Eq. 5 times the alpha of Eq. 6, and FedDyn's local penalty. Its gradient alpha w - (alpha w_t + lambda_i) is
    written down instead of derived: through a graph of millions of weights it would cost a third of a training step.
    """
    with torch.no_grad():
        for name, w in net.named_parameters():
            if not w.requires_grad:
                continue
            w.grad = (torch.zeros_like(w) if w.grad is None else w.grad).add_(w, alpha=alpha).sub_(pull[name])


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
