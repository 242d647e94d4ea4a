"""Batches made beside the steps before them: where there is a GPU, they are the same; anywhere, few of them wait at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from unseen.device.streams import Ahead

needs_gpu = pytest.mark.gpu

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


@needs_gpu
@pytest.mark.parametrize("slow", ["slow_batch", "slow_step"])
def test_steps_see_what_they_would_see_on_one_stream(data: Tensor, stream: torch.cuda.Stream, slow: str) -> None:
    expected = what_steps_see(data, lambda batch: batch())
    assert torch.equal(what_steps_see(data, Ahead(stream).make, **{slow: SLOW}), expected)


@needs_gpu
def test_the_program_does_not_run_far_ahead_of_the_steps(data: Tensor, stream: torch.cuda.Stream) -> None:
    ahead, ends = Ahead(stream), list[torch.cuda.Event]()
    for number in range(BATCHES):
        ahead.make(lambda number=number: (data[number] + 1, data[number, 0]))
        assert all(end.query() for end in ends[: max(0, number - 3)]), "before a batch is made, all but the last three steps are done"
        torch.cuda._sleep(SLOW)
        ends.append(torch.cuda.current_stream().record_event())


class ThreadStream:
    """A queue of work that a thread does in order while the program goes on, as a device does."""

    def __init__(self) -> None:
        self.device, self._work = torch.device("cuda"), queue.SimpleQueue[Callable[[], object]]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._work.get()()

    def do(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def record_event(self, event: ThreadEvent) -> None:
        self.do(event.set)

    def wait_stream(self, other: ThreadStream) -> None:
        event = ThreadEvent()
        other.record_event(event)
        self.do(event.wait)


class ThreadEvent(threading.Event):
    def __init__(self, blocking: bool = True) -> None:
        super().__init__()

    def synchronize(self) -> None:
        self.wait()


class Batch:
    def record_stream(self, stream: ThreadStream) -> None:
        """Its memory is Python's."""


def test_three_steps_wait_for_the_device_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step runs and three wait, each with its batch; the next batch is made when the first step is done."""
    current, steps, made = ThreadStream(), threading.Semaphore(0), list[int]()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", ThreadEvent)

    def program() -> None:
        ahead = Ahead(ThreadStream())
        for number in range(8):
            ahead.make(lambda number=number: made.append(number) or (Batch(), Batch()))  # type: ignore[arg-type, misc, return-value]
            current.do(steps.acquire)

    thread = threading.Thread(target=program)
    thread.start()
    for done in range(5):
        until(lambda done=done: len(made) >= 4 + done)  # type: ignore[misc]
        time.sleep(0.02)
        assert len(made) == min(8, 4 + done)
        steps.release()
    steps.release(8)
    thread.join(10)
    assert made == list(range(8))


def until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not so():
        assert time.monotonic() < end
        time.sleep(0.001)
