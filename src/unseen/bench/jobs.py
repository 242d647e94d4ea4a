"""Several cells of a benchmark at once on this machine, each in a process of its own.

It pays where one run leaves the machine idle: small networks on a GPU, or few clients on many cores.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from unseen.bench.cell import pass_on
from unseen.bench.plan import BenchmarkCell, rounds_of
from unseen.bench.sharing import sharing_the_gpu
from unseen.engines.child import ChildEnded, ChildProcess
from unseen.errors import BadInput
from unseen.report.trackers import Tracked
from unseen.runs.watch import ManyWatch, Watch

__all__ = ["in_processes", "refuse_unbuildable"]


def _run(process: ChildProcess, description: Mapping[str, Any], folder: Path, watch: Watch) -> str:
    """Why the cell failed; nothing if it did not."""
    try:
        reply, _ = process.call({"experiment": description, "folder": str(folder)}, tell=lambda told: pass_on(told, watch))
    except ChildEnded as ended:
        return f"its process ended (exit code {ended.code}), perhaps for want of memory; try fewer --jobs"
    if "os_error" in reply:
        raise OSError(reply["errno"], reply["os_error"])
    return str(reply["failed"])


def in_processes(cells: Sequence[BenchmarkCell], out: Path, jobs: int, watch: ManyWatch, track: Sequence[str] = ()) -> dict[str, str]:
    """Run every cell, `jobs` at a time. `track` names trackers, which are told from this process. Returns what failed, and why."""
    refuse_unbuildable(cells, "--jobs")
    threads = cells[0].experiment.threads
    with sharing_the_gpu(jobs if cells[0].experiment.device == "cuda" else 1) as environment:
        return _in_processes(cells, out, jobs, watch, track, threads, environment)


def _in_processes(
    cells: Sequence[BenchmarkCell],
    out: Path,
    jobs: int,
    watch: ManyWatch,
    track: Sequence[str],
    threads: int,
    environment: Mapping[str, str],
) -> dict[str, str]:
    watch.planned(rounds_of(cells))
    idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
    started: list[ChildProcess] = []

    def start() -> ChildProcess:
        started.append(ChildProcess("unseen.bench.cell", threads=threads, environment=environment))
        return started[-1]

    def one(cell: BenchmarkCell) -> str:
        process = idle.get()
        if not process.alive:  # it took its cell with it; this one needs another
            process = start()
        try:
            with Tracked(watch.started(cell.folder), track, out / cell.folder, cell.experiment, home=out) as tracked:
                return _run(process, cell.experiment.description(), out / cell.folder, tracked)
        finally:
            idle.put(process)

    failed: dict[str, str] = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        for _ in range(min(jobs, len(cells))):
            idle.put(start())
        futures = {pool.submit(one, cell): cell for cell in cells}
        for future in as_completed(futures):
            folder, reason = futures[future].folder, future.result()
            watch.ended(folder, reason)
            if reason:
                failed[folder] = reason
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in started:
            process.stop(grace=0)  # a run is whole on disk at any moment
    return failed


def refuse_unbuildable(cells: Sequence[BenchmarkCell], option: str) -> None:
    """Another process rebuilds a cell from its description; data and methods that live in memory alone cannot be described."""
    for cell in cells:
        if not cell.experiment.rebuildable:
            raise BadInput(f"{cell.folder} uses data or a method that exists in this process alone; leave {option} out")
