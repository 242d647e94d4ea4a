"""A model to bytes and back, hashed and checked, as it goes between two machines: bytes a second on one core.

python benchmarks/codec.py [MEGABYTES] > benchmarks/results/codec.txt

The sender writes the payload and hashes it for its signature; the receiver hashes it again, reads it, and checks that every number is
finite. Seconds are processor time, the median of several turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from unseen.engines.checking import read_answer
from unseen.federation.messages import Message
from unseen.parts.combining import Up

TURNS, SMALL = 9, 60


def model(megabytes: int) -> dict[str, torch.Tensor]:
    """As a ResNet has it: some large tensors with most of the weights, and many small ones."""
    rng = torch.Generator().manual_seed(0)
    large = {f"layer{n}.weight": torch.randn(megabytes * 10**6 // 4 // 10, generator=rng) for n in range(10)}
    return large | {f"norm{n}.weight": torch.randn(512, generator=rng) for n in range(SMALL)}


def main(megabytes: int = 100) -> None:
    torch.set_num_threads(1)
    up = Up(model=model(megabytes), samples=100, perturbed=None)
    seconds: dict[str, list[float]] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        value = work()
        seconds.setdefault(what, []).append(time.process_time() - began)
        return value

    for _ in range(TURNS):
        data = timed("to bytes", up.to_bytes)
        sent = timed("hashed by the sender", lambda data=data: Message({}, data).payload_hash)
        came = timed("hashed by the receiver", lambda data=data: Message({}, data).payload_hash)
        timed("read and checked", lambda data=data: read_answer(Up, data))
        assert sent == came
    size = len(data) / 1e9
    print(f"{size * 1000:.0f} MB in {10 + SMALL} tensors, one core, torch {torch.__version__}; medians of {TURNS} turns")
    medians = {what: statistics.median(values) for what, values in seconds.items()}
    for what, median in medians.items():
        print(f"{what:<24} {median:.3f} s  {size / median:6.2f} GB/s")
    ends = {"sender": ("to bytes", "hashed by the sender"), "receiver": ("hashed by the receiver", "read and checked")}
    for end, steps in ends.items():
        whole = sum(medians[step] for step in steps)
        print(f"{end:<24} {whole:.3f} s  {size / whole:6.2f} GB/s")
    print(f"{'both on one core':<24} {sum(medians.values()):.3f} s  {size / sum(medians.values()):6.2f} GB/s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
