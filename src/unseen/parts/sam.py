"""Sharpness-aware steps as a part of local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.settings import Configured, hyper

__all__ = ["SAM"]


@dataclass(frozen=True)
class SAM(Configured):
    """Sharpness-aware minimisation: every step descends with the gradient of the worst point nearby. Twice the work of a step."""

    name: ClassVar[str] = "sam"

    rho: float = hyper(0.05, "how far to climb before the gradient is taken", symbol="rho", low=0.0)
