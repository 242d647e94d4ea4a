"""What a site says beside its answer: the memories that it wrote, and the epsilon that it has spent."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from unseen.errors import RefusedReply
from unseen.runs.memory import FILE_OF_MEMORY

__all__ = ["epsilon_told", "file_names"]

_MOST_KINDS = 20  # of memories of one site; a method has one or two


def epsilon_told(epsilon: Any) -> float | None:
    """What a site says that it has spent. It goes into the record, so it must be a number that a record can hold."""
    if epsilon is None or (isinstance(epsilon, float) and 0 <= epsilon < math.inf):
        return epsilon
    raise RefusedReply("names an epsilon that is no finite number from 0 on")


def file_names(staged: Any, known: Collection[str]) -> dict[str, str]:
    """The versions of memories that a site wrote, by kind; each name must be one that this site could have given.

    They go into every later question to it, so a kind is short, as its file's name has it, and with the `known` ones they are few.
    """
    if not isinstance(staged, dict) or not all(_is_of_kind(kind, file) for kind, file in staged.items()):
        raise RefusedReply("names memories in a way that is not taken")
    if len(staged.keys() | set(known)) > _MOST_KINDS:
        raise RefusedReply(f"names more than {_MOST_KINDS} kinds of memories")
    return dict(staged)


def _is_of_kind(kind: str, file: Any) -> bool:
    return isinstance(file, str) and FILE_OF_MEMORY.fullmatch(file) is not None and file.partition("/")[2].partition(".")[0] == kind
