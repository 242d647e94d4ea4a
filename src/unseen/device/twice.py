"""Convolutions and normalisations for those who differentiate twice.

PyTorch's second derivative of a convolution is made of convolutions whose kernels are as large as images, and goes through groups one
by one: for a depthwise layer of 960 channels, thousands of tiny ones. A convolution is linear in the image and in the weight, so the
derivatives of its gradients are convolutions and gradients again, of the same shape, over all groups at once: what libraries are fast
at. PyTorch's second derivative of a normalisation takes some seventy passes over the images; written out here, it takes a handful, and
cannot be differentiated a third time. Values and first gradients are those of PyTorch's own kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from unseen.networks.kernels import has_kernels

__all__ = ["DifferentiatedTwice"]


class DifferentiatedTwice(TorchFunctionMode):
    """Wrap a forward pass whose gradient will be differentiated again. Only convolutions and normalisations of images change."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _OURS.get(func, func)(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """F.conv2d. Autocast knows only that function, so this one casts by itself."""
    if input.dim() != 4 or isinstance(padding, str):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    device = input.device.type
    if torch.is_autocast_enabled(device) and input.dtype != torch.float64:
        input, weight = (each.to(torch.get_autocast_dtype(device)) for each in (input, weight))
    how = tuple([n, n] if isinstance(n, int) else n for n in (stride, padding, dilation))
    y: Tensor = _convolve(input, weight, (*how, groups))
    return y if bias is None else y + bias.to(y.dtype)[:, None, None]


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm."""
    if not training or input.dim() != 4 or input.numel() == input.shape[1]:  # the last is refused there
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if weight is None:
        weight = torch.ones(input.shape[1], dtype=torch.promote_types(input.dtype, torch.float32), device=input.device)
    bias = torch.zeros_like(weight) if bias is None else bias
    y: Tensor = _normalise(input, weight, bias, (running_mean, running_var, momentum, eps))
    return y


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.instance_norm: a batch norm that takes every map of every image for a channel of its own."""
    if not use_input_stats or input.dim() != 4 or running_mean is not None or weight is not None or bias is not None:
        return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    maps = input.reshape(1, -1, *input.shape[2:])
    return _batch_norm(maps, None, None, training=True, eps=eps).view(input.shape)


_OURS: dict[Any, Any] = {F.conv2d: _conv2d, F.batch_norm: _batch_norm, F.instance_norm: _instance_norm}


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


class _Norm(Function):
    """y = w n + b with n = (x - mean) s, where s is one over the deviation, per channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, how: Any) -> Tensor:
        running_mean, running_var, momentum, eps = how
        y, mean, s = torch.native_batch_norm(x, w, b, running_mean, running_var, True, momentum, eps)
        ctx.save_for_backward(x, w, mean, s)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return *_renormalise(g, *ctx.saved_tensors), None


class _NormGradients(Function):
    """Of <g, y> by x, w and b: w s (g - <g> - n <g n>), the sum of g n, and that of g; <.> is the mean over a channel."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, w: Tensor, mean: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_x, by_w, by_b = _norm_gradients(g, x, w, mean, s)
        ctx.save_for_backward(g, x, w, mean, s, by_w, by_b)
        return by_x, by_w, by_b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor, u: Tensor, t: Tensor) -> Any:
        """Of <v, by_x> + u by_w + t by_b; what depends on x are n and s, with dn = s (dx - <dx> - n <n dx>) and ds = -s^2 <n dx>."""
        g, x, w, mean, s, sum_gn, sum_g = ctx.saved_tensors
        if has_kernels(x.device) and x.dtype is not torch.float64 and x.is_contiguous(memory_format=torch.channels_last):
            from unseen.device.twice_kernel import norm_differentiated_twice  # takes Triton

            return *norm_differentiated_twice(v, u, t, g, x, w, mean, s, sum_gn, sum_g), None, None
        samples = x.numel() // x.shape[1]
        along_v, sum_vn, sum_v = _norm_gradients(v, x, w, mean, s)
        g_, gn, v_, vn = (each / samples for each in (sum_g, sum_gn, sum_v, sum_vn))
        covariance = (v * g).sum((0, 2, 3), dtype=s.dtype) / samples - v_ * g_ - vn * gn
        of_g = s * (u - w * s * vn)  # the factors of g, v and n in the derivative by x
        of_v = -w * s * s * gn
        of_n = -s * (u * gn - 2 * w * s * vn * gn + w * s * covariance)
        rest = -of_g * g_ - of_v * v_
        by_g = along_v + _mix(t - u * s * mean, (x, u * s))
        by_x = _mix(rest - of_n * s * mean, (g, of_g), (v, of_v), (x, of_n * s))
        return by_g.to(g.dtype), by_x.to(x.dtype), (s * covariance * samples).to(w.dtype), None, None


def _norm_gradients(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, s: Tensor) -> Any:
    backward = torch.ops.aten.native_batch_norm_backward
    return backward(g, x, w, None, None, mean, s, True, 0.0, [True, True, True])  # s holds the epsilon already


def _mix(constant: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
    """The sum of images, each channel times a factor, and a constant per channel."""
    total = constant[:, None, None]
    for images, factor in terms:
        total = torch.addcmul(total, images, factor[:, None, None])
    return total


_convolve: Any = _Convolution.apply
_differentiate: Any = _Gradients.apply
_normalise: Any = _Norm.apply
_renormalise: Any = _NormGradients.apply
