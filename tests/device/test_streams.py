"""Batches made beside the steps before them: few of them wait at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch

from unseen.device.streams import Ahead


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


def test_eight_steps_wait_for_the_device_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step runs and eight wait, each with its batch; the next batch is made when the first step is done."""
    current, steps, made = ThreadStream(), threading.Semaphore(0), list[int]()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", ThreadEvent)

    def program() -> None:
        ahead = Ahead(ThreadStream())
        for number in range(13):
            ahead.make(lambda number=number: made.append(number) or (Batch(), Batch()))  # type: ignore[arg-type, misc, return-value]
            current.do(steps.acquire)

    thread = threading.Thread(target=program)
    thread.start()
    for done in range(5):
        until(lambda done=done: len(made) >= 9 + done)  # type: ignore[misc]
        time.sleep(0.02)
        assert len(made) == min(13, 9 + done)
        steps.release()
    steps.release(13)
    thread.join(10)
    assert made == list(range(13))


def until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not so():
        assert time.monotonic() < end
        time.sleep(0.001)
