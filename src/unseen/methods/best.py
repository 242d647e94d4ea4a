"""Best: the recipe that this project recommends. It is no paper's; its parts are, and what chose them is in its card.

Each client trains on its images and on restyled copies of them, is asked for one answer to all of them, and smooths its labels where there
are classes; the server takes the plain mean of the models. What leaves a client is its model and nothing else.

Where texture or colour is the sign, restyling can hurt. So the kind of restyling can be decided on the user's own sources:
`unseen tune best --data ...` tries the variants below, each source in turn playing the unseen domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, Surroundings, on_client
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.parts.views import RandConv
from unseen.settings import group, hyper, parts_in
from unseen.state import state_of

__all__ = ["Best"]

_TEXTURES, _GENTLE = "randconv, repeated, mixing, texture", "amplitudes, tones"
_STYLES = {"textures": _TEXTURES, "gentle": _GENTLE, "all": f"{_TEXTURES}, {_GENTLE}"}
_BY_TASK = {"classification": "textures", "segmentation": "gentle"}
_AGREEMENT = {"classification": 0.1, "segmentation": 0.0}  # it is smallest where all are sure: a mask that is empty everywhere can stay so


@dataclass(frozen=True)
class Best(Method[Aggregate]):
    """Restyled copies, smoothed labels, the plain mean."""

    paper = "this project's recipe"
    compiles = True
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {  # of which `unseen tune best` chooses one
        "textures": {"restyling": "textures"},
        "gentle": {"restyling": "gentle"},
        "all": {"restyling": "all"},
        "none": {"restyling": "none"},
    }

    restyling: Literal["auto", "textures", "gentle", "all", "none"] = hyper(
        "auto", "textures: random convolutions; gentle: light, colour and amplitudes; auto: textures for classes, gentle for masks"
    )
    copies: int = hyper(3, "restyled copies of each image", symbol="J", low=1, high=32)
    agreement: float | None = hyper(
        None, "weight of the loss that asks for one answer to all copies; none: 0.1 for classes, 0 for masks", symbol="beta", low=0.0
    )
    local: Local = group(
        Local(smoothing=0.1, lr=3e-4), meanings={"smoothing": "label smoothing, in classification alone"}, without=["views"]
    )
    combining: Combining = group(Combining(Uniform()))

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        for part in parts_in(self):
            wanted = self.training(around.task) if part is self.local else part
            yield from wanted.obstacles(around) if hasattr(wanted, "obstacles") else ()

    def training(self, task: str) -> Local:
        """The recipe: restyled copies as suits the task, and smoothed labels where there are classes."""
        kind = _BY_TASK[task] if self.restyling == "auto" else self.restyling
        weight = _AGREEMENT[task] if self.agreement is None else self.agreement
        views = None if kind == "none" else RandConv(copies=self.copies, weight=weight, styles=_STYLES[kind])
        return replace(self.local, views=views, smoothing=self.local.smoothing if task == "classification" else 0.0)

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        local = self.training(client.task.name)
        net, optimizer = local.begin(client, down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *drawn: Tensor) -> None:
            local.descend(net, optimizer, lambda: local.loss(client.task, net, x, y, drawn))

        for batch in local.batches(client):  # images and their copies
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
