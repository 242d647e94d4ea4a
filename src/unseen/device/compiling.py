"""`torch.compile` where it pays: the passes of a task network over whole batches, compiled once and kept on the disk.

It fuses what lies between convolutions. That made ResNet-18 a quarter faster on an H200 and MobileNetV2 no faster, and took 20 s the
first time. So `auto` measures both ways once for a network, batch and device, keeps what it found beside the compiled code, and
compiles where a run wins back more than it waits. Which passes are compiled never depends on a clock: whole batches are, and the last
one of a pass, which is smaller, never is. So a run that is resumed comes to the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unseen.device.bare_step import BareStep
from unseen.files import write_atomically

__all__ = ["Compiled", "Work", "compiling_pays", "keep_compiled_in", "logits_of"]

_GAIN = 0.3  # of a step's time: more was never seen
_START = 30.0  # seconds that a network takes to compile when nothing is kept
_STEPS = 20  # timed of either kind


class Compiled:
    """A network's pass, compiled for the batches that its pool calls whole."""

    def __init__(self, net: nn.Module, whole: Callable[[], bool]) -> None:
        self._net, self._whole = net, whole
        self._compiled = compiled(net)

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self._compiled(x) if self._whole() else self._net(x)
        return logits


def compiled(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network's pass, compiled for each shape by itself. No kernel is chosen by a clock where that would move a result."""
    import torch._inductor.config as inductor  # takes a second

    torch._dynamo.config.recompile_limit = 64  # beyond it passes would no longer be compiled, and nobody would be told
    torch._dynamo.config.skip_nnmodule_hook_guards = False  # a pass that was compiled before styles were mixed is not one that mixes them
    steady: dict[str, Any] = {"deterministic": True} if hasattr(inductor, "deterministic") else {}
    return torch.compile(net, dynamic=False, options=steady)


def logits_of(net: nn.Module, x: Tensor) -> Tensor:
    """What the network says of a batch: by its compiled pass where its pool has one."""
    passing: Compiled | None = getattr(net, "compiled_pass", None)
    logits: Tensor = net(x) if passing is None else passing(x)
    return logits


def keep_compiled_in(folder: Path) -> None:
    """Where compiled code is kept from run to run, unless the user named a place."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


@dataclass(frozen=True)
class Work:
    """What a run is going to do, as far as compiling is concerned."""

    network: str
    make: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    x: tuple[int, ...]  # the shape of a whole batch, views and all
    labels: Tensor
    precision: str
    steps: int  # whole batches in the run


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a recorded step, of a compiled and recorded one, and of the start when compiled code is kept."""

    plain: float
    compiled: float
    start: float


def compiling_pays(work: Work, device: torch.device, folder: Path, say: Callable[[str], None], measures: bool = True) -> bool:
    """Whether the run ends sooner with compiled passes, by what was measured here before, or is measured now if the run is long enough."""
    about = [torch.cuda.get_device_name(device), torch.__version__, work.network, list(work.x), list(work.labels.shape), work.precision]
    file = folder / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"
    found = _kept(file)
    if found is None:
        if not measures:
            return False
        plain = _seconds(BareStep(work.make(), work.loss, work.x, work.labels, device, work.precision))
        if work.steps * plain * _GAIN < _START:
            return False
        say(f"measuring whether {work.network} is faster compiled; this is done once")
        first, start = _compiled_seconds(work, device)
        found = StepTimes(plain, first, start)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"about": about, **asdict(found)}, indent=1) + "\n")
    return work.steps * (found.plain - found.compiled) > found.start


def _compiled_seconds(work: Work, device: torch.device) -> tuple[float, float]:
    """Seconds of a compiled step, and of its start when the code is kept: it is made twice, and the second time counts."""
    for _ in range(2):
        torch._dynamo.reset()
        began = time.perf_counter()
        step = BareStep(work.make(), work.loss, work.x, work.labels, device, work.precision, compiled)
        start = time.perf_counter() - began
    return _seconds(step), start


def _seconds(step: BareStep) -> float:
    step.run(_STEPS // 2)
    torch.cuda.synchronize()
    began = time.perf_counter()
    step.run(_STEPS)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / _STEPS


def _kept(file: Path) -> StepTimes | None:
    try:
        told: dict[str, Any] = json.loads(file.read_text())
        return StepTimes(float(told["plain"]), float(told["compiled"]), float(told["start"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never measured, or a file that was cut off: it is measured again
