"""What privacy costs an answer: clipping and noise on a model of 12 million parameters, on one core.

    python benchmarks/noise.py

OpenDP's Gaussian mechanism is measured beside it where it is installed (`pip install opendp`), on fewer numbers, since it is slow.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata

import numpy as np
import torch

from unseen.federation.site.noise import DiscreteGaussian
from unseen.federation.site.policy import Privacy
from unseen.federation.site.privacy import privatised
from unseen.parts.combining import Down
from unseen.payload import Payload, State, carries

TENSORS, EACH = 60, 200_000
NUMBERS = TENSORS * EACH
SLOW_NUMBERS = 100_000
REPEATS = 5


class Trained(Payload):
    model: State = carries("model")


def seconds(act: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begin)
    return taken


def told(what: str, taken: list[float]) -> None:
    print(f"{what:36} fastest {min(taken):5.2f} s, median {statistics.median(taken):5.2f} s")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def main() -> None:
    torch.set_num_threads(1)
    start = {f"layer{number}": torch.zeros(EACH) for number in range(TENSORS)}
    change = {name: torch.randn(EACH) * 1e-3 for name in start}
    print(f"{NUMBERS:,} numbers, torch {torch.__version__}, numpy {np.__version__}")
    before = peak()
    told("a whole answer clipped and noised", seconds(lambda: privatised(Trained(model=change), Down(model=start), Privacy(on=True))))
    print(f"most memory beyond question and answer: {peak() - before:.0f} MB, of which the new answer is {4 * NUMBERS / 2**20:.0f} MB")
    gaussian = DiscreteGaussian(1.5 * 2**32, bytes(32))
    told("of which the discrete Gaussian", seconds(lambda: gaussian.draw(NUMBERS)))
    try:
        import opendp.prelude as dp
    except ImportError:
        return
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=SLOW_NUMBERS), dp.l2_distance(T=float)
    slow, values = dp.m.make_gaussian(*space, scale=1.0), [0.0] * SLOW_NUMBERS
    (taken,) = seconds(lambda: slow(values), 1)
    whole = taken * NUMBERS / SLOW_NUMBERS
    print(f"OpenDP {metadata.version('opendp')}, {SLOW_NUMBERS:,} numbers: {taken:.1f} s; for all it would take {whole:.0f} s")


if __name__ == "__main__":
    main()
