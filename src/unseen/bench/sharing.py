"""How many runs go at once on this machine, and how they share its GPU.

On a CPU a run of three clients keeps two cores busy three quarters of the time, and sixteen a fifth of it; a run for each core wastes none.
One run leaves a GPU idle between its kernels and while it starts, scores and saves. Processes that share a GPU take turns unless
NVIDIA's multi-process service (MPS) lets their kernels run side by side. It is started here for the time of a benchmark, by this user
and for these processes alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from unseen.bench.plan import BenchmarkCell
from unseen.machine import cores, memory
from unseen.runs.record import read_records

__all__ = ["best_jobs", "sharing_the_gpu"]

_CONTROL = "nvidia-cuda-mps-control"
_MOST = 8  # runs at once on one GPU: four trained 1.57 times the images of one on an H200; more than eight were not compared
_CORES = 2  # of the machine's for each run on a GPU: one that fills the GPU's queue, one for the rest
_ROOM = 10e9  # bytes of the GPU's memory for one run: data, network and recorded steps
_CLIENTS = 4  # that a run on a CPU is reckoned to have: with fewer runs than these its clients, side by side, use the cores better
_HOST_ROOM = 4e9  # bytes of the machine's memory for one run on a CPU


def best_jobs(cells: Sequence[BenchmarkCell], out: Path) -> int:
    """Runs at the same time: on a GPU as many as keep it busy and fit, on a CPU one a core, or one whose clients have all cores.

    What is finished in `out` does not count.
    """
    open_ones = [cell for cell in cells if len(read_records(out / cell.folder / "records.jsonl")) < cell.experiment.rounds]
    if not all(cell.experiment.rebuildable for cell in cells):
        return 1
    if cells[0].experiment.device != "cuda":
        fitting = min(cores() // cells[0].experiment.threads, int(memory() / _HOST_ROOM))
        return max(1, min(len(open_ones), fitting)) if len(open_ones) >= min(fitting, _CLIENTS) else 1
    if not _shares():
        return 1
    import torch

    free, _ = torch.cuda.mem_get_info()
    return max(1, min(_MOST, len(open_ones), cores() // _CORES, int(free / _ROOM)))


@contextlib.contextmanager
def sharing_the_gpu(jobs: int) -> Iterator[dict[str, str]]:
    """What processes need in their environment to run side by side on the GPU; nothing where there is one, or where a service runs."""
    if jobs < 2 or not _shares() or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="unseen-mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        around = {**os.environ, **places}
        started = subprocess.run([_CONTROL, "-d"], env=around, capture_output=True, check=False)  # noqa: S603
        try:
            yield places if started.returncode == 0 else {}
        finally:
            if started.returncode == 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run([_CONTROL], env=around, input=b"quit\n", capture_output=True, check=False, timeout=30)  # noqa: S603


def _shares() -> bool:
    """Whether the service is installed here."""
    return shutil.which(_CONTROL) is not None
