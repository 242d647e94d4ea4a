"""The bare training step: a network, its loss and its optimiser on made-up images that never change. Nothing else.

It is as fast as the machine allows: on a GPU channels_last, a fused optimiser and a replayed CUDA graph, compiled if asked; on a CPU
the memory format that suits the network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Adam

from unseen.device.formats import fast_precision, memory_format
from unseen.device.graphs import recorded_in
from unseen.randomness import seeded_block
from unseen.task import Task

__all__ = ["BareStep", "made_up_labels"]

_WARM_UP = 3  # steps before a recording


class BareStep:
    """Steps of a network on one made-up batch of this shape. `through` wraps its pass: `compiled`, say."""

    def __init__(
        self,
        net: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        shape: tuple[int, ...],
        labels: Tensor,
        device: torch.device,
        precision: str,
        through: Callable[[nn.Module], Callable[[Tensor], Tensor]] = lambda net: net,
    ) -> None:
        self._device, self._loss = device, loss
        self._precision = fast_precision(net, device) if precision == "auto" else precision
        form = memory_format(net, device)
        with seeded_block(torch.device("cpu"), 0, "bare"):
            self._x = torch.rand(shape).to(device).contiguous(memory_format=form)
        self._net, self._y = net.to(device).to(memory_format=form).train(), labels.to(device)  # type: ignore[call-overload]
        self._pass = through(self._net)
        on_gpu = device.type == "cuda"
        self._optimizer = Adam(self._net.parameters(), lr=1e-4, fused=on_gpu or None, capturable=on_gpu)
        self.step = self._recorded(self._whole) if on_gpu else self._whole
        self._without: Callable[[], None] | None = None

    def operations(self) -> int:
        """Floating-point operations of one step: those of convolutions and matrix products, forwards and backwards."""
        from unseen.device.operations import CountedOperations  # takes a part of PyTorch that no run needs

        with CountedOperations() as counted:
            self._gradients(self._net)
        return int(counted.total)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def run_without_optimiser(self, steps: int) -> None:
        """The same without the optimiser's part, to tell how long that takes."""
        if self._without is None:
            gradients = partial(self._gradients, self._pass)
            self._without = self._recorded(gradients) if self._device.type == "cuda" else gradients
        for _ in range(steps):
            self._without()

    def _whole(self) -> None:
        self._gradients(self._pass)
        self._optimizer.step()

    def _gradients(self, through: Callable[[Tensor], Tensor]) -> None:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bf16", cache_enabled=self._device.type == "cpu"):
            loss = self._loss(through(self._x), self._y)
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
        with recorded_in(graph, stream):
            step()
        replay: Callable[[], None] = graph.replay
        return replay


def made_up_labels(task: Task, batch: int, size: tuple[int, int]) -> Tensor:
    """Random labels for so many images."""
    with seeded_block(torch.device("cpu"), 0, "labels"):
        if task.name == "segmentation":
            return (torch.rand(batch, task.outputs, *size) > 0.5).to(torch.uint8)
        return torch.randint(task.outputs, (batch,))
