"""What a finished run's network says of images: the raw material of most figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unseen.data.domain import Domain, Samples
from unseen.deploy.finished import FinishedRun
from unseen.errors import BadInput
from unseen.randomness import generator
from unseen.runs.folder import read_checkpoint

__all__ = ["Seen", "drawn", "look", "normalised", "only", "server_state"]

_BATCH = 64


@dataclass(frozen=True)
class Seen:
    """Logits, features and labels of some images, in order."""

    logits: Tensor
    features: Tensor
    labels: Tensor


def drawn(domain: Domain, most: int, seed: int = 0) -> Samples:
    """At most so many samples of a domain, the same every time."""
    order = torch.randperm(len(domain), generator=generator(seed, "figure", domain.name))[:most].sort().values
    return Samples(((domain, order.numpy().astype(np.int64)),))


def normalised(run: FinishedRun, images: Tensor) -> Tensor:
    """Bytes as the network takes them."""
    return run.world.dataset.pixels.normalised(images.float() / 255)


def look(run: FinishedRun, samples: Samples) -> Seen:
    """Run the network over samples."""
    logits, features, labels = [], [], []
    with torch.inference_mode():
        for start in range(0, len(samples), _BATCH):
            images, y = samples.take(torch.arange(start, min(start + _BATCH, len(samples))))
            seen = run.net(normalised(run, images), full=True)
            logits.append(seen.logits)
            features.append(seen.features)
            labels.append(y)
    if not logits:
        raise BadInput("there are no samples to look at")
    return Seen(torch.cat(logits), torch.cat(features), torch.cat(labels))


def server_state(run: FinishedRun) -> object:
    """All that the server remembered after the last round, such as a generator."""
    file = run.folder / "checkpoint.safetensors"
    if not file.is_file():
        raise BadInput(f"{run.folder} has no {file.name}, where the method's other networks are")
    state: object = read_checkpoint(file, run.world.experiment.method.server_state).state
    return state


def only(run: FinishedRun, task: str, figure: str) -> None:
    """Refuse a run of the other task."""
    if run.world.dataset.task.name != task:
        raise BadInput(f"{figure} is for {task}; {run.folder} is a run of {run.world.dataset.task.name}")
