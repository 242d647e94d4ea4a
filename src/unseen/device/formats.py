"""How a network's numbers lie in memory and in what format they are multiplied: rules from measurements.

On a CPU (benchmarks/results/cpu-formats.txt) channels_last trains convolutional networks up to 1.7 times as fast, but where
instance norm is at work a quarter slower; bf16 gains a third and more where the processor multiplies it, except with depthwise
convolutions on small images. A rule looks at the network and the processor alone, so every process of a run decides alike.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from unseen.networks.unet import UNet

__all__ = ["fast_precision", "memory_format"]


def memory_format(net: nn.Module, device: torch.device) -> torch.memory_format:
    """channels_last, except on a CPU for networks with instance norm (U-Net, FedDAG's generator).

    >>> memory_format(nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8)), torch.device("cpu"))
    torch.contiguous_format
    """
    if device.type == "cpu" and any(isinstance(module, UNet | nn.InstanceNorm2d) for module in net.modules()):
        return torch.contiguous_format
    return torch.channels_last


def fast_precision(net: nn.Module, device: torch.device) -> Literal["fp32", "bf16"]:
    """bf16 on a GPU, and on a CPU that multiplies it unless the network has depthwise convolutions (MobileNetV2, EfficientNet)."""
    if device.type != "cpu":
        return "bf16"
    depthwise = any(isinstance(module, nn.Conv2d) and module.groups > 1 for module in net.modules())
    multiplies = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if multiplies and not depthwise else "fp32"
