"""Seconds from a command to its first trained batch: a process of its own begins a round, and ends after the first step.

`python -m unseen.speed.start` reads what to measure from its standard input and writes when it got how far to its standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unseen.speed.measuring import SpeedPlan

__all__ = ["seconds_to_first_batch"]

_LONGEST = 300.0  # seconds


class _FirstStepDone(BaseException):
    """Nothing between a client and the command catches it."""


def seconds_to_first_batch(plan: SpeedPlan, network: str) -> dict[str, float] | None:
    """Seconds since the command until torch was there, the data and networks, and one batch trained with FedAvg; None where it failed."""
    asked = json.dumps(asdict(replace(plan, methods=("fedavg",), networks=(network,), settings={}, beside={})))
    began = time.time()
    with subprocess.Popen(
        [sys.executable, "-m", "unseen.speed.start"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            told, _ = child.communicate(asked, timeout=_LONGEST)
        except subprocess.TimeoutExpired:
            child.kill()
            return None
    if child.returncode:
        return None
    return {what: when - began for what, when in json.loads(told.splitlines()[-1]).items()}


def main() -> None:
    times: dict[str, float] = {"python": time.time()}
    import torch

    times["torch"] = time.time()
    from unseen.client import Client
    from unseen.engines.local import LocalEngine
    from unseen.engines.tasks import TaskRunner
    from unseen.speed.measuring import SpeedPlan, one_case

    times["imports"] = time.time()
    told = json.load(sys.stdin)
    world = one_case(SpeedPlan(**{**told, "methods": tuple(told["methods"]), "networks": tuple(told["networks"])})).world
    times["world"] = time.time()

    class FirstStep(Client):
        def step(self, fn: Any) -> Any:
            inner = super().step(fn)

            def step(*batch: Any) -> None:
                times["batch"] = time.time()
                inner(*batch)
                if world.device.type == "cuda":
                    torch.cuda.synchronize()
                times["step"] = time.time()
                raise _FirstStepDone

            return step

    with tempfile.TemporaryDirectory(prefix="unseen-") as folder, suppress(_FirstStepDone):
        runner = TaskRunner(world)
        times["data"] = time.time()
        runner.client = FirstStep
        engine, method = LocalEngine(world, Path(folder), runner=runner), world.experiment.method
        cohort = engine.cohort(0)
        method.round(method.start(world.fresh, cohort), engine.cohort(1))
    print(json.dumps(times))


if __name__ == "__main__":
    main()
