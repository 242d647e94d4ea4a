"""Best: the recipe that this project recommends. It is no paper's; its parts are, and what chose them is in its card.

Each client trains on its images and on restyled copies of them, with smoothed labels where there are classes; the server takes the
plain mean of the models. What leaves a client is its model and nothing else.

A copy's style is decided on the user's own sources: `unseen tune best --data ...` tries the variants below, each source in turn playing
the unseen domain. Without it the first one is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, Surroundings, on_client
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.parts.views import RandConv
from unseen.settings import group, parts_in
from unseen.state import state_of

__all__ = ["Best"]


@dataclass(frozen=True)
class Best(Method[Aggregate]):
    """Restyled copies, smoothed labels, the plain mean."""

    paper = "this project's recipe"
    compiles = True
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {  # of which `unseen tune best` chooses one; the first is the default
        "textures": {},
        "gentle": {"views": {"name": "randconv", "styles": "amplitudes, tones"}},
        "none": {"views": None},
    }

    local: Local = group(
        Local(smoothing=0.1, views=RandConv(), lr=3e-4), meanings={"smoothing": "label smoothing, in classification alone"}
    )
    combining: Combining = group(Combining(Uniform()))

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        for part in parts_in(self):
            wanted = self.training(around.task) if part is self.local else part
            yield from wanted.obstacles(around) if hasattr(wanted, "obstacles") else ()

    def training(self, task: str) -> Local:
        """Masks have no labels to smooth."""
        return self.local if task == "classification" else replace(self.local, smoothing=0.0)

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        local = self.training(client.task.name)
        net, optimizer = local.begin(client, down.model)

        @client.step
        def step(x: Tensor, y: Tensor, *drawn: Tensor) -> None:
            local.descend(net, optimizer, lambda: local.loss(client.task, net, x, y, drawn))

        for batch in local.batches(client):  # the images and their restyled copies
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
