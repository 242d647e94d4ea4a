"""What an answer says of a network's weights: where training began, and which way it went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.leakage.playing import Drawn, GivenAnswer
from unseen.payload import bases, declarations
from unseen.state import State

__all__ = ["WeightChange", "changes_in", "head_names"]


@dataclass(frozen=True, eq=False)
class WeightChange:
    """How the task network's weights went in one answer, as far as the answer tells."""

    what: str  # TASK.FIELD, and the round
    before: State  # the whole network, as in the question
    after: State  # the same after the change
    downhill: State  # parameters alone: what was added to them
    drawn: Drawn
    uphill_of_last_batch: bool = False  # between two versions of one model that left together, as SHA's step uphill is
    round: int = 1

    @property
    def empty(self) -> bool:
        return not any(bool(t.any()) for t in self.downhill.values())


def changes_in(given: GivenAnswer, parameters: list[str]) -> Iterator[WeightChange]:
    """Every change of the task network that an answer tells. Parts of one network that leave apart are put together."""
    told, based = declarations(type(given.up)), bases(type(given.down), type(given.up))
    sent = {n: d for n, d in told.items() if d.role == "task" and d.kind in ("model", "update", "gradient")}
    values: dict[str, Any] = {name: getattr(given.up, name) for name in sent}
    parts: dict[str, State] = {}  # by the field of the question
    apart: dict[str, list[str]] = {}  # the fields that they left in
    versions: dict[str, WeightChange] = {}  # by the field of the question: what was made of it first
    for name, told_of in sent.items():
        value, start = values[name], _question(given, based.get(name))
        if value is None or start is None or not _is_state(value):
            continue
        if told_of.kind in ("model", "update") and told_of.part != "whole":
            parts.setdefault(based[name], {}).update(value if told_of.kind == "model" else _moved(start, value, 1.0))
            apart.setdefault(based[name], []).append(name)
            continue
        signed = value if told_of.kind == "model" else _moved(start, value, -1.0 if told_of.kind == "gradient" else 1.0)
        change = _change(f"{given.task}.{name}, {given.when}", start, {**start, **signed}, parameters, given)
        first = versions.setdefault(based[name], change)
        if first is not change and told_of.kind == "model":
            step = _change(change.what, first.after, change.after, parameters, given)
            yield WeightChange(step.what, step.before, step.after, {n: -t for n, t in step.downhill.items()}, given.drawn, True)
            continue
        yield change
    for field, state in parts.items():
        start = _question(given, field)
        assert start is not None
        yield _change(f"{given.task}.{'+'.join(apart[field])}, {given.when}", start, {**start, **state}, parameters, given)


def _question(given: GivenAnswer, field: str | None) -> State | None:
    value = getattr(given.down, field) if field is not None else None
    return value if _is_state(value) else None


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(t, Tensor) for t in value.values())


def _moved(start: State, by: State, sign: float) -> State:
    return {name: start[name] + sign * change for name, change in by.items()}


def _change(what: str, before: State, after: State, parameters: list[str], given: GivenAnswer) -> WeightChange:
    downhill = {n: (after[n].double() - before[n].double()).to(torch.float32) for n in parameters if n in after}
    return WeightChange(what, before, after, downhill, given.drawn, round=given.place.round)


def head_names(entries: list[str], state: State) -> tuple[str | None, str | None]:
    """The weight and the bias of the layer that gives logits, by their shapes."""
    weights = [n for n in entries if state[n].ndim >= 2]
    biases = [n for n in entries if state[n].ndim == 1]
    return (weights[-1] if weights else None), (biases[-1] if biases else None)
