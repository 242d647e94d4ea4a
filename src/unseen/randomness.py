"""Randomness that depends on nothing but the seed and the place where it is used.

No stream is shared, so neither the order of clients, nor the number of workers, nor the engine, nor a resume changes a draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["derived", "generator", "seeded_block"]


def derived(seed: int, *where: str | int) -> int:
    """A 63-bit number made from the seed and a place.

    >>> derived(0, "train", 1) == derived(0, "train", 1) != derived(0, "train", 2)
    True
    """
    digest = hashlib.sha256(repr((seed, *where)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *where: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derived(seed, *where))


@contextmanager
def seeded_block(device: torch.device, seed: int, *where: str | int) -> Iterator[None]:
    """Run a block under its own global generator (dropout, initialisation), and put the old one back afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(derived(seed, *where))
        if devices:
            torch.cuda.manual_seed(derived(seed, *where))
        yield
