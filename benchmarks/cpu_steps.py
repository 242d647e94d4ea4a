"""What two habits of a step on a CPU are worth: memory that stays between steps, and variances in two passes.

    python benchmarks/cpu_steps.py > benchmarks/results/cpu-steps.txt

Processor time of one thread, so that other programs disturb it little. Each row of the first table is measured in two processes, in turns,
since memory that was once asked for changes what comes after it.
"""

from __future__ import annotations

import contextlib
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from unseen.device.heap import freed_memory_stays
from unseen.networks import build_network
from unseen.ops.moments import mean_and_variance

STEPS = (
    ("small_cnn", 32, 32, 60),
    ("resnet18", 64, 16, 8),
    ("resnet18", 224, 32, 3),
    ("mobilenet_v2", 128, 32, 4),
    ("unet:width=8,depth=4", 64, 5, 20),
)
MAPS = ((32, 16, 28, 28), (32, 64, 28, 28), (64, 24, 56, 56))
TURNS = 3


def seconds(fn: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        fn()
    return (time.process_time() - began) / times


def step_of(network: str, size: int, batch: int) -> Callable[[], None]:
    masks = network.startswith("unet")
    order = torch.contiguous_format if masks else torch.channels_last
    net = build_network(network, outputs=1 if masks else 7, channels=3, size=(size, size)).to(memory_format=order)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x = torch.randn(batch, 3, size, size).contiguous(memory_format=order)
    y = torch.rand(batch, 1, size, size).round() if masks else torch.randint(0, 7, (batch,))

    def step() -> None:
        out = net(x)
        loss = F.binary_cross_entropy_with_logits(out, y) if masks else F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def one_process(network: str, size: int, batch: int, times: int, stays: bool) -> None:
    """Milliseconds of a step and megabytes at the process's peak."""
    step = step_of(network, size, batch)
    with freed_memory_stays() if stays else contextlib.nullcontext():
        seconds(step, 3)
        took = seconds(step, times)
    print(json.dumps([1e3 * took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def measured(*case: object) -> tuple[float, float]:
    run = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True, check=True)
    took, peak = json.loads(run.stdout)
    return took, peak


def main() -> None:
    print(f"$ python benchmarks/cpu_steps.py\n{platform.machine()}, torch {torch.__version__}, one thread; the best of {TURNS} turns\n")
    print("milliseconds of processor time of a step, megabytes at the peak")
    print("network               pixels  batch     before  stays  ratio     before  stays")
    for network, size, batch, times in STEPS:
        turns = [[measured(network, size, batch, times, stays) for stays in (False, True)] for _ in range(TURNS)]
        (before, peak), (stays, kept) = (tuple(map(min, zip(*(turn[side] for turn in turns), strict=True))) for side in (0, 1))
        print(f"{network:22}{size:6}{batch:7}{before:11.1f}{stays:7.1f}{stays / before:7.2f}{peak:11.0f}{kept:7.0f}", flush=True)
    print("\nmilliseconds of mean and variance of feature maps, channels last\nmaps                 var_mean  two passes  times as long")
    torch.set_num_threads(1)
    for shape in MAPS:
        x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
        sides = partial(torch.var_mean, x, (2, 3), correction=0, keepdim=True), partial(mean_and_variance, x, (2, 3))
        with freed_memory_stays():
            one, two = (min(1e3 * seconds(side, 20) for _ in range(TURNS)) for side in sides)
        print(f"{shape!s:20}{one:9.2f}{two:12.2f}{one / two:15.1f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    one_process(*json.loads(sys.argv[1])) if len(sys.argv) > 1 else main()
