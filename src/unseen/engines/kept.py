"""What one run on a GPU leaves to the next in the same process: data there, and networks with their recorded and compiled steps.

A table has many runs over one data set, and most differ in their unseen domain or seed alone. Weights, optimisers and draws are each
run's own all the same: whatever is borrowed is written anew, as it is from client to client.
"""

from __future__ import annotations

from typing import Any

from unseen.client import Pool
from unseen.device.resident import SampleReader
from unseen.own_code import Own
from unseen.world import World

__all__ = ["Kept"]


class Kept:
    """What the last run left. What older runs left is gone, since a GPU's memory is finite."""

    def __init__(self) -> None:
        self._data: tuple[World, SampleReader] | None = None
        self._pools: dict[str, tuple[Any, Pool]] = {}  # by use: what they were made for, and they

    def reader(self, world: World) -> SampleReader:
        """Where samples of the world's domains are read from."""
        if self._data is None or not _same_data(self._data[0], world):
            self._data = None  # the last run's go first: a GPU may have no room for both
            self._data = world, SampleReader(world.dataset.domains, world.device)
        return self._data[1]

    def pool(self, use: str, world: World) -> Pool:
        """Networks of the world, for one use of them: two that go on at the same time need two."""
        made_for = _made_for(world)
        kept_for, pool = self._pools.pop(use, (None, None))
        if pool is None or made_for is None or made_for != kept_for:
            del pool
            pool = Pool(world.builders, world.device, world.compiled)
        self._pools[use] = made_for, pool
        return pool

    def clear(self) -> None:
        """Nothing is left: after a run that failed, whatever it was doing."""
        self._data = None
        self._pools.clear()


def _same_data(before: World, world: World) -> bool:
    """Whether they are the same objects in memory, read from the same device."""
    return before.dataset.domains == world.dataset.domains and before.device == world.device


def _made_for(world: World) -> Any:
    """What a pool depends on; None where that cannot be told, or where building one anew costs nothing."""
    experiment, data = world.experiment, world.dataset
    if world.device.type == "cpu" or isinstance(experiment.network, Own):
        return None
    around = data.task, data.channels, data.size, len(world.fold.sources), world.device, experiment.precision, world.compiled
    return world.network, experiment.method, around
