"""A method under tiny settings: each method's own tests say which, in a table `TINY`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unseen.method import Method
from unseen.methods import METHODS
from unseen.settings import settings_of


@dataclass(frozen=True)
class Case:
    """Enough training to learn three stripes or a square in seconds.

    `leaves` is exactly what leaves a client, as TASK.FIELD. `reaches` is far above chance (1/3) and an empty mask (0); it is
    None for an ablation that is not meant to learn.
    """

    method: str
    values: dict[str, Any] = field(default_factory=dict)
    task: str = "classification"
    rounds: int = 6
    reaches: float | None = 0.7
    leaves: str = ""

    def build(self) -> Method[Any]:
        return METHODS[self.method](**self.values)

    @property
    def partition(self) -> str:
        """Where the method can run: with a client for each domain, or with all of them at one."""
        return "pooled" if METHODS[self.method].pooled else "per-domain"


def own(method: str, preset: str) -> dict[str, Any]:
    """What a preset says about the method itself, not about the experiment around it."""
    fields = {s.name for s in settings_of(METHODS[method])}
    return {key: value for key, value in METHODS[method].presets[preset].items() if key in fields}
