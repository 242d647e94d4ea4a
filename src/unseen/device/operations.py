"""How many floating-point operations some code makes: those of convolutions and matrix products, forwards and backwards.

PyTorch's own count takes a grouped convolution's gradient by the weights for that of a full one: for a depthwise layer of 960 channels,
960 times what it is. Each of a convolution's gradients takes as many operations as the convolution.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["CountedOperations"]


def _of_gradients(
    g: torch.Size, x: torch.Size, w: torch.Size, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool,
    _more: Any, _groups: int, wanted: list[bool], out_shape: Any = None,  # noqa: ARG001 -- named there
) -> int:  # fmt: skip
    """Of a convolution's gradients by image and by weight, from the shapes of what it is given; `wanted` says which of them."""
    positions = (x if transposed else g)[2:]
    return 2 * x[0] * prod(positions) * prod(w) * sum(wanted[:2])


class CountedOperations(FlopCounterMode):
    """A context that counts, in all and inside networks of one kind.

    >>> layer, x = nn.Conv2d(4, 4, 3, groups=4, bias=False), torch.rand(1, 4, 5, 5, requires_grad=True)
    >>> with CountedOperations() as forwards:
    ...     y = layer(x)
    >>> with CountedOperations() as backwards:
    ...     y.sum().backward()
    >>> forwards.total, backwards.total  # 9 positions of 4 channels with 9 weights, each a product and a sum
    (648, 1296)
    """

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping={torch.ops.aten.convolution_backward: _of_gradients})

    @property
    def total(self) -> int:
        return int(self.get_total_flops())

    def inside(self, kind: type[nn.Module]) -> int:
        """Operations of networks of this class, first derivatives included."""
        return int(sum(self.get_flop_counts().get(kind.__name__, {}).values()))
