"""What of this machine the process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["cores", "memory"]

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of the container that the process runs in


def cores() -> int:
    """Processor cores, fewer where the process is bound to some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> float:
    """Bytes of memory in all; infinity where the system does not tell."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    limit = _LIMIT.read_text().strip() if _LIMIT.is_file() else "max"
    return min(whole, math.inf if limit == "max" else float(limit))
