"""How long PACS takes to prepare and to load, and how much memory a loaded data set holds.

    python benchmarks/data.py PACS_FOLDER_OR_TAR [--workers N]

Everything goes into a temporary cache. Loading is measured in a fresh process: the clock starts when `unseen.data` is
imported, and memory is what comes on top of `import torch`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unseen.data import prepare

LOAD = """
import sys, time, torch
from pathlib import Path

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20

before = resident()
start = time.perf_counter()
from unseen.data import load
imported = time.perf_counter()
data = load("pacs", cache=Path(sys.argv[1]))
loaded = time.perf_counter()
after = resident()
print(f"import unseen.data      {imported - start:8.2f} s")
print(f"load('pacs')            {loaded - imported:8.3f} s   {sum(len(d) for d in data.domains)} images, {', '.join(data.names)}")
print(f"resident beyond torch   {after - before:8.1f} MB  nothing drawn yet")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--workers", type=int, default=None)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, workers {arguments.workers or 'all'}")
    with tempfile.TemporaryDirectory() as cache:
        for what in ("prepare, first time", "prepare, second time"):
            start = time.perf_counter()
            folder = prepare("pacs", arguments.source, cache=Path(cache), workers=arguments.workers)
            print(f"{what:<22}  {time.perf_counter() - start:8.2f} s", flush=True)
        print(f"on the disk             {sum(f.stat().st_size for f in folder.iterdir()) / 2**20:8.0f} MB")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", LOAD, cache], check=True, env=environment)


if __name__ == "__main__":
    main()
