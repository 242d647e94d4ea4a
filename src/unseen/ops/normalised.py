"""How far a number of local steps goes. Wang et al., "Tackling the objective inconsistency problem", NeurIPS 2020 (FedNova)."""

from __future__ import annotations

__all__ = ["accumulated_steps"]


def accumulated_steps(steps: int, momentum: float = 0.0) -> float:
    """|a_k|_1: how many learning rates a constant gradient is moved by in so many steps of SGD whose momentum begins at zero.

    >>> accumulated_steps(3), accumulated_steps(3, 0.5)  # 1 + 1.5 + 1.75
    (3.0, 4.25)
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
