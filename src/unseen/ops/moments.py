"""Mean and variance over some of a tensor's dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mean_and_variance"]


def mean_and_variance(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Both keep the dimensions, with length one. The variance is that of the values themselves, not the estimate for a population.

    On a CPU in two passes over `x`: PyTorch's function, which makes one, takes ten to twenty times as long there.

    >>> mean_and_variance(torch.tensor([[1.0, 3.0]]), (1,))
    (tensor([[2.]]), tensor([[1.]]))
    """
    if x.device.type == "cpu":
        mean = x.mean(over, keepdim=True)
        return mean, (x - mean).square().mean(over, keepdim=True)
    variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    return mean, variance
