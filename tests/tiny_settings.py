"""One table of tiny settings, from which all tests over every method are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unseen.method import Method
from unseen.methods import METHODS


@dataclass(frozen=True)
class Case:
    """Enough training to learn three stripes or a square in seconds; `reaches` is far above chance (1/3) and an empty mask (0)."""

    method: str
    values: dict[str, Any] = field(default_factory=dict)
    task: str = "classification"
    rounds: int = 6
    reaches: float = 0.7

    def build(self) -> Method[Any]:
        return METHODS[self.method](**self.values)


SETTINGS: dict[str, Case] = {
    "fedavg": Case("fedavg", {"lr": 0.02, "batch": 8}),
    "fedavg-masks": Case("fedavg", {"lr": 0.02, "batch": 4}, task="segmentation", rounds=8, reaches=0.6),
    "fedprox": Case("fedprox", {"lr": 0.02, "batch": 8}),
    "fedsb": Case("fedsb", {"lr": 0.02, "batch": 8, "budget": 5}),
}
