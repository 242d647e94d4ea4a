"""Training steps on a GPU, recorded once and replayed as CUDA graphs: one launch instead of hundreds.

A recording holds addresses, not names. It is used again only for the same code over the same networks, optimisers and tensors
(the pool keeps their storage from task to task) and for batches of the same shape; anything else is recorded anew or, where a
step holds something whose identity cannot be judged, run as it is. The result is the same to rounding.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unseen.device.compiler import import_the_compiler_later
from unseen.settings import Configured
from unseen.task import Task

__all__ = ["RECORDABLE", "Recorded", "RecordedPass", "StepGraphs", "recordable", "recorded_in", "renew", "set_rate"]

import_the_compiler_later()  # before the first optimiser

_FAST: dict[Any, dict[str, Any]] = {torch.optim.Adam: {"fused": True, "capturable": True}, torch.optim.SGD: {"fused": True}}
RECORDABLE: tuple[type[Optimizer], ...] = tuple(_FAST)  # the pool keeps them, their state begins with zeros

_WARM_UP = 3  # real steps, run as they are, before a recording: libraries set themselves up in them
_MOST = 32  # recordings kept; a method that makes new tensors in every task would fill the memory


@runtime_checkable
class Recorded(Protocol):
    """What a step may hold although it is new in every task, such as the client. A recording takes two for the same if these are equal."""

    @property
    def recorded_as(self) -> Hashable: ...


class StepGraphs:
    """The recordings of one pool."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._recordings: dict[Hashable, _Recording] = {}
        self._uses: dict[Hashable, int] = {}

    def replayed(self, step: Callable[..., Any], autocast: Callable[[], AbstractContextManager[Any]]) -> Callable[..., None]:
        """The step as a function that replays its recording once there is one."""
        identity = _identity(step)
        optimizers = [thing for thing in _things(step) if isinstance(thing, Optimizer)]

        def run(*batch: Tensor) -> None:
            key = None if identity is None else (identity, _rates(optimizers), tuple((t.shape, t.dtype, t.stride()) for t in batch))
            recording = self._recordings.get(key)
            if recording is None and key is not None and self._uses.get(key, 0) >= _WARM_UP and len(self._recordings) < _MOST:
                recording = self._recordings[key] = _Recording(step, batch, autocast, self._stream)
            if recording is not None:
                recording.replay(batch)
                return
            self._uses[key] = self._uses.get(key, 0) + 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream), autocast():
                step(*batch)
            torch.cuda.current_stream().wait_stream(self._stream)

        return run


class _Recording:
    def __init__(
        self, step: Callable[..., Any], batch: tuple[Tensor, ...], autocast: Callable[[], AbstractContextManager[Any]], stream: Any
    ) -> None:
        self._held = step  # its networks and tensors must live as long as their addresses are used
        self._inputs = [t.clone(memory_format=torch.preserve_format) for t in batch]
        self._parameters = [p for thing in _things(step) if isinstance(thing, nn.Module) for p in thing.parameters()]
        self._graph = torch.cuda.CUDAGraph()
        with recorded_in(self._graph, stream), autocast():
            step(*self._inputs)
        self._gradients = [p.grad for p in self._parameters]

    def replay(self, batch: tuple[Tensor, ...]) -> None:
        for held, given in zip(self._inputs, batch, strict=True):
            held.copy_(given)
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient  # for those who look at the last gradient after the loop


class RecordedPass:
    """A pass without gradients over batches of one shape, replayed on the stream that it was recorded for.

    A batch that is short is filled up with what lies there from before. What is given is there until the next batch.
    """

    def __init__(self, answer: Callable[[Tensor], Tensor], shape: tuple[int, ...], like: Tensor, stream: Any) -> None:
        self._held = answer  # its network must live as long as its addresses are used
        self._x = torch.zeros(shape, dtype=like.dtype, device=like.device).contiguous(memory_format=torch.channels_last)
        self._graph = torch.cuda.CUDAGraph()
        with recorded_in(self._graph, stream):
            self._said = answer(self._x)

    def __call__(self, x: Tensor) -> Tensor:
        self._x[: len(x)].copy_(x)
        self._graph.replay()
        return self._said[: len(x)]


def recordable(kind: Callable[..., Optimizer], settings: dict[str, Any], device: torch.device, scheduled: bool) -> dict[str, Any]:
    """The settings with which an optimiser's steps can be recorded. A rate that a schedule moves is a tensor: one recording does."""
    rate = {"lr": torch.tensor(settings["lr"], device=device)} if scheduled else {}
    return {**_FAST[kind], **settings, **rate}


def renew(optimizer: Optimizer, settings: dict[str, Any]) -> None:
    """Its settings as they are now: another task may have moved them, or the schedule."""
    for group in optimizer.param_groups:
        for name, value in settings.items():
            if name == "lr":
                set_rate(group, value)
            else:
                group[name] = value


def set_rate(group: dict[str, Any], lr: float) -> None:
    """Give an optimiser's group another learning rate: in place where it is a tensor, which recorded steps go on reading."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def _rates(optimizers: list[Optimizer]) -> tuple[Hashable, ...]:
    """The learning rates as a recording holds them: a number as it is, a tensor (of a schedule) by where it lies."""
    rates = (group["lr"] for optimizer in optimizers for group in optimizer.param_groups)
    return tuple(("at", rate.data_ptr()) if isinstance(rate, Tensor) else rate for rate in rates)


@contextmanager
def recorded_in(graph: torch.cuda.CUDAGraph, stream: Any) -> Iterator[None]:
    """What is launched within is recorded. Other threads go on meanwhile: one of them copies to the host what is written to the disk."""
    with _no_collection(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        yield


@contextmanager
def _no_collection() -> Iterator[None]:
    """The garbage collector may free an older recording, which a GPU does not allow while another is made."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _identity(step: Callable[..., Any]) -> Hashable | None:
    """What a recording depends on besides its batch; None where that cannot be told.

    Defaults of arguments are not looked into: a step may hold another tensor there in every task.
    """
    if step.__defaults__ or step.__kwdefaults__:
        return None
    parts: list[Hashable] = [step.__code__]
    for thing in _things(step):
        part = _identity_of(thing)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


def _things(step: Callable[..., Any]) -> list[Any]:
    """What the step's code refers to in the function around it."""
    cells = step.__closure__ or ()
    return [cell.cell_contents for cell in cells]


def _identity_of(thing: Any) -> Hashable | None:
    if isinstance(thing, Optimizer) and type(thing) not in RECORDABLE:
        return None  # it is new in every task: a recording of the last one would step in freed memory
    if isinstance(thing, nn.Module | Optimizer):
        return (type(thing).__name__, id(thing))
    if isinstance(thing, Tensor):
        return (thing.data_ptr(), thing.shape, thing.dtype)
    if isinstance(thing, Recorded):
        return (type(thing).__name__, thing.recorded_as)
    if isinstance(thing, Configured | Task | str | int | float | bool | None):
        return (type(thing).__name__, thing)
    if isinstance(thing, dict):
        return _identities([*thing.keys(), *thing.values()])
    if isinstance(thing, list | tuple):
        return _identities(list(thing))
    if isinstance(thing, types.FunctionType):
        return _identity(thing)
    return None


def _identities(things: list[Any]) -> Hashable | None:
    parts = [_identity_of(thing) for thing in things]
    return None if None in parts else tuple(parts)
