"""What a network costs: parameters to send, operations to run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unseen.errors import choose
from unseen.networks import NETWORKS, build_network

__all__ = ["Cost", "cost", "measure"]


@dataclass(frozen=True)
class Cost:
    """Trainable parameters, and floating point operations for one image, forward. A multiply-add counts as two:
    papers that write "FLOPs" for multiply-adds (FedDAG's Table VII) print half of it."""

    parameters: int
    flops: int


def cost(name: str, outputs: int = 1000, channels: int = 3, size: tuple[int, int] | None = None) -> Cost:
    """The cost of a network by name, at the size it is usually given unless another is said (224 pixels for ImageNet's networks).

    Nothing is computed or allocated: it runs on torch's meta device.

    >>> cost("resnet18").parameters
    11689512
    """
    size = size or NETWORKS[choose("network", name.partition(":")[0].strip(), NETWORKS)].usual_size
    with torch.device("meta"):
        net = build_network(name, outputs=outputs, channels=channels, size=size)
    return measure(net, channels, size)


def measure(net: nn.Module, channels: int, size: tuple[int, int]) -> Cost:
    """The cost of any network of images (FedDAG's generator, your own), on the device it is on."""
    device = next(net.parameters()).device
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.empty(1, channels, *size, device=device))
    return Cost(sum(p.numel() for p in net.parameters()), counter.get_total_flops())
