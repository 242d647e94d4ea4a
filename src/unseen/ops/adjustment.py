"""Weights that follow generalisation gaps. Zhang et al., "Federated domain generalization with generalization adjustment", CVPR 2023."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["adjusted_weights"]


def adjusted_weights(weights: Mapping[str, float], gaps: Mapping[str, float], step: float, centred: bool = True) -> dict[str, float]:
    """a_k + step (G_k - mean G) / max_j |G_j - mean G|, not below 0, over their sum. Not `centred`: mean G is left out.

    A client without a gap keeps its weight before the division. Where all gaps are alike, nobody's weight moves; where no weight is
    left, all weigh the same.

    >>> adjusted_weights({"a": 0.25, "b": 0.5, "c": 0.25}, {"a": 3.0, "b": 2.0, "c": 1.0}, 0.125)
    {'a': 0.375, 'b': 0.5, 'c': 0.125}
    """
    middle = sum(gaps.values()) / len(gaps) if gaps and centred else 0.0
    off = {client: gap - middle for client, gap in gaps.items()}
    largest = max(map(abs, off.values()), default=0.0)
    moved = {c: max(0.0, w + step * off.get(c, 0.0) / largest) if largest > 0 else w for c, w in weights.items()}
    total = sum(moved.values())
    return {c: w / total for c, w in moved.items()} if total > 0 else dict.fromkeys(weights, 1 / len(weights))
