"""What a method's training step costs against a plain cross-entropy (or Dice) step of the same network and batch.

    python benchmarks/steps.py

Each side is the method's own client task over the same client, run for a number of steps; the two alternate, and a ratio is of the
fastest of each, measured in this one run. FedGCA is held against a plain step on the same (J + 1) x batch images. FedDAG's bound is
1.25 x (3 + 4g / 3), where g is the generator's forward time over the network's. One thread, float32.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unseen import Classification, Domain, DomainDataset, Experiment, FedAvg, Method, Segmentation
from unseen.data.domain import UNIT
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place
from unseen.methods import ELCFS, FedADG, FedDAG, FedGCA, FedSB
from unseen.networks import ImageGenerator, build_network
from unseen.ops.fourier import low_amplitudes, restyle
from unseen.parts.aggregation import Uniform
from unseen.world import build_world

STEPS, REPEATS = 3, 5


def images(side: int, segmentation: bool = False) -> DomainDataset:
    rng = np.random.default_rng(0)
    domains = []
    for name in "abcdt":
        pixels = rng.integers(0, 255, (40, 3, side, side), dtype=np.uint8)
        masks = np.zeros((40, 2, side, side), dtype=np.uint8)
        masks[:, 0, side // 4 : 3 * side // 4, side // 4 : 3 * side // 4] = 1
        masks[:, 1, side // 3 : side // 2, side // 3 : side // 2] = 1
        domains.append(Domain(name, pixels, masks if segmentation else rng.integers(0, 7, 40)))
    if segmentation:
        return DomainDataset("masks", Segmentation(("disc", "cup")), tuple(domains), pixels=UNIT, network="unet")
    return DomainDataset("classes", Classification(tuple("1234567")), tuple(domains), network="resnet18")


def training(method: Method[Any], data: DomainDataset, scratch: Path) -> Callable[[], None]:
    """The method's own client task at one client, ready to be run again and again."""
    world = build_world(Experiment(method, data, "t"))
    engine = LocalEngine(world, scratch)
    state = method.start(world.fresh, engine.cohort(0))
    asked: list[Any] = []

    class Spy:
        names = world.clients

        def ask(self, task: Any, down: Any) -> Any:
            asked.append((task, down))
            raise StopIteration  # the question is all we want

    with contextlib.suppress(StopIteration):
        method.round(state, Spy())
    task, down = asked[0]
    assert engine._runner is not None
    return lambda: engine._runner.run(task, down, "a", Place(1, 1), engine.memory) and None


def fastest(*runs: Callable[[], None]) -> list[float]:
    """Seconds of each, alternating, the fastest of several; the first round warms up."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS + 1):
        for run, seen in zip(runs, times, strict=True):
            began = time.perf_counter()
            run()
            seen.append(time.perf_counter() - began)
    return [min(seen[1:]) for seen in times]


def report(name: str, ratio: float, bound: float) -> None:
    print(f"{name:<58} {ratio:6.2f}   at most {bound:5.2f}   {'ok' if ratio <= bound else 'OVER'}", flush=True)


def compare(name: str, method: Method[Any], plain: FedAvg, data: DomainDataset, bound: float) -> None:
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        ours, base = fastest(training(method, data, Path(a)), training(plain, data, Path(b)))
    report(name, ours / base, bound)


def generator_share(side: int, batch: int) -> float:
    """g: the generator's forward time over the network's."""
    x = torch.rand(batch, 3, side, side)
    net, generator = build_network("resnet18", outputs=7, channels=3, size=(side, side)), ImageGenerator(3, 32)
    with torch.no_grad():
        of_generator, of_net = fastest(lambda: generator(x) and None, lambda: net(x) and None)
    return of_generator / of_net


def restyling(side: int = 384, batch: int = 16) -> None:
    """Restyling a batch towards three sites against a training step of the U-Net on it."""
    x, net = torch.rand(batch, 3, side, side), build_network("unet", outputs=2, channels=3, size=(side, side))
    y = (torch.rand(batch, 2, side, side) > 0.5).float()
    task, optimizer = Segmentation(("disc", "cup")), torch.optim.Adam(net.parameters())
    others = low_amplitudes(torch.rand(3, batch, 3, side, side), 0.01)
    lam = torch.rand(3, batch)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(net(x), y).backward()
        optimizer.step()

    began = time.perf_counter()
    step()
    of_step = time.perf_counter() - began
    (of_restyling,) = fastest(lambda: restyle(x, others, lam, 0.01) and None)
    report(f"ELCFS: restyling {batch} images at {side} px against the U-Net's step", of_restyling / of_step, 1 / 3)


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; ResNet-18 at 64 px, batch 16 (FedGCA: 4); U-Net at 128 px, batch 4")
    classes, side = images(64), 64
    plain = FedAvg(steps=STEPS, batch=16)
    compare("FedSB", FedSB(budget=STEPS, batch=16), plain, classes, 1.05)
    alignment = FedADG(classification_epochs=0, alignment_epochs=STEPS, epoch="batch", batch=16)
    compare("FedADG, alignment step", alignment, FedAvg(steps=STEPS, batch=16, optimizer="sgd"), classes, 1.6)
    gca = FedGCA(steps=STEPS, batch=4)
    compare("FedGCA, against the same 16 images", gca, FedAvg(steps=STEPS, batch=16, optimizer="momentum"), classes, 1.5)
    g = generator_share(side, 16)
    dag = FedDAG(steps=STEPS, batch=16, warmup=0, aggregation=Uniform())
    compare(f"FedDAG (g = {g:.2f})", dag, FedAvg(steps=STEPS, batch=16, optimizer="momentum"), classes, 1.25 * (3 + 4 * g / 3))
    masks = images(128, segmentation=True)
    compare("ELCFS, second order, three restyled images", ELCFS(steps=STEPS, batch=4), FedAvg(steps=STEPS, batch=4), masks, 9.0)
    restyling()


if __name__ == "__main__":
    main()
