"""Which value of a mask file means which structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unseen.data.reading.source import listed
from unseen.errors import BadInput

__all__ = ["MaskMap", "binary", "deduce_map"]

_NEAR = 8  # what lossy compression may add to a value or take from it
_EDGES = 0.01  # share of a mask's pixels that may lie between two values: edges that were interpolated when it was resized
_FEW_VALUES = 4  # up to so many grey levels are read as labels, more as a picture of a mask


@dataclass(frozen=True)
class MaskMap:
    """Structures and their values. A value may belong to several structures: an optic cup lies inside its disc."""

    structures: Mapping[str, frozenset[int]]
    background: frozenset[int]
    edges: float = _EDGES

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.structures)

    @cached_property
    def values(self) -> tuple[int, ...]:
        return tuple(sorted(self.background.union(*self.structures.values())))

    @cached_property
    def _distance(self) -> NDArray[np.int64]:
        distance: NDArray[np.int64] = np.abs(np.arange(256)[:, None] - np.array(self.values)).min(1)
        return distance

    @cached_property
    def _tables(self) -> NDArray[np.uint8]:
        """For each structure, whether a byte means it: [structures, 256]. A byte stands for the nearest known value."""
        nearest = np.array(self.values)[np.abs(np.arange(256)[:, None] - np.array(self.values)).argmin(1)]
        return np.stack([np.isin(nearest, sorted(values)) for values in self.structures.values()]).astype(np.uint8)

    def check(self, values: NDArray[np.uint8], name: str) -> None:
        """Refuse a mask with other values than the map's."""
        counts = np.bincount(values.ravel(), minlength=256)
        near = _NEAR if np.diff(self.values).min() > 2 * _NEAR else 0
        strange = np.flatnonzero((counts > 0) & (self._distance > near))
        share = counts[strange].sum() / values.size
        if share > self.edges:
            seen = listed([str(v) for v in strange])
            raise BadInput(f"{name} has mask values {seen} in {share:.0%} of its pixels; expected {', '.join(map(str, self.values))}")

    def apply(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """One mask of zeros and ones per structure: [structures, height, width]."""
        return self._tables[:, values]


def binary(name: str, edges: float = _EDGES) -> MaskMap:
    """One structure, drawn with 255 on 0."""
    return MaskMap({name: frozenset({255})}, frozenset({0}), edges)


def deduce_map(histograms: Sequence[NDArray[np.int64]], structure: str = "foreground") -> tuple[MaskMap, str]:
    """The map that a user's masks speak of, from how often each file has each value; and a note where it was not plain.

    0 is the background. 1, or 255, or the one in some files and the other in the rest, is the one structure. A few more
    values, or the numbers from 1 to at most 16, are a structure each. Many grey levels are a picture of a two-valued mask
    if nine pixels in ten are nearly black or nearly white; then 128 divides them. Anything else is refused.
    """
    total = np.sum(histograms, axis=0) if len(histograms) else np.zeros(256, dtype=np.int64)
    found = np.flatnonzero(total).tolist()
    others = [v for v in found if v != 0]
    both = any(h[1] and h[255] for h in histograms)
    if set(others) <= {1, 255} and not both:
        note = "some masks mark the structure with 1, others with 255" if {1, 255} <= set(others) else ""
        return MaskMap({structure: frozenset(others or [255])}, frozenset({0}), edges=0.0), note
    if len(others) <= _FEW_VALUES or max(others) <= 16:
        return MaskMap({f"value_{v}": frozenset({v}) for v in others}, frozenset({0}), edges=0.0), "each value of the masks is a structure"
    plain = total[: _NEAR + 1].sum() + total[255 - _NEAR :].sum()
    if plain >= 0.9 * total.sum():
        return binary(structure, edges=1.0), "the masks have grey levels; from 128 on they count as the structure"
    raise BadInput(
        f"the masks have {len(found)} different values ({listed([str(v) for v in found])}); "
        "expected 0 and 1, 0 and 255, or one small number per structure"
    )
