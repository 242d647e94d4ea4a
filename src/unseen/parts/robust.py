"""Against a client that sends a strange model: averages that it cannot move far, and a bound on how far its model may have gone.

The median and the trimmed mean read every model before they give one, so the server holds all models of a round in memory. Clients
weigh the same in them, whatever their samples, as in Yin et al. (2018): a number that a client tells of itself must not be its influence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from unseen.method import Cohort
from unseen.ops.robust import change_norm, coordinate_median, scaled_change, trimmed_mean
from unseen.parts.aggregation import Aggregate, Aggregation, Updates, aggregate_in
from unseen.settings import Configured, hyper
from unseen.state import State

__all__ = ["Bounded", "Median", "NormBound", "Trimmed"]


@dataclass(frozen=True)
class Median(Aggregation):
    """The coordinate-wise median, buffers too: fewer than half of the clients move no entry beyond the others' values.

    All models of a round are in memory at once. Of two clients it is the plain mean, and protects from nothing.
    """

    name = "median"

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        models = {client: update.model for client, update in updates}
        return Aggregate(self.merged(models, {}), before.round + 1, dict.fromkeys(models, 1.0))

    def merged(self, states: Mapping[str, State], weights: Mapping[str, float]) -> State:
        return coordinate_median([*states.values()])


@dataclass(frozen=True)
class Trimmed(Aggregation):
    """The coordinate-wise trimmed mean, buffers too: of every entry the smallest and the largest values are left out.

    So many clients as are cut at one end move no entry beyond the others' values. All models of a round are in memory at once.
    """

    name = "trimmed"

    trim: float = hyper(0.34, "share of the clients cut at each end, rounded down; 0.34: one of three", symbol="beta", low=0.0, high=0.49)

    def combine(self, clients: Cohort, updates: Updates, before: Aggregate) -> Aggregate:
        models = {client: update.model for client, update in updates}
        return Aggregate(self.merged(models, {}), before.round + 1, dict.fromkeys(models, 1.0))

    def merged(self, states: Mapping[str, State], weights: Mapping[str, float]) -> State:
        return trimmed_mean([*states.values()], self.cut(len(states)))

    def cut(self, clients: int) -> int:
        """How many clients are left out at each end."""
        return math.floor(self.trim * clients + 1e-9)  # 0.29 * 100 is 28.999999999999996

    def notes(self, state: Any) -> dict[str, Any]:
        clients = len(aggregate_in(state).weights)
        notes: dict[str, Any] = {"trimmed": self.cut(clients)}
        if self.trim > 0 and not notes["trimmed"]:
            notes["warning"] = f"trim = {self.trim:g} of {clients} clients leaves nobody out, so this is the plain mean; raise trim"
        return notes


@dataclass(frozen=True)
class NormBound(Configured):
    """How far a client's model may be from the one it started from: a longer change is scaled down to the bound.

    The length is the L2 norm over all parameters. Buffers are scaled along with them but do not count, and networks beside the task
    network (a generator) are not bounded. With `times` the bound comes from the round's own norms, and all models of the round are in
    memory at once; it withstands fewer than half of the clients.
    """

    name: ClassVar[str] = "norm"

    largest: float | None = hyper(None, "the longest change; none: `times` the median of the round's", low=0.0)
    times: float = hyper(2.0, "where largest is none: how many times the median of all changes of the round", low=0.0)

    def contradictions(self) -> Iterable[str]:
        if self.largest == 0 or (self.largest is None and self.times == 0):
            yield "the bound of a change is 0, so that no model would ever change; give a larger one"

    def needs_each(self) -> Iterable[str]:
        yield "bound scales the change of each client's model, and so reads each"

    def bounded(self, updates: Updates, before: State, parameters: list[str], norms: dict[str, float]) -> Iterator[tuple[str, Any]]:
        """The updates with their models inside the bound; their norms before that are put into `norms`."""
        if self.largest is not None:
            for client, update in updates:
                norms[client] = change_norm(update.model, before, parameters)
                yield client, Bounded.of(update, before, norms[client], self.largest)
            return
        waiting = dict(updates)
        norms |= {client: change_norm(update.model, before, parameters) for client, update in waiting.items()}
        largest = self.times * statistics.median(norms.values()) if norms else 0.0
        for client, update in waiting.items():
            yield client, Bounded.of(update, before, norms[client], largest)

    def notes(self, state: Any) -> dict[str, Any]:
        norms = aggregate_in(state).numbers.get("norms", {})
        largest = self.largest if self.largest is not None else self.times * statistics.median(norms.values()) if norms else 0.0
        return {"norms": norms, "bounded": sum(norm > largest for norm in norms.values())}


class Bounded:
    """A client's upload whose model has gone no farther than the bound; everything else of it is as it was sent."""

    def __init__(self, update: Any, model: State) -> None:
        self._update, self.model = update, model

    @classmethod
    def of(cls, update: Any, before: State, norm: float, largest: float) -> Any:
        return update if norm <= largest else cls(update, scaled_change(update.model, before, largest / norm))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)
