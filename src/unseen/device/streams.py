"""On a GPU, batches are made on a stream of their own while the steps before them still run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Ahead"]

_STEPS = 3  # that may still wait to run when the next batch is made: enough to keep a GPU busy, few enough for its memory


class Ahead:
    """Makes one task's batches on `stream`, each beside the last few steps on the current one.

    What a batch is made from must be there when the task's first one is asked for.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._asked: deque[Any] = deque(maxlen=_STEPS)  # where the current stream stood when the last batches were asked for

    def make(self, batch: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The batch, for use on the current stream. The values equal those made on the current stream."""
        current = torch.cuda.current_stream(self._stream.device)
        if len(self._asked) < _STEPS:
            self._stream.wait_stream(current)
        else:
            self._asked[0].synchronize()  # the program fills the queue of steps faster than they run, and each keeps its batch
        asked = torch.cuda.Event(blocking=True)
        current.record_event(asked)
        self._asked.append(asked)
        with torch.cuda.stream(self._stream):
            made = batch()
        current.wait_stream(self._stream)
        for tensor in made:
            tensor.record_stream(current)  # freed here, its memory is used again only when the step that reads it is done
        return made
