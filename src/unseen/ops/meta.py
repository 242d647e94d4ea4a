"""A start from which one step does well. Fallah et al., "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020 (Per-FedAvg)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unseen.networks.norm import statistics_kept

__all__ = ["meta_step"]


def meta_step(net: nn.Module, optimizer: Optimizer, losses: Sequence[Callable[[], Tensor]], alpha: float, delta: float = 0.0) -> None:
    """One step on F(w) = f(w - alpha grad f(w; D); D'), from losses that read `net` as it is, on D, D' and, for the second form, D''.

    With two losses the derivative through the inner step is left out (FO): g = grad f(w~; D'). With three it is taken by differences
    (HF): g - alpha h, with h = (grad f(w + delta g; D'') - grad f(w - delta g; D'')) / (2 delta).
    The optimiser applies it at w. The differences are taken in the weights' own precision and without dropout, whatever the other passes
    run in: 16 bits would swallow a step as small as delta, and two draws of dropout are further apart than it. Running statistics of batch
    norm are taken in the first pass alone.
    """
    weights = [w for group in optimizer.param_groups for w in group["params"] if w.requires_grad]
    start = [w.detach().clone() for w in weights]

    def gradient(loss: Callable[[], Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(loss(), weights, allow_unused=True, materialize_grads=True))

    def move(direction: list[Tensor], length: float) -> None:
        """To w + length * direction."""
        with torch.no_grad():
            torch._foreach_copy_(weights, torch._foreach_add(start, direction, alpha=length))
        torch.clear_autocast_cache()  # under bf16 it holds copies of the weights as they were

    inner = gradient(losses[0])
    with statistics_kept(net):
        move(inner, -alpha)
        found = gradient(losses[1])
        if len(losses) > 2:
            with torch.autocast(weights[0].device.type, enabled=False), _without_dropout(net):
                move(found, delta)
                ahead = gradient(losses[2])
                move(found, -delta)
                curvature = torch._foreach_sub(ahead, gradient(losses[2]))
            found = list(torch._foreach_sub(found, torch._foreach_mul(curvature, alpha / (2 * delta))))
    move(inner, 0.0)
    optimizer.zero_grad()
    for w, g in zip(weights, found, strict=True):
        w.grad = g
    optimizer.step()


@contextmanager
def _without_dropout(net: nn.Module) -> Iterator[None]:
    dropouts = [module for module in net.modules() if isinstance(module, nn.modules.dropout._DropoutNd) and module.training]
    for dropout in dropouts:
        dropout.eval()
    try:
        yield
    finally:
        for dropout in dropouts:
            dropout.train()
