"""Several cells of a benchmark at once on this machine, each in a process of its own.

It pays where one run leaves the machine idle: small networks on a GPU, or few clients on many cores.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from unseen.bench.plan import BenchmarkCell
from unseen.engines.frames import read_frame, start_process, write_frame
from unseen.errors import BadInput
from unseen.runs.watch import Watch

__all__ = ["in_processes", "refuse_unbuildable"]


class _Process:
    def __init__(self, threads: int) -> None:
        self._process = start_process("unseen.bench.cell", threads)

    def run(self, description: Mapping[str, Any], folder: Path) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            write_frame(self._process.stdin, {"experiment": description, "folder": str(folder)})
            reply, _ = read_frame(self._process.stdout)
        except (EOFError, BrokenPipeError):
            return f"its process ended (exit code {self._process.wait()}), perhaps for want of memory; try fewer --jobs"
        if "os_error" in reply:
            raise OSError(reply["errno"], reply["os_error"])
        return str(reply["failed"])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """At once: a run is whole on disk at any moment."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


def in_processes(cells: Sequence[BenchmarkCell], out: Path, jobs: int, watch: Watch) -> dict[str, str]:
    """Run every cell, `jobs` at a time. Returns what failed, and why."""
    refuse_unbuildable(cells, "--jobs")
    threads = cells[0].experiment.threads
    idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
    started: list[_Process] = []

    def one(cell: BenchmarkCell) -> str:
        process = idle.get()
        try:
            return process.run(cell.experiment.description(), out / cell.folder)
        finally:
            if not process.alive:  # it took its cell with it; the cells that wait need another
                process = _Process(threads)
                started.append(process)
            idle.put(process)

    failed: dict[str, str] = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        for _ in range(min(jobs, len(cells))):
            started.append(_Process(threads))
            idle.put(started[-1])
        futures = {pool.submit(one, cell): cell for cell in cells}
        for number, future in enumerate(as_completed(futures), 1):
            folder, reason = futures[future].folder, future.result()
            watch.say(f"[{number}/{len(cells)}] {folder}" + (f" failed: {reason}" if reason else ""))
            if reason:
                failed[folder] = reason
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in started:
            process.stop()
    return failed


def refuse_unbuildable(cells: Sequence[BenchmarkCell], option: str) -> None:
    """Another process rebuilds a cell from its description; data and methods that live in memory alone cannot be described."""
    for cell in cells:
        if not cell.experiment.rebuildable:
            raise BadInput(f"{cell.folder} uses data or a method that exists in this process alone; leave {option} out")
