"""Batch norm that stays as it is, for clients whose batches are too small or too skewed to renew its statistics; and where it is."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FrozenBatchNorm2d", "batch_norm_names", "freeze_batch_norm"]


class FrozenBatchNorm2d(nn.Module):
    """A batch norm whose every entry is a buffer: `train()`, `requires_grad_()` and optimisers leave it alone.

    The names in the state dict stay, so weights pass between frozen and ordinary networks.
    """

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


def batch_norm_names(net: nn.Module) -> list[str]:
    """The names of all that batch norms hold, weights and statistics, in the network's order, found by the kind of module.

    >>> batch_norm_names(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)))
    ['1.running_mean', '1.running_var', '1.num_batches_tracked']
    """
    norms = {name: module for name, module in net.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)}
    return [f"{name}.{entry}" for name, module in norms.items() for entry in module.state_dict()]
