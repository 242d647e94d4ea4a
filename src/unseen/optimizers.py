"""The optimisers that the papers use, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from unseen.client import Client

__all__ = ["OptimizerName", "make_optimizer"]

OptimizerName = Literal["adam", "sgd", "momentum"]
_KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
}


def make_optimizer(client: Client, name: OptimizerName, net: nn.Module | Sequence[nn.Module], lr: float, **settings: Any) -> Any:
    """A fresh optimiser for one task; its state does not outlive the task."""
    kind, defaults = _KINDS[name]
    return client.optimizer(kind, net, lr=lr, **{**defaults, **settings})
