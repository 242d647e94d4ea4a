"""Memory of this process: when what is freed goes back to the system, and what imports made is not looked through for garbage."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

__all__ = ["freed_memory_stays", "give_back_at_once", "lasting_imports"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them, as in glibc's malloc.h
_LARGE, _OF_ITSELF, _ANY = 2**20, 2**25, 2**30  # bytes; the second is what glibc's own rule comes to


def give_back_at_once() -> None:
    """From now on, blocks of a megabyte and more are asked of the system one by one, and given back when they are freed.

    The C library would keep blocks of up to 32 MB once such were freed: a process that holds models for a moment would look twice as large.
    """
    _ask("mallopt", _MMAP_THRESHOLD, _LARGE)


@contextlib.contextmanager
def freed_memory_stays() -> Iterator[None]:
    """Around training on a CPU: what one step frees is there for the next. At the end it goes back to the system.

    Between steps the C library would give large blocks and the heap's end back, and the next step would get them page by page: up to a
    fifth of a step's time.
    """
    _ask("mallopt", _MMAP_THRESHOLD, _ANY)
    _ask("mallopt", _TRIM_THRESHOLD, _ANY)
    try:
        yield
    finally:
        _ask("mallopt", _MMAP_THRESHOLD, _OF_ITSELF)
        _ask("mallopt", _TRIM_THRESHOLD, 2 * _OF_ITSELF)
        _ask("malloc_trim", 0)


def _ask(function: str, *arguments: int) -> None:
    """Something of the C library, where it is one that knows this."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
    """Around a command's imports: Python does not look for garbage meanwhile, nor among what was made so far afterwards.

    PyTorch brings some 180,000 objects that stay. Looking through them is a tenth of its import, and later a pause of 70 ms.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
