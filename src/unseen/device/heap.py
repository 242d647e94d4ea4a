"""Memory that is freed goes back to the system."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["give_back_at_once"]

_MMAP_THRESHOLD, _LARGE = -3, 2**20  # mallopt's name for it, as in glibc's malloc.h; bytes


def give_back_at_once() -> None:
    """From now on, blocks of a megabyte and more are asked of the system one by one, and given back when they are freed.

    The C library would keep blocks of up to 32 MB once such were freed: a process that holds models for a moment would look twice as large.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
