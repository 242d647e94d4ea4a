"""What the federation costs: a FedAvg round in process against a bare PyTorch loop over the same batches and network.

    python benchmarks/overhead.py

Both sides train the same clients on the same batches in the same order and average the same models; the weights are compared at
the end, so neither can do less work. Rounds alternate, and the ratio is of medians measured in this one run. Scoring is left out
on both sides. The last line is `ratio N`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from unseen import Experiment, FedAvg
from unseen.engines.local import LocalEngine
from unseen.randomness import generator
from unseen.state import State
from unseen.world import World, build_world

ROUNDS = 15


def bare_round(world: World, number: int, net: torch.nn.Module, model: State) -> State:
    """FedAvg as one would write it in a notebook, with images and weights as they lie fastest in memory."""
    method = world.experiment.method
    assert isinstance(method, FedAvg)
    sums: State = {}
    total = 0
    for name in world.clients:
        rng = generator(world.experiment.seed, "draws", number, 1, name)  # the same order of samples
        net.load_state_dict(model)
        net.train()
        optimizer = torch.optim.Adam(net.parameters(), lr=method.lr)
        domain, index = world.holdings[name].train.parts[0]
        for chunk in torch.randperm(len(index), generator=rng).split(method.batch):
            rows = index[chunk.numpy()]
            x = (torch.from_numpy(domain.images[rows]).float() / 255 - 0.5) / 0.5
            x = x.to(memory_format=torch.channels_last)
            y = torch.from_numpy(domain.labels[rows])
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for key, value in net.state_dict().items():
            share = value.double() * len(index) if value.is_floating_point() else value.clone()
            sums[key] = share if key not in sums else sums[key] + share if value.is_floating_point() else torch.maximum(sums[key], share)
        total += len(index)
    return {k: (v / total).float() if v.is_floating_point() else v for k, v in sums.items()}


def main() -> None:
    torch.set_num_threads(1)
    world = build_world(Experiment(FedAvg(lr=1e-3, batch=64), "styled-digits", "outline", device="cpu"))
    net = world.builders["task"]().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory() as folder:
        engine = LocalEngine(world, Path(folder))
        bare = world.fresh("task")
        state = world.experiment.method.start(world.fresh, engine.cohort(0))
        times: dict[str, list[float]] = {"bare": [], "unseen": []}
        for number in range(1, ROUNDS + 1):
            began = time.perf_counter()
            bare = bare_round(world, number, net, bare)
            between = time.perf_counter()
            cohort = engine.cohort(number)
            state = world.experiment.method.round(state, cohort)
            cohort.close()
            times["bare"].append(between - began)
            times["unseen"].append(time.perf_counter() - between)
    worst = max(float((state.model[k] - v).abs().max()) for k, v in bare.items() if v.is_floating_point())
    samples = sum(len(h.train) for h in world.holdings.values())
    print(f"{len(world.clients)} clients, {samples} samples, {ROUNDS} rounds, torch {torch.__version__}")
    print(f"largest difference between the two models after {ROUNDS} rounds: {worst:.1e}")
    assert worst < 1e-4, "the two sides did not do the same work"
    for side, seconds in times.items():
        print(f"{side:<7} median {statistics.median(seconds) * 1e3:7.1f} ms a round, fastest {min(seconds) * 1e3:7.1f} ms")
    print(f"ratio of the fastest rounds {min(times['unseen']) / min(times['bare']):.3f}")
    print(f"ratio {statistics.median(u / b for u, b in zip(times['unseen'], times['bare'], strict=True)):.3f}")


if __name__ == "__main__":
    main()
