"""Rounds of FedAvg with ResNet-18 on PACS, compiled, augmented: what scoring makes of them.

Needs a GPU and the prepared data (`unseen data prepare pacs`):
    python benchmarks/h200/profile_scoring.py            each unseen domain: a round trained, and trained and scored
    python benchmarks/h200/profile_scoring.py sketch     scored behind, scored at once, the passes alone and their kernels
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from unseen.engines.local import LocalEngine
from unseen.scoring import Model
from unseen.speed.measuring import SpeedPlan, _Rounds, fastest, one_case

ROUNDS = 6
TARGETS = ("art_painting", "cartoon", "photo", "sketch")
RECIPE = "domainbed"
NOT_YET = 10**6  # a round that none of these is


def timed(what: str, work: Callable[[], object], rounds: int = 1) -> None:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    print(f"{what}: {(time.perf_counter() - began) / rounds * 1e3:.1f} ms a round", flush=True)


def rounds_of(target: str, folder: str) -> _Rounds:
    plan = SpeedPlan(("fedavg",), ("resnet18",), batch=64, data="pacs", target=target, device="cuda", precision="bf16", threads=4)
    rounds = _Rounds(replace(one_case(plan).world, compiled=True), Path(folder))
    rounds.scored(RECIPE, 5)  # steps and passes are recorded
    return rounds


def trained(rounds: _Rounds) -> None:
    for _ in range(ROUNDS):
        rounds.train(RECIPE)


def shares() -> None:
    whole, extra = 0.0, 0.0
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            rounds = rounds_of(target, folder)
            taken = fastest({"trained": partial(trained, rounds), "scored": partial(rounds.scored, RECIPE, ROUNDS)}, 3, clock)
        whole, extra = whole + taken["scored"], extra + taken["scored"] - taken["trained"]
        told = ", ".join(f"{what} {seconds / ROUNDS * 1e3:.0f} ms" for what, seconds in taken.items())
        print(f"{target}: a round {told}; scoring {1 - taken['trained'] / taken['scored']:.1%}", flush=True)
    print(f"all four: scoring {extra / whole:.1%}")


def clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    if len(sys.argv) == 1:
        shares()
        return
    with tempfile.TemporaryDirectory() as folder:
        rounds = rounds_of(sys.argv[1], folder)
        rounds.score()
        timed("training", lambda: trained(rounds), ROUNDS)
        timed("scored behind", lambda: rounds.scored(RECIPE, ROUNDS), ROUNDS)
        ahead = LocalEngine.looks_ahead
        LocalEngine.looks_ahead = property(lambda _: False)  # type: ignore[assignment, method-assign]
        rounds.scored(RECIPE, 2)
        timed("scored at once", lambda: rounds.scored(RECIPE, ROUNDS), ROUNDS)
        LocalEngine.looks_ahead = ahead  # type: ignore[method-assign]
        model = Model(model=rounds._method.model(rounds._state))
        timed("passes alone, by the onlooker", lambda: rounds.engine.look_ahead(NOT_YET, model))
        began = time.perf_counter()
        rounds.engine.look_ahead(NOT_YET, model)
        print(f"launching them: {(time.perf_counter() - began) * 1e3:.1f} ms", flush=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        rounds.engine.score(NOT_YET, model)
        print(f"reading them, metrics: {(time.perf_counter() - began) * 1e3:.1f} ms", flush=True)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as kernels:
            rounds.engine.look_ahead(NOT_YET, model)
            torch.cuda.synchronize()
        print(kernels.key_averages().table(sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=70), flush=True)


if __name__ == "__main__":
    main()
