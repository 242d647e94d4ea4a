"""Memory of this process: what is freed goes back to the system, and what imports made is not looked through for garbage."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

__all__ = ["give_back_at_once", "lasting_imports"]

_MMAP_THRESHOLD, _LARGE = -3, 2**20  # mallopt's name for it, as in glibc's malloc.h; bytes


def give_back_at_once() -> None:
    """From now on, blocks of a megabyte and more are asked of the system one by one, and given back when they are freed.

    The C library would keep blocks of up to 32 MB once such were freed: a process that holds models for a moment would look twice as large.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


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
