"""A model is looked at while the next round trains: on a GPU, by a network and on a stream of the onlooker's own.

All validation parts and unseen domains go through in one row of whole batches, by a recorded pass. Nothing waits here; what the passes
gave is read when their scores are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import accumulate

import torch
from torch import Tensor

from unseen.client import Client
from unseen.data.augment import RECIPES
from unseen.data.domain import Holding, Samples
from unseen.device.graphs import RecordedPass
from unseen.engines.kept import Kept
from unseen.own_code import Own
from unseen.randomness import generator, seeded_block
from unseen.scoring import Passes, scoring_batch
from unseen.state import State
from unseen.world import World

__all__ = ["Onlooker"]

_NAME = "onlooker"


class Onlooker:
    """Makes a model's passes over every client's validation part and every unseen domain."""

    def __init__(self, world: World, kept: Kept) -> None:
        self._world, self._reader, self._pool = world, kept.reader(world), kept.pool(_NAME, world)
        self._parts = {name: holding.validation for name, holding in {**world.holdings, **world.evaluators}.items()}
        everything = Samples(tuple(part for samples in self._parts.values() for part in samples.parts))
        self._all = Holding(_NAME, _NAME, Samples(()), everything)
        self._pool.stream = None  # its batches are made where they are looked at
        self._stream = torch.cuda.Stream(world.device) if world.device.type == "cuda" else None
        self._recorded: RecordedPass | None = None
        self._looked = 0

    def look(self, round_number: int, model: State) -> Callable[[], dict[str, Passes]]:
        """Begin to look at a model, which must stay as it is until the passes are asked for. They can be read once they are given."""
        with ExitStack() as stack:
            stack.enter_context(seeded_block(self._world.device, self._world.experiment.seed, _NAME, round_number))
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.current_stream(self._world.device))
                stack.enter_context(torch.cuda.stream(self._stream))
            passes = self._passes(self._client(round_number), model)  # whose memory is this stream's
            done = self._stream.record_event() if self._stream is not None else None

        def read() -> dict[str, Passes]:
            if done is not None:
                torch.cuda.current_stream(self._world.device).wait_event(done)
            return passes

        return read

    def _client(self, round_number: int) -> Client:
        """One who holds all that is scored."""
        return Client(
            self._all,
            task=self._world.dataset.task,
            pool=self._pool,
            reader=self._reader,
            rng=generator(self._world.experiment.seed, _NAME, round_number),
            pixels=self._world.dataset.pixels,
            augment=RECIPES["none"],
            precision=self._world.experiment.precision,
        )

    def _passes(self, client: Client, model: State) -> dict[str, Passes]:
        net, size = client.build("task", model).eval(), scoring_batch(client)
        meters = {name: client.task.meter() for name in self._parts}
        ends = list(accumulate(len(samples) for samples in self._parts.values()))
        at, names = 0, list(self._parts)
        with torch.no_grad(), client.autocast():
            for x, y in client.validation(size):
                logits, first = self._said(client, net, x, size), at
                at += len(x)
                for name, end in zip(names, ends, strict=True):
                    low, high = max(first, end - len(self._parts[name])), min(at, end)
                    if low < high:
                        meters[name].update(logits[low - first : high - first], y[low - first : high - first])
        return {name: Passes(meter, len(self._parts[name])) for name, meter in meters.items()}

    def _said(self, client: Client, net: torch.nn.Module, x: Tensor, size: int) -> Tensor:
        """The network's answers. The first batches run as they are, in which libraries set themselves up; then the pass is recorded."""
        if self._stream is None or isinstance(self._world.experiment.network, Own):  # a user's own may do what cannot be recorded
            return client.predict(net, x, size)
        if self._recorded is None:
            self._looked += 1
            if self._looked <= 2:
                return client.predict(net, x, size)
            self._recorded = RecordedPass(lambda batch: client.predict(net, batch, size), (size, *x.shape[1:]), x, self._stream)
        return self._recorded(x)
