"""The bare training step of a world's task network: the ceiling that a round is held against."""

from __future__ import annotations

import torch

from unseen.device.bare_step import BareStep, made_up_labels
from unseen.device.compiling import compiled
from unseen.randomness import seeded_block
from unseen.world import World

__all__ = ["bare_step"]


def bare_step(world: World, batch: int, through_compiler: bool = False) -> BareStep:
    """Steps on batches of so many images, compiled if asked."""
    task, dataset = world.dataset.task, world.dataset
    with seeded_block(torch.device("cpu"), 0, "bare"):
        net = world.builders["task"]()
    shape, labels = (batch, dataset.channels, *dataset.size), made_up_labels(task, batch, dataset.size)
    through = {"through": compiled} if through_compiler else {}
    return BareStep(net, task.loss, shape, labels, world.device, world.experiment.precision, **through)
