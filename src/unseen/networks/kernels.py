"""Whether the hand-written kernels run here. Each stands beside its plain version, as `*_kernel.py`, and is imported on first use."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["has_kernels", "plain_versions"]

_TRITON = torch.version.cuda is not None and importlib.util.find_spec("triton") is not None  # as in builds for NVIDIA's GPUs
_plain = False


def has_kernels(device: torch.device) -> bool:
    """They are written in Triton. No cache: the compiler of PyTorch follows this function too."""
    return _TRITON and device.type == "cuda" and not _plain


@contextmanager
def plain_versions() -> Iterator[None]:
    """While this lasts PyTorch's own layers run everywhere: what the kernels are held against."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before
