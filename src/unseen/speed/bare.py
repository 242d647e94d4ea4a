"""The bare training step: the network, its loss and its optimiser on made-up images that never change. Nothing else.

It is the ceiling that a round is held against, so it is as fast as the machine allows: on a GPU channels_last, a fused optimiser
and a replayed CUDA graph; on a CPU the memory format that suits the network.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Adam

from unseen.device.formats import fast_precision, memory_format
from unseen.device.graphs import no_collection
from unseen.randomness import seeded_block
from unseen.world import World

__all__ = ["Bare"]

_WARM_UP = 3  # steps before a recording


class Bare:
    """Steps of a world's task network on one made-up batch."""

    def __init__(self, world: World, batch: int) -> None:
        self._device, self._task, asked = world.device, world.dataset.task, world.experiment.precision
        with seeded_block(torch.device("cpu"), 0, "bare"):
            net, x = world.builders["task"](), torch.rand(batch, world.dataset.channels, *world.dataset.size)
            y = self._labels(batch, world.dataset.size)
        self._precision = fast_precision(net, self._device) if asked == "auto" else asked
        form = memory_format(net, self._device)
        self._net = net.to(self._device).to(memory_format=form).train()  # type: ignore[call-overload]
        self._x, self._y = x.to(self._device).contiguous(memory_format=form), y.to(self._device)
        on_gpu = self._device.type == "cuda"
        self._optimizer = Adam(self._net.parameters(), lr=1e-4, fused=on_gpu or None, capturable=on_gpu)
        self.step = self._recorded(self._whole) if on_gpu else self._whole
        self._without: Callable[[], None] | None = None

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def run_without_optimiser(self, steps: int) -> None:
        """The same without the optimiser's part, to tell how long that takes."""
        if self._without is None:
            self._without = self._recorded(self._gradients) if self._device.type == "cuda" else self._gradients
        for _ in range(steps):
            self._without()

    def _whole(self) -> None:
        self._gradients()
        self._optimizer.step()

    def _gradients(self) -> None:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bf16", cache_enabled=self._device.type == "cpu"):
            loss = self._task.loss(self._net(self._x), self._y)
        self._optimizer.zero_grad()
        loss.backward()

    def _recorded(self, step: Callable[[], None]) -> Callable[[], None]:
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with no_collection(), torch.cuda.graph(graph, stream=stream):
            step()
        replay: Callable[[], None] = graph.replay
        return replay

    def _labels(self, batch: int, size: tuple[int, int]) -> Tensor:
        outputs = self._task.outputs
        if self._task.name == "segmentation":
            return (torch.rand(batch, outputs, *size) > 0.5).to(torch.uint8)
        return torch.randint(outputs, (batch,))
