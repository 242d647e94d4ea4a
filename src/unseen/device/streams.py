"""Streams beside the one that trains: batches are made while steps still run, answers are checked while the next client works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Ahead", "Made", "OneBehind", "once_done"]

T = TypeVar("T")
Made = TypeVar("Made", bound=Tensor | tuple[Tensor, ...])
_STEPS = 8  # that may still wait to run when the next batch is made: enough for the host to begin the next task, few enough for the memory


class Ahead:
    """Makes one task's batches on `stream`, each beside the last few steps on the current one.

    What a batch is made from must be there when the task's first one is asked for.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._asked: deque[Any] = deque(maxlen=_STEPS)  # where the current stream stood when the last batches were asked for

    def make(self, batch: Callable[[], Made]) -> Made:
        """The batch, for use on the current stream. The values equal those made on the current stream."""
        current = torch.cuda.current_stream(self._stream.device)
        if not self._asked:
            self._stream.wait_stream(current)
        elif len(self._asked) == _STEPS:
            self._asked[0].synchronize()  # the program fills the queue of steps faster than they run, and each keeps its batch
        asked = torch.cuda.Event(blocking=True)
        current.record_event(asked)
        self._asked.append(asked)
        with torch.cuda.stream(self._stream):
            made = batch()
        return self._handed(made, current)

    def go_on(self, make: Callable[[], Made]) -> Made:
        """What is made of the last batch, likewise. It reads that batch, and what was there before the task's first one."""
        with torch.cuda.stream(self._stream):
            made = make()
        return self._handed(made, torch.cuda.current_stream(self._stream.device))

    def _handed(self, made: Made, current: Any) -> Made:
        current.wait_stream(self._stream)
        for tensor in (made,) if isinstance(made, Tensor) else made:
            tensor.record_stream(current)  # freed here, its memory is used again only when the step that reads it is done
        return made


class OneBehind:
    """On a GPU each of several results is looked at when the next is under way, on a stream of its own: the device goes on meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def one_behind(self, results: Iterable[T]) -> Iterator[tuple[T, AbstractContextManager[None]]]:
        """Every result, and the context to look at it in; on a CPU as they come."""
        if self._stream is None:
            yield from ((result, nullcontext()) for result in results)
            return
        before: tuple[T, AbstractContextManager[None]] | None = None
        for result in results:
            there = self._beside(torch.cuda.current_stream(self._stream.device).record_event())
            if before is not None:
                yield before
            before = result, there
        if before is not None:
            yield before

    @contextmanager
    def _beside(self, there: Any) -> Iterator[None]:
        """Whoever reads numbers here waits until the result is there, not until what was asked for after it is done."""
        assert self._stream is not None
        self._stream.wait_event(there)
        with torch.cuda.stream(self._stream):
            yield


def once_done(act: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """`act` for another thread: it finds what was asked of the GPU up to now done, and waits for nothing that is asked later."""
    asked = torch.cuda.current_stream(device).record_event()

    def then() -> None:
        stream = torch.cuda.Stream(device)
        stream.wait_event(asked)
        with torch.cuda.stream(stream):
            act()

    return then
