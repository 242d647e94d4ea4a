"""Memory that a process has freed: kept between steps, and given back when training is over."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

GLIBC = platform.libc_ver()[0] == "glibc"
RESIDENT = """
import resource
import numpy as np
from unseen.device.heap import freed_memory_stays

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 2**20

def step():
    np.ones(5 * 2**20)  # 40 MB, freed at once: more than the C library keeps of itself

step()
before = resident()
with freed_memory_stays():
    step()
    inside, known = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - known
after = resident()
step()
print(inside - before, faults, after - before, resident() - before)
"""


@pytest.mark.skipif(not GLIBC or sys.platform != "linux", reason="another C library has rules of its own")
def test_what_a_step_frees_is_there_for_the_next_and_goes_back_at_the_end() -> None:
    run = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    stays, faults, after, later = map(int, run.stdout.split())
    assert stays > 35 and faults < 50
    assert after < 10 and later < 10
