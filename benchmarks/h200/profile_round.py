"""Where a GPU's time goes in a round: how long it works, when it waits and between which kernels, and which kernels take longest.

Needs a GPU. Made-up images of 224 pixels; three clients whose last batch is incomplete, as real ones are:
    python benchmarks/h200/profile_round.py fedavg,compiled fedgca,batch=32,images=403 elcfs,batch=32,images=403
A case is a method, `compiled` if its passes are to be compiled, and settings; `images` is what each client holds,
`network` may be unet, `side` is in pixels.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile

from unseen import settings
from unseen.cli.options import settings_from
from unseen.data.cache import cache_root
from unseen.device.compiling import keep_compiled_in
from unseen.experiment import Experiment
from unseen.methods import method_class
from unseen.parts import PARTS
from unseen.settings import settings_of
from unseen.speed.measuring import _ONE_PASS, _Rounds, fastest
from unseen.speed.synthetic import TARGET, synthetic
from unseen.world import build_world

DEVICE: Literal["cuda", "cpu"] = "cuda"
SIDE, WARM_UP, REPEATS = 224, 5, 3
LONG = 40e-6  # seconds without a kernel that are told
SHOWN = 12


def clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def rounds_of(case: str, folder: str) -> tuple[_Rounds, int]:
    name, *given = case.split(",")
    compiled = "compiled" in given
    values: dict[str, Any] = settings_from([one for one in given if one != "compiled"])
    images, network, side = values.pop("images", 1843), values.pop("network", "resnet18"), values.pop("side", SIDE)
    cls = method_class(name)
    own = {s.name for s in settings_of(cls)}
    plain = {key: value for key, value in {"batch": 64, "epochs": 1, **_ONE_PASS.get(name, {})}.items() if key in own}
    method = settings.build(cls, {**plain, **values}, PARTS)
    data = synthetic(images, 16, side, segmentation=network == "unet")
    experiment = Experiment(method, data=data, target=TARGET, augment="none", network=network, device=DEVICE, precision="bf16", threads=4)
    return _Rounds(replace(build_world(experiment), compiled=compiled), Path(folder)), 3 * images


def spans(events: list[Any]) -> list[tuple[int, int, str]]:
    """What ran on the GPU: from, to (nanoseconds) and the name, by beginning."""
    ran = [(e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in events if e.device_type() == torch.autograd.DeviceType.CUDA]
    return sorted(one for one in ran if one[1] > one[0])


def tell(ran: list[tuple[int, int, str]]) -> None:
    first, end, last, busy = ran[0][0], ran[0][0], "", 0
    gaps: list[tuple[float, float, str, str]] = []
    by_name: dict[str, list[int]] = defaultdict(list)
    for begins, ends, name in ran:
        by_name[name].append(ends - begins)
        if begins > end:
            gaps.append(((begins - end) / 1e9, (end - first) / 1e6, last, name))
        if ends > end:
            busy += ends - max(begins, end)
            end, last = ends, name
    whole = (end - first) / 1e6
    idle = sum(gap for gap, *_ in gaps) * 1e3
    long = [gap for gap in gaps if gap[0] > LONG]
    print(f"  profiled: {whole:.1f} ms from the first kernel to the last, busy {busy / 1e6:.1f}, idle {idle:.1f} in {len(gaps)} gaps;")
    print(f"  {len(long)} gaps over {LONG * 1e6:.0f} us hold {sum(g for g, *_ in long) * 1e3:.1f} ms; the longest:")
    for gap, at, before, after in sorted(long, reverse=True)[:SHOWN]:
        print(f"    {gap * 1e3:6.2f} ms at {at:7.1f} ms  {before[:48]} -> {after[:48]}")
    print("  kernels:")
    for name, took in sorted(by_name.items(), key=lambda one: -sum(one[1]))[:SHOWN]:
        print(f"    {sum(took) / 1e6:7.2f} ms {len(took):6d} x {name[:90]}")


def profiled(case: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rounds, images = rounds_of(case, folder)
        for _ in range(WARM_UP):
            rounds.train("none")
        taken = fastest({"round": lambda: rounds.train("none")}, REPEATS, clock, warm_up=0)["round"]
        print(f"{case}: {taken * 1e3:.1f} ms a round, {images / taken:,.0f} images a second", flush=True)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            rounds.train("none")
            torch.cuda.synchronize()
        tell(spans(seen.profiler.kineto_results.events()))
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            rounds.train("none")
            torch.cuda.synchronize()
        top = sorted(seen.key_averages(), key=lambda one: -one.self_cpu_time_total)[:SHOWN]
        print("  host: " + "; ".join(f"{one.key} {one.self_cpu_time_total / 1e3:.1f} ms in {one.count}" for one in top), flush=True)
        rounds.close()


def main() -> None:
    keep_compiled_in(cache_root() / "compiled")
    for case in sys.argv[1:]:
        try:
            profiled(case)
        except Exception:
            traceback.print_exc()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
