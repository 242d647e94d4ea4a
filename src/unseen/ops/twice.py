"""Convolutions for those who differentiate twice.

PyTorch's second derivative of a convolution is made of convolutions whose kernels are as large as images, and goes through groups one
by one: for a depthwise layer of 960 channels, thousands of tiny ones. A convolution is linear in the image and in the weight, so the
derivatives of its gradients are convolutions and gradients again, of the same shape, over all groups at once: what libraries are fast
at. The values and first gradients are PyTorch's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

__all__ = ["DifferentiatedTwice"]


class DifferentiatedTwice(TorchFunctionMode):
    """Around a forward pass of which that is done. Nothing but convolutions is touched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_conv2d if func is F.conv2d else func)(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """F.conv2d; autocast casts for that one alone, so what it would do is done here."""
    if input.dim() != 4 or isinstance(padding, str):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    device = input.device.type
    if torch.is_autocast_enabled(device) and input.dtype != torch.float64:
        input, weight = (each.to(torch.get_autocast_dtype(device)) for each in (input, weight))
    how = tuple([n, n] if isinstance(n, int) else n for n in (stride, padding, dilation))
    y: Tensor = _convolve(input, weight, (*how, groups))
    return y if bias is None else y + bias.to(y.dtype)[:, None, None]


class _Convolution(Function):
    """x * w."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, how: Any) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.how = how
        return F.conv2d(x, w, None, *how)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return *_differentiate(g, *ctx.saved_tensors, ctx.how), None


class _Gradients(Function):
    """Of <g, x * w> by x and by w: the first is linear in g and w, the second in g and x."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, w: Tensor, how: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(g, x, w)
        ctx.how = stride, padding, dilation, groups = how
        backward = torch.ops.aten.convolution_backward
        by_x, by_w, _ = backward(g, x, w, None, stride, padding, dilation, False, [0, 0], groups, [True, True, False])
        return by_x, by_w

    @staticmethod
    def backward(ctx: Any, v: Tensor, u: Tensor) -> Any:
        """Of <v, by_x> + <u, by_w> = <g, v * w> + <g, x * u>."""
        g, x, w = ctx.saved_tensors
        return _convolve(v, w, ctx.how) + _convolve(x, u, ctx.how), *_differentiate(g, v, u, ctx.how), None


_convolve: Any = _Convolution.apply
_differentiate: Any = _Gradients.apply
