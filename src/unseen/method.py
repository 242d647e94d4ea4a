"""A method: what a client does, what travels, what the server does."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import nn

from unseen.client import Client
from unseen.codec import refuse_unstorable
from unseen.networks.base import TaskNet
from unseen.payload import Payload, bases
from unseen.settings import Configured, hyper, parts_in
from unseen.state import Part, State

__all__ = [
    "Cohort", "Fresh", "Global", "Method", "Refused", "Replies", "RoundAverage", "Shapes", "Surroundings", "on_client", "task_types",
]  # fmt: skip

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
    assert down is not None and up is not None
    bases(down, up)  # refuses declarations that do not fit together
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
        self.replied = 0  # how many usable answers were read so far

    def items(self) -> Iterator[tuple[str, U]]:
        for name, answer in self._stream:
            if isinstance(answer, Refused):
                self._missing[name] = answer.reason
            else:
                self.replied += 1
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
    def names(self) -> list[str]:
        """All clients of the run, whoever takes part in this round."""

    @property
    def taking_part(self) -> list[str]:
        """Those who take part in this round: all, unless the experiment draws some."""

    def ask(self, task: Task[D, U], down: D | Mapping[str, D]) -> Replies[U]:
        """Run `task` at every client that takes part in this round, or at those of them that `down` names."""

    def entries(self, part: Part = "whole", role: str = "task") -> list[str]:
        """The names of a part of a network's state: its parameters, its buffers, its head, its normalisation."""

    def rng(self, *where: str | int) -> torch.Generator:
        """The server's own randomness: from the run's seed, the round and the place of use, so that a resumed run draws the same."""


@dataclass(frozen=True)
class Shapes:
    """What a method may know of the data before it builds its networks."""

    outputs: int  # classes or structures
    channels: int
    size: tuple[int, int]
    features: int  # what the task network's head reads
    network: Callable[[int], TaskNet]  # a fresh task network with so many outputs: for a role that is another such network, or its head
    domains: int = 1  # source domains of the run


@dataclass(frozen=True)
class Surroundings:
    """What a method may look at before round 1, to say what stands in its way."""

    task: str
    shapes: Shapes
    net: nn.Module  # a task network, for looking at only
    training: Mapping[str, int]  # samples by client
    validation: Mapping[str, int]
    data: str = ""  # the data set's name
    domains: Mapping[str, int] = field(default_factory=dict)  # that each client holds training samples of


class RoundAverage(Configured, ABC):
    """Abstract. An average of the global model over rounds, which is scored and deployed while training goes on from the raw one."""

    @abstractmethod
    def keep(self, kept: list[State], model: State) -> list[State]:
        """What is kept after one more round."""

    @abstractmethod
    def model(self, kept: list[State]) -> State:
        """The average of what is kept."""


@dataclass(frozen=True, kw_only=True)
class Method(Configured, ABC, Generic[S]):
    """A federated algorithm: a frozen dataclass of hyper-parameters. `S` is all that the server remembers."""

    title: ClassVar[str] = ""  # as the paper writes its name, where that is not the class's
    paper: ClassVar[str] = ""  # citation
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    pooled: ClassVar[bool] = False  # needs several domains at a client: `--partition pooled`
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}  # fields that differ from the defaults
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # settings by name, of which `unseen tune METHOD` chooses one
    server_state: ClassVar[type] = type(None)
    compiles: ClassVar[bool] = False  # True where its training passes go through `Local.loss`, which a run on a GPU may compile

    average: RoundAverage | None = hyper(None, "average of the global model over rounds, scored and deployed in its place")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.title = cls.__dict__.get("title", cls.__name__)
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is Method:
                state = typing.get_args(base)[0]
                if not (isinstance(state, type) and dataclasses.is_dataclass(state)):
                    raise TypeError(f"{cls.__name__} keeps {state} at the server; expected Method[...] with a frozen dataclass")
                refuse_unstorable(state, state.__name__)
                cls.server_state = state

    def network(self, name: str) -> str:
        """The task network by name, as this method needs it: with a hidden layer, say (`with_option`). By default what its parts need."""
        for part in parts_in(self):
            name = part.network(name) if hasattr(part, "network") else name
        return name

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        """Networks beside the task network, by role (a generator, a pretrained encoder): by default those of the method's parts."""
        return {role: make for part in parts_in(self) if hasattr(part, "networks") for role, make in part.networks(shapes).items()}

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        """Why this method cannot run here, one sentence each, told to the user before round 1: by default what its parts say."""
        for part in parts_in(self):
            told: Iterable[str] = part.obstacles(around) if hasattr(part, "obstacles") else ()
            yield from told

    def needs_each(self) -> Iterable[str]:
        """Why the server must read single answers, one sentence each, where a secure sum would hide them: by default what its parts say.

        Without a sentence the server does nothing with the fields declared `mean` but average them.
        """
        for part in parts_in(self):
            told: Iterable[str] = part.needs_each() if hasattr(part, "needs_each") else ()
            yield from told

    def exposures(self) -> Mapping[str, float]:
        """What a site's policy may bound, by name: how much of an image a declared kind shows. By default what its parts say.

        `spectrum_reach` is the reach of the window of amplitudes, as a part of each side; `images_per_spectrum` how many images a
        spectrum is the mean of; `images_per_direction` how many a gradient that leaves beside a model rests on (1: a mini-batch's).
        """
        return {name: value for part in parts_in(self) if hasattr(part, "exposures") for name, value in part.exposures().items()}

    def public_sets(self) -> Iterable[str]:
        """Data sets beside the clients' own whose images every client reads (`client.public`), by name. A site's policy may refuse them."""
        return ()

    def start(self, fresh: Fresh, clients: Cohort) -> S:
        """Before round 1. `fresh(role)` gives the initial weights of that network. By default the state is made of the initial model."""
        state: S = self.server_state(fresh("task"))
        return state

    @abstractmethod
    def round(self, state: S, clients: Cohort) -> S:
        """One communication round."""

    def notes(self, state: S) -> Mapping[str, Any]:
        """What the record of the round that led to `state` should say beside scores and traffic: numbers and text as JSON holds them.

        The text under `warning` is also shown to the user, once. By default it is what the method's parts say.
        """
        return {key: value for part in parts_in(self) if hasattr(part, "notes") for key, value in part.notes(state).items()}

    def model(self, state: S) -> State:
        """What is deployed and scored: the weights of the task network. By default the state's `model`, or that of its part."""
        holder = state if hasattr(state, "model") else next(part for part in vars(state).values() if hasattr(part, "model"))
        model: State = holder.model
        return model

    def averaging(self, task: str) -> RoundAverage | None:
        """The average over rounds, of a run with this task."""
        return self.average

    def local_training(self, task: str) -> Any:
        """The `Local` that a client trains by in a run with this task; None where a method has none. By default the method's field."""
        return getattr(self, "local", None)

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
