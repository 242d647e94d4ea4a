"""What grows with what: processor seconds and peak memory against clients, image size, model size, FedDAG's history, ELCFS's bank and
the cross-assessment of models.

    python benchmarks/growth.py                     # all curves: benchmarks/results/growth.txt and growth.svg
    python benchmarks/growth.py --curves clients --short --out growth-short

Every point is measured in a process of its own, with one thread, in processor time (other programs hardly touch that); memory is what
the process held at most, data included, beyond what the smallest setting needed. The exponent is the slope of the upper half of a
curve on logarithmic axes: 1 is linear. Nothing may be steeper than linear but cross-assessment without a cap, where each of n clients
looks at n - 1 models; with `evaluators = c` it is linear. ELCFS's exchange gives every client every other's spectra, so in the number of
clients it is quadratic by design of the method; in the number of images, which is shown here, it is linear.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unseen import DomainDataset, Experiment, FedAvg
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place, TaskRunner
from unseen.figures.drawing import COLOURS, save, sheet
from unseen.method import Method
from unseen.methods import ELCFS, FedDAG
from unseen.networks import build_network
from unseen.ops.contribution import Scored
from unseen.parts.aggregation import CEA, SHA, Aggregate
from unseen.speed.synthetic import TARGET, synthetic
from unseen.world import build_world

STEEPEST = 1.1  # of what counts as linear: a slope from a few points is not exact
FLOOR = 8.0  # megabytes: what the allocator keeps or gives back by chance
NETWORK = "small_cnn:width=8"


class Runner(TaskRunner):
    """Adds up the processor seconds of each client task by its name."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.seconds: dict[str, float] = {}

    def run(self, task: Any, down: Any, name: str, place: Place, memory: Any) -> Any:
        began = time.process_time()
        answer = super().run(task, down, name, place, memory)
        self.seconds[task.__name__] = self.seconds.get(task.__name__, 0.0) + time.process_time() - began
        return answer


class Federation:
    """A method over made-up data, ready for rounds."""

    def __init__(self, method: Method[Any], data: DomainDataset, folder: Path, network: str = NETWORK, **around: Any) -> None:
        torch.set_num_threads(1)
        self.world = build_world(Experiment(method, data, TARGET, network=network, device="cpu", augment="none", **around))
        self.runner, self.method, self.number = Runner(self.world), method, 0
        self.engine = LocalEngine(self.world, folder, runner=self.runner)

    def start(self) -> Any:
        cohort = self.engine.cohort(0)
        state = self.method.start(self.world.fresh, cohort)
        cohort.close()
        return state

    def round(self, state: Any) -> Any:
        self.number += 1
        cohort = self.engine.cohort(self.number)
        state = self.method.round(state, cohort)
        cohort.close()
        return state


def round_of(federation: Federation) -> float:
    """Seconds of a round: the cheapest of three."""
    state, best = federation.start(), math.inf
    for _ in range(3):
        began = time.process_time()
        state = federation.round(state)
        best = min(best, time.process_time() - began)
    return best


def clients(number: int, folder: Path) -> float:
    data = synthetic(8 * number, 4 * number, 16, sources=1)
    return round_of(Federation(FedAvg(steps=1, batch=8), data, folder, partition="split", clients=number))


def image_size(side: int, folder: Path) -> float:
    return round_of(Federation(FedAvg(steps=2, batch=8), synthetic(16, 4, side), folder))


def model_size(width: int, folder: Path) -> float:
    return round_of(Federation(FedAvg(steps=2, batch=8), synthetic(16, 4, 16), folder, network=f"small_cnn:width={width}"))


def history(k: int, folder: Path) -> float:
    """The server's part of a round of FedDAG when each client's history is as long as it gets."""
    method = FedDAG(steps=1, batch=4, warmup=0, width=4, aggregation=SHA(k=k))
    federation = Federation(method, synthetic(8, 4, 16), folder, network="small_cnn:width=64")
    state = federation.round(federation.start())
    model = state.teachers.model
    kept = {c: [Scored({n: v.clone() for n, v in model.items()}, 1e6 - i) for i in range(4 * k)] for c in federation.world.clients}
    full = type(state)(Aggregate(model, 1, history=kept), state.generator, state.student)
    federation.runner.seconds.clear()
    began = time.process_time()
    federation.round(full)
    return time.process_time() - began - sum(federation.runner.seconds.values())


def bank_round(images: int, folder: Path) -> float:
    return round_of(_elcfs(images, folder))


def bank_exchange(images: int, folder: Path) -> float:
    federation = _elcfs(images, folder)
    began = time.process_time()
    federation.start()
    return time.process_time() - began


def _elcfs(images: int, folder: Path) -> Federation:
    return Federation(ELCFS(steps=2, batch=4, alpha=0.2), synthetic(images, 4, 16), folder)


def assessment(number: int, folder: Path, evaluators: int | None = None) -> float:
    """All that clients spend on looking at each other's models in a round."""
    method = FedAvg(steps=1, batch=4, aggregation=CEA(evaluators=evaluators))
    federation = Federation(method, synthetic(8 * number, 8 * number, 16, sources=1), folder, partition="split", clients=number)
    state, best = federation.start(), math.inf
    for _ in range(3):
        federation.runner.seconds.clear()
        state = federation.round(state)
        best = min(best, federation.runner.seconds["assess"])
    return best


