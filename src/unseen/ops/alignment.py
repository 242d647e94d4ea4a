"""Layers of two networks brought together, and models fused layer by layer (CSAC: Yuan et al., 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unseen.errors import NoReplies
from unseen.ops.averaging import mean
from unseen.state import State

__all__ = ["fuse_by_divergence", "kernel_discrepancy", "layer_attention"]

_BANDWIDTHS = tuple(3.0**k for k in range(-3, 2))  # of the kernels, times the mean squared distance in the batch


def kernel_discrepancy(one: Tensor, other: Tensor) -> Tensor:
    """MK-MMD of two batches [n, ...] of at least two: off-diagonal means within each, less the mean between them, plus 2 / (n - 1).

    The kernel is a sum of five Gaussians exp(-|a - b|^2 / (2 s)), s being 3^-3 to 3^1 times the batch's mean squared distance, which is
    not differentiated. The constant is the released code's.

    >>> float(kernel_discrepancy(torch.tensor([[0.0], [0.0]]), torch.tensor([[0.0], [0.0]])))  # all kernels are 1: 5 + 5 - 10 + 2
    2.0
    """
    n = len(one)
    rows = torch.cat([one.flatten(1), other.flatten(1)])
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    rows = rows - rows.detach().mean(0)  # distances stay, and few of their digits are lost to the lengths
    with torch.autocast(rows.device.type, enabled=False):  # small distances have no digits left in 16 bits
        lengths = rows.square().sum(1)
        distance = (lengths[:, None] + lengths[None] - 2 * rows @ rows.T).clamp_min(0)
    usual = distance.detach().mean().clamp_min(torch.finfo(distance.dtype).tiny)
    kernel = sum((-distance / (2 * s * usual)).exp() for s in _BANDWIDTHS)
    assert isinstance(kernel, Tensor)
    within = sum((part.sum() - part.diagonal().sum()) / (n * (n - 1)) for part in (kernel[:n, :n], kernel[n:, n:]))
    return within - 2 * kernel[:n, n:].mean() + 2 / (n - 1)


def layer_attention(trained: Sequence[Tensor], fixed: Sequence[Tensor]) -> Tensor:
    """alpha_ij, how much layer j of the fixed network means to layer i of the trained one: [i, j], each row with the sum 1.

    The mean energy of position attention (maps compared at all pairs of positions) and that of channel attention (at all pairs of
    channels), each through a softmax over j, and then their mean. Maps are [n, c, h, w], all of one shape. It is a number: nothing
    learns through it.
    """
    with torch.no_grad(), torch.autocast(trained[0].device.type, enabled=False):
        t, s = (torch.stack([m.detach() for m in maps]).flatten(3).float() for maps in (trained, fixed))  # [layer, n, c, positions]
        position = torch.einsum("inc,jnc->ij", t.mean(3), s.mean(3)) / t.shape[1]
        channel = torch.einsum("inp,jnp->ij", t.mean(2), s.mean(2)) / t.shape[1]
        return (position.softmax(1) + channel.softmax(1)) / 2


def fuse_by_divergence(states: Mapping[str, State]) -> State:
    """Tensor by tensor: w = sum_k d_k / sum_j d_j w_k with d_k = |w_k - mean_j w_j|: what a client changed most weighs most.

    A tensor that all have in common is that tensor. Integer buffers take the largest value.

    >>> fuse_by_divergence({k: {"w": torch.tensor([v])} for k, v in (("a", 0.0), ("b", 0.0), ("c", 3.0))})  # mean 1: d = 1, 1, 2
    {'w': tensor([1.5000])}
    """
    if not states:
        raise NoReplies("no client gave a model that can be used, so there is nothing to fuse")
    models = [state for _, state in sorted(states.items())]
    fused = mean(models)
    for name, average in fused.items():
        if average.is_floating_point():
            each = torch.stack([model[name].double() for model in models])
            far = (each - each.mean(0)).reshape(len(each), -1).norm(dim=1)
            if float(far.sum()) > 0:
                fused[name] = torch.einsum("k,k...->...", far / far.sum(), each).to(average.dtype)
    return fused
