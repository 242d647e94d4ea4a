"""Whether the hand-written kernels can run here. Each stands beside its plain version, as `*_kernel.py`, and is imported on first use."""

from __future__ import annotations

import functools
import importlib.util

import torch

__all__ = ["has_kernels"]


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """They are written in Triton, which comes with PyTorch's builds for NVIDIA GPUs on Linux."""
    return device.type == "cuda" and torch.version.cuda is not None and importlib.util.find_spec("triton") is not None
