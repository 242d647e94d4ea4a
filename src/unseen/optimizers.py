"""The optimisers that the papers use, by name; and an optimiser's state as a value that a client can remember from round to round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from unseen.client import Client
from unseen.errors import BadInput
from unseen.own_code import Own, telling_where
from unseen.state import State

__all__ = ["OptimizerName", "make_optimizer", "moments_of", "restore_moments", "unfit_optimizer"]

OptimizerName = Literal["adam", "sgd", "momentum"]
_KINDS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
}


def make_optimizer(
    client: Client, name: Any, net: nn.Module | Sequence[nn.Module], lr: float, share: float | None = None, **settings: Any
) -> Any:
    """A fresh optimiser for one task, by name or a user's own; its state does not outlive the task."""
    kind, defaults = (name.thing, name.options) if isinstance(name, Own) else _KINDS[name]
    return client.optimizer(kind, net, share=share, lr=lr, **{**defaults, **settings})


def unfit_optimizer(name: Any, lr: float, weight_decay: float) -> Iterable[str]:
    """Why a user's own optimiser cannot be made, one sentence."""
    if not isinstance(name, Own):
        return
    try:
        with telling_where(f"optimizer {name} cannot be made with (params, lr=, weight_decay=)"):
            made = name([nn.Parameter(torch.zeros(1))], lr=lr, weight_decay=weight_decay)
    except BadInput as bad:
        yield str(bad)
        return
    if not isinstance(made, Optimizer):
        yield f"optimizer {name} makes a {type(made).__name__}; expected a torch.optim.Optimizer"


def moments_of(optimizer: Optimizer) -> State:
    """Copies of all it keeps (Adam's averages and step counts), by parameter number and entry: `3.exp_avg`."""
    kept = optimizer.state_dict()["state"]
    return {f"{number}.{entry}": value.detach().clone() for number, entries in kept.items() for entry, value in entries.items()}


def restore_moments(optimizer: Optimizer, moments: State) -> None:
    """Go on from there. The learning rate and the other settings stay the optimiser's own.

    What it holds already is written in place: a step recorded on a GPU knows the addresses.
    """
    held = optimizer.state_dict()["state"]
    if held:
        for number, entries in held.items():
            for entry, value in entries.items():
                value.copy_(moments[f"{number}.{entry}"])
        return
    kept: dict[int, State] = {}
    for name, value in moments.items():
        number, entry = name.split(".")
        kept.setdefault(int(number), {})[entry] = value.clone()  # optimisers write in place
    optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