def capped_assessment(number: int, folder: Path) -> float:
    return assessment(number, folder, evaluators=4)


def parameters(width: int) -> float:
    return float(sum(p.numel() for p in build_network(f"small_cnn:width={width}", outputs=7, channels=3, size=(16, 16)).parameters()))


@dataclass(frozen=True)
class Curve:
    title: str
    work: Callable[[int, Path], float]
    along: tuple[int, ...]
    axis: str
    measure: Callable[[int], float] = float  # from the setting to what is on the axis
    bound: float = STEEPEST


CURVES: dict[str, Curve] = {
    "clients": Curve("FedAvg round", clients, (3, 10, 30, 100, 300, 1000), "clients"),
    "size": Curve("FedAvg round", image_size, (16, 32, 64, 128, 256), "pixels of an image", lambda side: float(side * side)),
    "model": Curve("FedAvg round", model_size, (8, 16, 32, 64, 128), "weights of the network", parameters),
    "history": Curve("FedDAG, server's part of a round", history, (1, 2, 4, 8, 16, 32), "history length k"),
    "bank": Curve("ELCFS round, equal steps", bank_round, (500, 1000, 2000, 4000, 8000, 16000), "images of a client"),
    "exchange": Curve("ELCFS exchange before round 1", bank_exchange, (500, 1000, 2000, 4000, 8000, 16000), "images of a client"),
    "assessment": Curve("cross-assessment, all assess", assessment, (4, 8, 16, 32, 64), "clients", bound=2 * STEEPEST),
    "capped": Curve("cross-assessment, evaluators = 4", capped_assessment, (8, 16, 32, 64, 128, 256), "clients"),
}


def measured(work: Callable[[int, Path], float], setting: int, smallest: int) -> tuple[float, float]:
    """Seconds of one point, and megabytes beyond the smallest, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other, redirect_stdout(io.StringIO()):
            work(smallest, Path(other))  # libraries set themselves up
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            seconds = work(setting, Path(folder))
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(writing, json.dumps([seconds, max(most - before, 0) / 1024]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        raise SystemExit(f"the measurement of {work.__name__} at {setting} failed; see above")
    seconds, megabytes = json.loads(text)
    return float(seconds), float(megabytes)


def exponent(along: list[float], values: list[float], floor: float) -> float:
    """The slope of the upper half on logarithmic axes, by least squares; 0 where it never leaves the floor."""
    half = max(2, (len(along) + 1) // 2)
    xs, ys = ([math.log(max(v, least)) for v in series[-half:]] for series, least in ((along, 1e-9), (values, floor)))
    x_mean, y_mean = sum(xs) / half, sum(ys) / half
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", nargs="+", choices=[*CURVES], default=[*CURVES])
    parser.add_argument("--short", action="store_true", help="leave out each curve's last point")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/growth", help="file without its ending")
    given = parser.parse_args()
    lines = [
        f"Processor seconds, one thread; megabytes beyond what the smallest setting needs, data included; torch {torch.__version__}",
        "",
    ]
    figure, axes = sheet(2, math.ceil(len(given.curves) / 2))
    panels = [panel for row in axes for panel in row]
    verdicts = []
    for name, panel in zip(given.curves, panels, strict=False):
        curve = CURVES[name]
        settings = curve.along[:-1] if given.short else curve.along
        points = []
        for setting in settings:
            points.append(measured(curve.work, setting, settings[0]))
            print(f"{name} {setting}: {points[-1][0]:.3f} s, {points[-1][1]:.0f} MB", file=sys.stderr, flush=True)
        xs, seconds, memory = [curve.measure(s) for s in settings], [p[0] for p in points], [p[1] for p in points]
        slopes = [exponent(xs, seconds, 1e-4), exponent([x - xs[0] for x in xs], memory, FLOOR)]
        lines += [f"{curve.title}, by {curve.axis}", f"{curve.axis:>24} {'seconds':>10} {'MB':>8}"]
        lines += [f"{x:>24,.0f} {s:>10.3f} {m:>8.1f}" for x, s, m in zip(xs, seconds, memory, strict=True)]
        within = max(slopes) <= curve.bound and slopes[1] <= STEEPEST
        lines += [f"{'exponent':>24} {slopes[0]:>10.2f} {slopes[1]:>8.2f}", ""]
        wanted = "at most linear" if curve.bound == STEEPEST else "at most quadratic in time, linear in memory"
        verdicts.append(
            f"{curve.title + ', by ' + curve.axis:<55} {slopes[0]:>5.2f} {slopes[1]:>6.2f}  {wanted}: {'yes' if within else 'NO'}"
        )
        panel.loglog(xs, seconds, "o-", color=COLOURS[0], label=f"seconds, exponent {slopes[0]:.2f}")
        panel.loglog(xs, [max(m, FLOOR) for m in memory], "s--", color=COLOURS[1], label=f"MB, exponent {slopes[1]:.2f}")
        panel.set_title(curve.title, fontsize=9)
        panel.set_xlabel(curve.axis, fontsize=8)
        panel.xaxis.set_minor_formatter("")  # numbers between the powers of ten run into each other
        panel.legend(fontsize=7)
    for panel in panels[len(given.curves) :]:
        panel.set_axis_off()
    lines += ["exponents of time and memory, upper half of each curve (1 is linear)", *verdicts]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    save(figure, given.out.with_suffix(".svg"))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
