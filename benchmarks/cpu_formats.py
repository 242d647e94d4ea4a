"""Number format and memory format on a CPU: what a plain training step gains by bf16 and by channels_last, network by network.

    python benchmarks/cpu_formats.py > benchmarks/results/cpu-formats.txt

The four forms of a step alternate in one process and the fastest of several counts, so that whatever else the machine does falls on
all alike. With one thread the processor's own time is taken, which other programs hardly touch; with more, the wall clock's. The last
column is what the rule in `unseen.device.formats` chooses, and what it loses where that is not the faster form.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from unseen import Classification, Segmentation
from unseen.device.formats import fast_precision, memory_format
from unseen.networks import build_network

CASES = (  # network, batch, image side
    ("resnet18", 16, 64),
    ("resnet18", 8, 224),
    ("resnet50", 8, 64),
    ("mobilenet_v2", 16, 64),
    ("mobilenet_v2", 8, 224),
    ("efficientnet_lite0", 16, 64),
    ("alexnet", 16, 224),
    ("vit_b_32", 4, 224),
    ("digits_cnn", 64, 32),
    ("small_cnn", 64, 32),
    ("unet", 4, 128),
)
FORMS = [(p, f) for p in ("fp32", "bf16") for f in (torch.contiguous_format, torch.channels_last)]
NEAR = 0.05  # forms closer than this are equal, as far as a shared machine can tell


def step_of(network: str, batch: int, side: int, precision: str, form: torch.memory_format) -> Callable[[], None]:
    """A training step of the network on made-up images."""
    torch.manual_seed(0)
    masks = network.startswith("unet")
    task = Segmentation(("disc", "cup")) if masks else Classification(tuple("1234567"))
    net = build_network(network, outputs=task.outputs, channels=3, size=(side, side)).to(memory_format=form)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    x = torch.rand(batch, 3, side, side).contiguous(memory_format=form)
    y = (torch.rand(batch, 2, side, side) > 0.5).float() if masks else torch.randint(7, (batch,))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = task.loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def fastest(steps: list[Callable[[], None]], repeats: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each, alternating; the first time warms up."""
    best = [float("inf")] * len(steps)
    for turn in range(repeats + 1):
        for number, step in enumerate(steps):
            began = clock()
            step()
            if turn:
                best[number] = min(best[number], clock() - began)
    return best


def processor() -> str:
    """What of the processor matters here."""
    file = Path("/proc/cpuinfo")
    flags = set(file.read_text().split()) if file.exists() else set()
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile") if flag in flags]
    return f"{platform.machine()}, {os.cpu_count()} cores, {' '.join(known) or 'flags unknown'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--networks", nargs="+", help="some of the networks only")
    given = parser.parse_args()
    print(f"Training step with Adam, images a second, fastest of {given.repeats}; last: channels_last; torch {torch.__version__}")
    print(f"{processor()}; torch uses {torch.backends.cpu.get_cpu_capability()}\n")
    print(f"{'network':<19} {'batch':>5} {'px':>4} {'threads':>7} {'fp32':>8} {'+last':>8} {'bf16':>8} {'+last':>8}", end="")
    print(f" {'last/plain fp32':>16} {'bf16':>6} {'bf16/fp32':>10}  rule: format, precision")
    wrong = 0
    for threads in given.threads:
        torch.set_num_threads(threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        for network, batch, side in CASES:
            if given.networks and network not in given.networks:
                continue
            seconds = fastest([step_of(network, batch, side, *form) for form in FORMS], given.repeats, clock)
            fp32, fp32_last, bf16, bf16_last = rates = [batch / s for s in seconds]
            net = build_network(network, outputs=2, channels=3, size=(side, side))
            last, half = memory_format(net, torch.device("cpu")) == torch.channels_last, fast_precision(net, torch.device("cpu")) == "bf16"
            plain_or_last = (fp32_last, fp32) if last else (fp32, fp32_last)
            bf16_either = (bf16_last, bf16) if last else (bf16, bf16_last)
            by_precision = (bf16_either[0], plain_or_last[0]) if half else (plain_or_last[0], bf16_either[0])
            lost = [left / taken - 1 for taken, left in (plain_or_last, bf16_either, by_precision)]
            wrong += sum(share > NEAR for share in lost)
            rule = f"{'last' if last else 'plain'}, {'bf16' if half else 'fp32'}"
            losses = [f"{what} LOSES {share:.0%}" for what, share in zip(("fp32", "bf16", "auto"), lost, strict=True) if share > NEAR]
            print(f"{network:<19} {batch:>5} {side:>4} {threads:>7} " + " ".join(f"{rate:>8.1f}" for rate in rates), end="")
            best = max(bf16, bf16_last) / max(fp32, fp32_last)
            print(f" {fp32_last / fp32:>16.2f} {bf16_last / bf16:>6.2f} {best:>10.2f}  {'; '.join([rule, *losses])}", flush=True)
    print(f"\nthe rules chose the slower form, by more than {NEAR:.0%}, {wrong} times")


if __name__ == "__main__":
    main()
