"""Images with their edges mirrored, without turning them around in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unseen.networks.kernels import has_kernels

__all__ = ["mirrored_edges"]


def mirrored_edges(x: Tensor) -> Tensor:
    """`F.pad(x, (1, 1, 1, 1), mode="reflect")` of maps [n, c, h, w], h and w being 2 at least, in the order in which x lies in memory.

    PyTorch's own gives maps channels first, and adds up gradients in no fixed order on a GPU.

    >>> mirrored_edges(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))[0, 0, 0]
    tensor([4., 3., 4., 3.])
    """
    kernels = has_kernels(x.device) and x.is_contiguous(memory_format=torch.channels_last)
    padded: Tensor = (_ByKernel if kernels else _MirroredEdges).apply(x)  # type: ignore[no-untyped-call]
    return padded


class _MirroredEdges(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        last = x.is_contiguous(memory_format=torch.channels_last)
        form = torch.channels_last if last else torch.contiguous_format
        padded = torch.empty((n, channels, height + 2, width + 2), dtype=x.dtype, device=x.device, memory_format=form)
        padded[:, :, 1:-1, 1:-1] = x
        for edge, mirrored in ((0, 2), (-1, -3)):
            padded[:, :, edge, 1:-1] = padded[:, :, mirrored, 1:-1]
        for edge, mirrored in ((0, 2), (-1, -3)):
            padded[:, :, :, edge] = padded[:, :, :, mirrored]
        return padded

    @staticmethod
    def backward(_: Any, of_padded: Tensor) -> Tensor:
        """What the forward pass copied comes back in the opposite order."""
        last = of_padded.is_contiguous(memory_format=torch.channels_last)
        of_x = of_padded.clone(memory_format=torch.channels_last if last else torch.contiguous_format)
        for edge, mirrored in ((0, 2), (-1, -3)):
            of_x[:, :, :, mirrored] += of_x[:, :, :, edge]
        for edge, mirrored in ((0, 2), (-1, -3)):
            of_x[:, :, mirrored, 1:-1] += of_x[:, :, edge, 1:-1]
        inside = of_x[:, :, 1:-1, 1:-1]
        return inside.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


class _ByKernel(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        from unseen.networks.padding_kernel import with_mirrored_edges  # takes Triton

        return with_mirrored_edges(x)

    @staticmethod
    def backward(_: Any, of_padded: Tensor) -> Tensor:
        folded: Tensor = _FoldedByKernel.apply(of_padded)  # type: ignore[no-untyped-call]
        return folded


class _FoldedByKernel(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, of_padded: Tensor) -> Tensor:
        from unseen.networks.padding_kernel import folded_edges

        return folded_edges(of_padded)

    @staticmethod
    def backward(_: Any, of_x: Tensor) -> Tensor:
        return mirrored_edges(of_x)
