"""The bare step with PyTorch's own layers and with ours, recorded and compiled: what the kernels for single layers win.

Needs a GPU:
    PYTHONPATH=src python benchmarks/h200/layers.py resnet18:64:224:compiled resnet18:64:224 mobilenet_v2:64:224 mobilenet_v2:64:128
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

import torch

from unseen.device.bare_step import BareStep, made_up_labels
from unseen.device.compiling import compiled
from unseen.networks import build_network
from unseen.networks.kernels import plain_versions
from unseen.speed.measuring import fastest
from unseen.task import Classification, Segmentation

STEPS = 50


def clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def step(name: str, batch: int, size: int, through_compiler: bool) -> BareStep:
    task = Segmentation(("disc", "cup")) if name == "unet" else Classification(tuple("abcdefg"))
    net = build_network(name, outputs=task.outputs, channels=3, size=(size, size))
    through = {"through": compiled} if through_compiler else {}
    labels = made_up_labels(task, batch, (size, size))
    return BareStep(net, task.loss, (batch, 3, size, size), labels, torch.device("cuda"), "bf16", **through)


def main() -> None:
    torch.zeros(1, device="cuda")
    for case in sys.argv[1:]:
        name, batch, size, *how = case.split(":")
        sides, starts = {}, []
        for what, within in (("ours", nullcontext()), ("PyTorch's", plain_versions())):
            began = clock()
            with within:
                torch._dynamo.reset()
                made = step(name, int(batch), int(size), bool(how))
            starts.append(clock() - began)
            sides[what] = lambda made=made: made.run(STEPS)
        taken = fastest(sides, 3, clock)
        rates = ", ".join(f"{what} {int(batch) * STEPS / seconds:,.0f}" for what, seconds in taken.items())
        print(f"{name}, batch {batch}, {size} px, {' '.join(how) or 'recorded'}: images a second: {rates}; ", end="")
        print(
            f"ratio {taken['PyTorch' + chr(39) + 's'] / taken['ours']:.3f}; seconds to begin: {starts[0]:.1f}, {starts[1]:.1f}", flush=True
        )


if __name__ == "__main__":
    main()
