"""Batches made beside the steps before them, where there is a GPU: they are the same, and few of them wait at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unseen.streams import Ahead

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

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


def test_few_batches_wait_for_their_steps(data: Tensor, stream: torch.cuda.Stream) -> None:
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # what waited before counts as free from now on
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    what_steps_see(data, Ahead(stream).make, slow_step=SLOW)
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before < 10 * data[0].nbytes  # let go of, but not free yet, counts
