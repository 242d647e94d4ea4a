"""Parts that several methods can take, by the name configuration gives them."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Any

from unseen.method import Method, Surroundings
from unseen.parts.aggregation import CEA, SHA, Mean, Uniform
from unseen.parts.mixstyle import MixStyle
from unseen.parts.sam import SAM
from unseen.parts.views import RandConv
from unseen.settings import Configured, settings_of

__all__ = ["PARTS", "part_obstacles", "parts_of"]

PARTS: dict[str, type[Configured]] = {
    "mean": Mean,
    "uniform": Uniform,
    "cea": CEA,
    "sha": SHA,
    "randconv": RandConv,
    "mixstyle": MixStyle,
    "sam": SAM,
}


def parts_of(cls: type[Configured]) -> dict[str, list[str]]:
    """Which of the parts each field of a method takes, by the fields' declared types.

    >>> from unseen.methods import FedAvg
    >>> parts_of(FedAvg)["sam"]
    ['sam']
    """
    takes = {s.name: _kinds(s.type) for s in settings_of(cls)}
    return {field: [name for name, part in PARTS.items() if issubclass(part, kinds)] for field, kinds in takes.items() if kinds}


def part_obstacles(method: Method[Any], around: Surroundings) -> Iterator[str]:
    """Why a method's parts cannot act here, one sentence each."""
    for setting in settings_of(type(method)):
        value = getattr(method, setting.name)
        told: Iterable[str] = value.obstacles(around) if isinstance(value, Configured) and hasattr(value, "obstacles") else ()
        yield from told
    if getattr(method, "smoothing", 0.0) and around.task == "segmentation":
        yield "labels are smoothed in classification only; set smoothing = 0"


def _kinds(hint: Any) -> tuple[type[Configured], ...]:
    options = typing.get_args(hint) or (hint,)
    return tuple(kind for kind in options if isinstance(kind, type) and issubclass(kind, Configured))
