"""Batch norm that stays as it is: for good, where clients' batches are too small or too skewed to renew its statistics, or for one pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FrozenBatchNorm2d", "freeze_batch_norm", "statistics_kept"]


class FrozenBatchNorm2d(nn.Module):
    """A batch norm whose every entry is a buffer: `train()`, `requires_grad_()` and optimisers leave it alone.

    The names in the state dict stay, so weights pass between frozen and ordinary networks.
    """

    normalises = True  # for those who look for normalisation layers

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps = norm.eps
        for name, value in norm.state_dict().items():
            self.register_buffer(name, value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps)


def freeze_batch_norm(net: nn.Module) -> None:
    """Replace every batch norm of the network by its frozen form, in place."""
    for name, module in list(net.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            net.set_submodule(name, FrozenBatchNorm2d(module))


@contextmanager
def statistics_kept(net: nn.Module) -> Iterator[None]:
    """Batch norm goes on normalising by the batch, but does not note what it saw."""
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
