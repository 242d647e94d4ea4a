"""What a method's training step costs against a plain cross-entropy (or Dice) step of the same network and batch.

    python benchmarks/steps.py

Each side is the method's own client task over the same client, run for few and for more steps; a step costs the difference, so that
what a task pays once (loading weights, remembering) is left out. Sides alternate, and a ratio is of the fastest of each, measured in
this one run. FedGCA is held against a plain step on the same (J + 1) x batch images. FedDAG's bound is 1.25 x (3 + 4g / 3), where g is
the generator's forward time over the network's. One thread, float32.
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
from unseen.ops.fourier import low_amplitudes, restyle_amplitudes
from unseen.parts.aggregation import Uniform
from unseen.world import build_world

FEW, MORE, REPEATS = 2, 8, 4
Making = Callable[[int], Method[Any]]


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


def training(method: Method[Any], data: DomainDataset, scratch: Path) -> Callable[[], Any]:
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
    return lambda: engine._runner.run(task, down, "a", Place(1, 1), engine.memory)


def fastest(*runs: Callable[[], Any]) -> list[float]:
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


def compare(name: str, method: Making, plain: Making, data: DomainDataset, bound: float) -> None:
    with contextlib.ExitStack() as stack:
        sides = [
            training(make(steps), data, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            for make in (method, plain)
            for steps in (FEW, MORE)
        ]
        ours_few, ours_more, plain_few, plain_more = fastest(*sides)
    report(name, (ours_more - ours_few) / (plain_more - plain_few), bound)


def generator_share(side: int, batch: int) -> float:
    """g: the generator's forward time over the network's."""
    x = torch.rand(batch, 3, side, side)
    net, generator = build_network("resnet18", outputs=7, channels=3, size=(side, side)), ImageGenerator(3, 32)
    with torch.no_grad():
        of_generator, of_net = fastest(lambda: generator(x), lambda: net(x))
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
    (of_restyling,) = fastest(lambda: restyle_amplitudes(x, others, lam, 0.01))
    report(f"ELCFS: restyling {batch} images at {side} px against the U-Net's step", of_restyling / of_step, 1 / 3)


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; ResNet-18 at 64 px, batch 16 (FedGCA: 4); U-Net at 128 px, batch 4")
    classes, side = images(64), 64

    def plain(optimizer: Any) -> Making:
        return lambda steps: FedAvg(steps=steps, batch=16, optimizer=optimizer)

    compare("FedSB", lambda steps: FedSB(budget=steps, batch=16), plain("adam"), classes, 1.05)
    compare(
        "FedADG, alignment step",
        lambda steps: FedADG(classification_epochs=0, alignment_epochs=steps, epoch="batch", batch=16),
        plain("sgd"),
        classes,
        1.6,
    )
    compare("FedGCA, against the same 16 images", lambda steps: FedGCA(steps=steps, batch=4), plain("momentum"), classes, 1.5)
    g = generator_share(side, 16)
    compare(
        f"FedDAG (g = {g:.2f})",
        lambda steps: FedDAG(steps=steps, batch=16, warmup=0, aggregation=Uniform()),
        plain("momentum"),
        classes,
        1.25 * (3 + 4 * g / 3),
    )
    compare(
        "ELCFS, second order, three restyled images",
        lambda steps: ELCFS(steps=steps, batch=4),
        lambda steps: FedAvg(steps=steps, batch=4),
        images(128, segmentation=True),
        9.0,
    )
    restyling()


if __name__ == "__main__":
    main()
