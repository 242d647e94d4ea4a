"""Batches made beside the steps before them: where there is a GPU, they are the same; anywhere, few of them wait at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from unseen.device.streams import Ahead

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

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


class Steps:
    """Stands for CUDA's streams and events, and notes which of the places marked on the current stream the program has waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.marks: list[SimpleNamespace] = []
        self.waited: list[int] = []
        self.device = torch.device("cuda")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "Event", lambda blocking: SimpleNamespace(synchronize=lambda: None))

    def record_event(self, event: SimpleNamespace) -> None:
        number = len(self.marks)
        self.marks.append(event)
        event.synchronize = lambda: self.waited.append(number)

    def wait_stream(self, other: object) -> None:
        assert other is self


def test_the_program_runs_three_steps_ahead_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    ahead, freed_later = Ahead(steps), SimpleNamespace(record_stream=lambda stream: None)
    for number in range(8):
        ahead.make(lambda: (freed_later, freed_later))  # type: ignore[arg-type, return-value]
        assert steps.waited == list(range(number - 2)), "before a batch is made, the steps up to the third last batch are done"
