"""The bare training step of a world's task network: the ceiling that a round is held against."""

from __future__ import annotations

import torch

from unseen.device.bare_step import BareStep, made_up_labels
from unseen.device.compiling import compiled
from unseen.randomness import seeded_block
from unseen.world import World

__all__ = ["bare_step", "rows_of"]


def rows_of(world: World, batch: int) -> int:
    """How many images a step sees for a batch of so many: their views count too."""
    local = getattr(world.experiment.method, "local", None)
    return batch * (1 + getattr(getattr(local, "views", None), "copies", 0))


def bare_step(world: World, batch: int, through_compiler: bool = False) -> BareStep:
    """Steps on batches of so many images, and as many again for each of their views; compiled if asked."""
    batch = rows_of(world, batch)
    task, dataset = world.dataset.task, world.dataset
    with seeded_block(torch.device("cpu"), 0, "bare"):
        net = world.builders["task"]()
    shape, labels = (batch, dataset.channels, *dataset.size), made_up_labels(task, batch, dataset.size)
    through = {"through": compiled} if through_compiler else {}
    return BareStep(net, task.loss, shape, labels, world.device, world.experiment.precision, **through)
