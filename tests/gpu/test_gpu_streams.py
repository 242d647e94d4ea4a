"""Batches made on a stream of their own: the steps see the same, and the program does not run far ahead of them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from time import sleep

import pytest
import torch
from torch import Tensor

from unseen.device.graphs import recorded_in
from unseen.device.streams import Ahead

pytestmark = pytest.mark.gpu

BATCHES, ROWS, NUMBERS = 40, 64, 2**14
SLOW = 5_000_000  # cycles: milliseconds, in which dozens of batches could be made
Make = Callable[[Callable[[], tuple[Tensor, Tensor]]], tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def data() -> Tensor:
    return torch.arange(BATCHES * ROWS * NUMBERS, device="cuda").remainder(1013).float().view(BATCHES, ROWS, NUMBERS)


@pytest.fixture(scope="module")
def stream(data: Tensor) -> torch.cuda.Stream:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cat([data] * 4)  # room to be used again: asked for more, a GPU waits for all its streams and hides what is tested
    return stream


def what_steps_see(data: Tensor, make: Make, slow_batch: int = 0, slow_step: int = 0) -> Tensor:
    """A number for every batch, as the step that it is for reads it."""
    shift = torch.zeros((), device="cuda")
    seen = torch.zeros(BATCHES, dtype=torch.float64, device="cuda")
    torch.cuda._sleep(SLOW)
    shift += 3  # what a task's batches are made from is ready only now
    for number in range(BATCHES):

        def batch(number: int = number) -> tuple[Tensor, Tensor]:
            torch.cuda._sleep(slow_batch)
            return (data[number] + shift) * 2, torch.full((ROWS,), number, device="cuda")

        x, y = make(batch)
        torch.cuda._sleep(slow_step)
        seen[number] = x.sum(dtype=torch.float64) + y.sum()
        del x, y  # their memory may be used again
    return seen


@pytest.mark.parametrize("slow", ["slow_batch", "slow_step"])
def test_steps_see_what_they_would_see_on_one_stream(data: Tensor, stream: torch.cuda.Stream, slow: str) -> None:
    expected = what_steps_see(data, lambda batch: batch())
    assert torch.equal(what_steps_see(data, Ahead(stream).make, **{slow: SLOW}), expected)


def test_the_program_does_not_run_far_ahead_of_the_steps(data: Tensor, stream: torch.cuda.Stream) -> None:
    ahead, ends = Ahead(stream), list[torch.cuda.Event]()
    for number in range(BATCHES):
        ahead.make(lambda number=number: (data[number] + 1, data[number, 0]))
        assert all(end.query() for end in ends[: max(0, number - 8)]), "before a batch is made, all but the last eight steps are done"
        torch.cuda._sleep(SLOW)
        ends.append(torch.cuda.current_stream().record_event())


def test_another_thread_copies_to_the_host_while_steps_are_recorded(data: Tensor) -> None:
    """As the thread does that writes memories to the disk."""
    failed: list[BaseException] = []
    over = Event()

    def copy() -> None:
        try:
            while not over.is_set():
                data[:1].cpu()
        except BaseException as error:
            failed.append(error)

    stream, x = torch.cuda.Stream(), torch.ones(64, device="cuda")
    copying = Thread(target=copy)
    copying.start()
    try:
        for times in range(2, 12):
            graph = torch.cuda.CUDAGraph()
            with recorded_in(graph, stream):
                y = x * times
                sleep(0.02)  # copies are made meanwhile
            graph.replay()
            assert torch.equal(y.cpu(), torch.full((64,), float(times)))
    finally:
        over.set()
        copying.join()
    assert not failed, failed[0]
