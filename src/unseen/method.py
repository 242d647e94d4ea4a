"""A method: what a client does, what travels, what the server does."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import nn

from unseen.client import Client
from unseen.codec import refuse_unstorable
from unseen.payload import Payload
from unseen.settings import Configured
from unseen.state import State

__all__ = ["Cohort", "Fresh", "Global", "Method", "Refused", "Replies", "Shapes", "Surroundings", "on_client", "task_types"]

D = TypeVar("D", bound=Payload)
U = TypeVar("U", bound=Payload)
S = TypeVar("S")
Owner = TypeVar("Owner")
Fresh = Callable[[str], State]
Task = Callable[[D, Client], U]


def on_client(task: Callable[[Owner, D, Client], U]) -> Callable[[Owner, D, Client], U]:
    """Mark a method as the client's half. What it takes and returns is read from its signature, and must be a Payload."""
    hints = typing.get_type_hints(task)
    down, up = hints.get([*inspect.signature(task).parameters][1]), hints.get("return")
    for side, kind in (("takes", down), ("returns", up)):
        if not (isinstance(kind, type) and issubclass(kind, Payload)):
            raise TypeError(f"{task.__qualname__} {side} {kind}; what crosses the line must be declared as a Payload")
    task.__payloads__ = (down, up)  # type: ignore[attr-defined]
    return task


def task_types(task: Callable[..., Any]) -> tuple[type[Payload], type[Payload]]:
    """What a client task takes and returns."""
    types: tuple[type[Payload], type[Payload]] | None = getattr(task, "__payloads__", None)
    if types is None:
        raise TypeError(f"{getattr(task, '__qualname__', task)} is not marked with @on_client, so no client can be asked for it")
    return types


@dataclass(frozen=True)
class Refused:
    """Why a client's answer does not count."""

    reason: str


class Replies(Generic[U]):
    """The answers to one question, by client in name order, readable once as they come in.

    Reading them one by one keeps one answer in memory; `all()` keeps every one. `missing` says who gave no usable answer.
    """

    def __init__(self, stream: Iterator[tuple[str, U | Refused]]) -> None:
        self._stream = stream
        self._done = False
        self._missing: dict[str, str] = {}

    def items(self) -> Iterator[tuple[str, U]]:
        for name, answer in self._stream:
            if isinstance(answer, Refused):
                self._missing[name] = answer.reason
            else:
                yield name, answer
        self._done = True

    def values(self) -> Iterator[U]:
        return (answer for _, answer in self.items())

    def all(self) -> dict[str, U]:
        return dict(self.items())

    @property
    def missing(self) -> dict[str, str]:
        """Who did not answer, and why; known once the answers were read."""
        if not self._done:
            raise RuntimeError("read the replies before asking who is missing")
        return self._missing

    def drain(self) -> None:
        """Let the rest come in without keeping it."""
        for _ in self.items():
            pass


class Cohort(Protocol):
    """The clients, as the server sees them."""

    @property
    def names(self) -> list[str]: ...

    def ask(self, task: Task[D, U], down: D | Mapping[str, D]) -> Replies[U]:
        """Run `task` at every client, or at those named in `down`."""


@dataclass(frozen=True)
class Shapes:
    """What a method may know of the data before it builds its networks."""

    outputs: int  # classes or structures
    channels: int
    size: tuple[int, int]
    features: int  # what the task network's head reads


@dataclass(frozen=True)
class Surroundings:
    """What a method may look at before round 1, to say what stands in its way."""

    task: str
    shapes: Shapes
    net: nn.Module  # a task network, for looking at only
    training: Mapping[str, int]  # samples by client
    validation: Mapping[str, int]


class Method(Configured, ABC, Generic[S]):
    """A federated algorithm: a frozen dataclass of hyper-parameters. `S` is all that the server remembers."""

    title: ClassVar[str] = ""  # as the paper writes its name
    paper: ClassVar[str] = ""  # citation
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}  # fields that differ from the defaults
    server_state: ClassVar[type] = type(None)

    def __init_subclass__(cls) -> None:
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is Method:
                state = typing.get_args(base)[0]
                if not (isinstance(state, type) and dataclasses.is_dataclass(state)):
                    raise TypeError(f"{cls.__name__} keeps {state} at the server; expected Method[...] with a frozen dataclass")
                refuse_unstorable(state, state.__name__)
                cls.server_state = state

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        """Networks beside the task network, by role (a generator, a discriminator)."""
        return {}

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        """Why this method cannot run here, one sentence each, told to the user before round 1."""
        return ()

    @abstractmethod
    def start(self, fresh: Fresh, clients: Cohort) -> S:
        """Before round 1. `fresh(role)` gives the initial weights of that network."""

    @abstractmethod
    def round(self, state: S, clients: Cohort) -> S:
        """One communication round."""

    def notes(self, state: S) -> Mapping[str, Any]:
        """What the record of the round that led to `state` should say beside scores and traffic: numbers and text as JSON holds them.

        The text under `warning` is also shown to the user, once.
        """
        return {}

    def model(self, state: S) -> State:
        """What is deployed and scored: the weights of the task network."""
        model: State = state.model  # type: ignore[attr-defined]
        return model

    def local_model(self, model: State, client: Client) -> State | None:
        """The model that this client would use itself: the global one with what the client keeps (FedBN's norms). None: the global one.

        It is asked for at the client, after every round, and scored there; neither it nor what the client keeps leaves. An unseen domain
        keeps nothing and is not asked.
        """
        return None


@dataclass(frozen=True)
class Global:
    """The server's state in methods that keep the model and nothing else."""

    model: State
