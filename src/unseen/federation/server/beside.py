"""What a site says beside its answer: the memories that it wrote, and the epsilon that it has spent."""

from __future__ import annotations

import math
from typing import Any

from unseen.errors import RefusedReply
from unseen.runs.memory import FILE_OF_MEMORY

__all__ = ["epsilon_told", "file_names"]


def epsilon_told(epsilon: Any) -> float | None:
    """What a site says that it has spent. It goes into the record, so it must be a number that a record can hold."""
    if epsilon is None or (isinstance(epsilon, float) and 0 <= epsilon < math.inf):
        return epsilon
    raise RefusedReply("names an epsilon that is no finite number from 0 on")


def file_names(staged: Any) -> dict[str, str]:
    """The versions of memories that a site wrote, by kind; each name must be one that this site could have given."""
    fits = (
        isinstance(staged, dict) and len(staged) <= 100 and all(isinstance(f, str) and FILE_OF_MEMORY.fullmatch(f) for f in staged.values())
    )
    if not fits or not all(kind.isidentifier() for kind in staged):
        raise RefusedReply("names memories in a way that is not taken")
    return dict(staged)
