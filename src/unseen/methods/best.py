"""Best: the recipe that this project recommends. It is no paper's; its parts are, and what chose them is in its card.

Each client visits its images several times in a round. At every visit half of them are turned, magnified and shifted, and half are
restyled, drawn anew. The server takes the plain mean of the models. Where there are classes, labels are smoothed, and the model that is
deployed is the average over the rounds, in which the last ones count most. What leaves a client is its model and nothing else.

Where texture or colour is the sign, restyling can hurt; where thin lines or the angle are, moving can. The user's own sources can decide:
`unseen tune best --data ...` tries the variants below, each source in turn playing the unseen domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, RoundAverage, Surroundings, on_client
from unseen.parts.affine import Affine
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.parts.round_averages import Polynomial
from unseen.parts.views import Restyled
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["Best"]

_TEXTURES, _GENTLE = "randconv, repeated, mixing, texture", "amplitudes, tones"
_STYLES = {"textures": _TEXTURES, "gentle": _GENTLE, "all": f"{_TEXTURES}, {_GENTLE}"}


@dataclass(frozen=True)
class Best(Method[Aggregate]):
    """Half of the images moved, half restyled, at each of four visits; for classes labels smoothed, models averaged over rounds."""

    paper = "this project's recipe"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # no paper has it
    compiles = True
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {  # of which `unseen tune best` chooses one
        "textures": {"restyling": "textures"},
        "gentle": {"restyling": "gentle"},
        "all": {"restyling": "all"},
        "none": {"restyling": "none"},
        "unmoved": {"affine": "none"},
    }

    restyling: Literal["auto", "textures", "gentle", "all", "none"] = hyper(
        "auto", "textures: random convolutions; gentle: light, colour and amplitudes; auto: textures for classes, gentle for masks"
    )
    visits: int = hyper(4, "how often each image is visited where `epochs` and `steps` say once: so many times the work", low=1, high=32)
    share: float = hyper(0.5, "part of the images that are restyled, drawn anew at each visit", low=0.0, high=1.0)
    kinds: int = hyper(3, "styles drawn for a batch; a restyled image has one of them", low=1, high=32)
    average: RoundAverage | Literal["auto"] | None = hyper(  # type: ignore[assignment]  # `averaging` says what auto is
        "auto", "average of the global model over rounds, scored and deployed in its place; auto: polynomial, for classes"
    )
    local: Local = group(
        Local(affine=Affine(), smoothing=0.1, lr=3e-4),
        meanings={
            "affine": "turns, magnifies and shifts half of the images, and masks with them",
            "smoothing": "label smoothing, in classification alone",
        },
        without=["views"],
    )
    combining: Combining = group(Combining(Uniform()))

    def contradictions(self) -> Iterable[str]:
        yield from super().contradictions()
        fixed = [name for name in ("share", "kinds") if getattr(self, name) != getattr(type(self), name)]
        if self.restyling == "none" and fixed:
            yield f"{fixed[0]} is {getattr(self, fixed[0])}, but with restyling = none nothing is restyled; leave one of the two out"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if around.task == "segmentation" and self.local.smoothing not in (0.0, type(self)().local.smoothing):
            yield f"smoothing is {self.local.smoothing:g}, but labels are smoothed in classification only; leave it out"
        fitting: dict[str, Any] = {"smoothing": self.local_training(around.task).smoothing}
        yield from super(Best, replace(self, **fitting)).obstacles(around)

    def averaging(self, task: str) -> RoundAverage | None:
        if self.average == "auto":
            return Polynomial() if task == "classification" else None
        return self.average

    def local_training(self, task: str) -> Local:
        """The recipe, as it suits the task."""
        kind = self.restyling
        if kind == "auto":
            kind = "textures" if task == "classification" else "gentle"
        return replace(
            self.local,
            epochs=self.visits * self.local.epochs,
            steps=self.local.steps and self.visits * self.local.steps,
            views=None if kind == "none" else Restyled(share=self.share, kinds=self.kinds, styles=_STYLES[kind]),
            smoothing=self.local.smoothing if task == "classification" else 0.0,
        )

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        local = self.local_training(client.task.name)

        @client.step
        def step(x: Tensor, y: Tensor, *drawn: Tensor) -> None:
            local.descend(net, optimizer, lambda: local.loss(client.task, net, x, y, drawn))

        for batch in local.batches(client):  # half of the images moved, half restyled
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
