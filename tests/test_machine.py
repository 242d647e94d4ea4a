"""What of the machine a process may use."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unseen import machine
from unseen.machine import cores, memory


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to a core")
def test_a_process_bound_to_one_core_has_one() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from unseen.machine import cores; print(cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
    assert cores() == len(os.sched_getaffinity(0))


def test_memory_is_the_machines_or_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LIMIT", tmp_path / "memory.max")
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1_000_000}.__getitem__, raising=False)
    assert memory() == 4.096e9
    for limit, expected in (("max\n", 4.096e9), ("1000000000\n", 1e9), ("9000000000000\n", 4.096e9)):
        (tmp_path / "memory.max").write_text(limit)
        assert memory() == expected
    monkeypatch.delattr(os, "sysconf")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory() == math.inf
