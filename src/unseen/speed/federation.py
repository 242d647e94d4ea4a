"""`unseen speed --federation`: what an exchange between sites costs beyond their work, with real processes on this machine.

Three sites join a federation of this moment, in a temporary folder. A round sends a model down to each of them and brings it back, plain or
in a secure sum. The work alone is the same round in this process: the sites' training, one after the other.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.engines.local import LocalEngine
from unseen.errors import BadInput
from unseen.experiment import Experiment, read_experiment
from unseen.federation.folder.carrier import FolderCarrier
from unseen.federation.kits import Federation, init
from unseen.federation.server.exchange import Carrier, Terms
from unseen.federation.server.proposing import federate
from unseen.world import build_world

__all__ = ["ExchangeMeasured", "measure_exchange"]

SITES, TARGET = ("plain", "textured", "inverted"), "outline"
_POLICY = 'studies = "by-rule"\nfewest_images = 1\nmost_orders = 100\n'
_WEIGHTS_A_WIDTH = 90.6  # of small_cnn: weights over the square of its width, for wide ones
Say = Callable[[str], None]


@dataclass(frozen=True)
class ExchangeMeasured:
    """One way to the sites and back."""

    carrier: str
    megabytes: float  # of the model
    work: float  # seconds of the three sites' training, one after the other, in one process
    plain: float  # seconds of a round
    summed: float  # seconds of a round in a secure sum

    @property
    def beyond(self) -> float:
        """Seconds of a plain round beyond the work. Sites train at the same time: what is taken off is the work shared among the cores."""
        return max(0.0, self.plain - self.work / min(len(SITES), os.cpu_count() or 1))


def measure_exchange(carrier: str, megabytes: float, rounds: int, say: Say) -> ExchangeMeasured:
    """`carrier` is `folder` or `flower`. The median of so many rounds, after one that does not count."""
    if not megabytes > 0 or rounds < 1:
        raise BadInput(f"{megabytes:g} MB and {rounds} rounds; expected a size above 0 and a round at least")
    width = max(2, round((megabytes * 1e6 / 4 / _WEIGHTS_A_WIDTH) ** 0.5))
    experiment = read_experiment(
        {"method": "fedsb", "set": {"budget": 1, "batch": 4}, "data": "styled-digits", "target": TARGET, "device": "cpu",
         "network": f"small_cnn:width={width}", "rounds": rounds + 1}
    )  # fmt: skip
    say("the work alone, in this process")
    work, size = _work(experiment, rounds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unseen-speed-")))
        federation = init(folder / "federation", "localhost", [*SITES, TARGET], port=_free_port())
        by = stack.enter_context(_running(federation, folder, carrier, say))
        plain, summed = (_exchanges(experiment, federation, by, folder / f"run-{sums}", sums, rounds, say) for sums in (False, True))
    return ExchangeMeasured(carrier, size / 1e6, work, plain, summed)


def _work(experiment: Experiment, rounds: int) -> tuple[float, int]:
    """Seconds of a round in this process, and bytes of the model."""
    method, world = experiment.method, build_world(experiment)
    with tempfile.TemporaryDirectory(prefix="unseen-speed-") as folder:
        engine = LocalEngine(world, Path(folder))
        cohort = engine.cohort(0)
        state: Any = method.start(world.fresh, cohort)
        cohort.close()
        seconds = [_round(method, state, engine, number) for number in range(1, rounds + 2)]
    return statistics.median(seconds[1:]), sum(tensor.nbytes for tensor in method.model(state).values())


def _round(method: Any, state: Any, engine: Any, number: int) -> float:
    began, cohort = time.perf_counter(), engine.cohort(number)
    method.round(state, cohort)
    cohort.close()
    if cohort.missing:
        raise BadInput(f"the sites did not all answer: {cohort.missing}")
    return time.perf_counter() - began


def _exchanges(experiment: Experiment, federation: Federation, carrier: Carrier, out: Path, sums: bool, rounds: int, say: Say) -> float:
    out.mkdir()
    say(f"{'summed' if sums else 'plain'} rounds between the sites")
    run = federate(experiment, federation, carrier, Terms(minimum_clients=len(SITES)), say, sums)
    engine, method = run.engine(out), experiment.method
    cohort = engine.cohort(0)
    state = method.start(run.world.fresh, cohort)
    cohort.close()
    return statistics.median([_round(method, state, engine, number) for number in range(1, rounds + 2)][1:])


@contextmanager
def _running(federation: Federation, folder: Path, carrier: str, say: Say) -> Iterator[Carrier]:
    """The processes of the federation, and the server's way to them."""
    (folder / "policy.toml").write_text(_POLICY)
    way = "flower"
    if carrier == "folder":
        (folder / "share").mkdir()
        way = f"folder:{folder / 'share'}"
    environment = {**os.environ, "UNSEEN_STATE": str(folder / "state")}  # it spends nothing of this user's
    processes = []

    def start(*words: object) -> None:
        with (folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "unseen", *map(str, words)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment))  # noqa: S603 -- this program itself

    try:
        if carrier == "flower":
            start("serve", "--dir", federation.path, "--host", "127.0.0.1")
        for name in (*SITES, TARGET):
            role = ["--evaluate-only"] if name == TARGET else []
            data = ["--data", "styled-digits", "--domain", name, "--policy", "policy.toml", "--device", "cpu", "--carrier", way]
            start("join", federation.path / "kits" / f"{name}.kit", "--dir", f"site-{name}", *data, *role)
        with closing(_carrier(federation, folder, carrier, say)) as by:
            yield by
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _carrier(federation: Federation, folder: Path, carrier: str, say: Say) -> Any:
    if carrier == "folder":
        return FolderCarrier(federation, folder / "share", say)
    from unseen.federation.flower.link import FlowerCarrier  # Flower is an extra

    return FlowerCarrier(federation, say=say)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
