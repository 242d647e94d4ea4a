"""The cells of a benchmark over a Ray cluster.

A cell travels as its description (JSON) and the files of its folder, so that a run begun elsewhere goes on; the folder's files come
back when the cell ends. The data, and this package, must be on every machine: a cell names its data, it does not carry them.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from unseen.bench.cell import run_cell
from unseen.bench.jobs import refuse_unbuildable
from unseen.bench.plan import BenchmarkCell, rounds_of
from unseen.errors import BadInput
from unseen.files import write_atomically
from unseen.report.trackers import track_finished
from unseen.runs.record import read_records
from unseen.runs.watch import ManyWatch, Silent

__all__ = ["files_in", "on_ray", "run_elsewhere", "write_files"]


def files_in(folder: Path) -> dict[str, bytes]:
    """A run's folder as bytes by name; the lock stays where it is."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below the folder, in an order from which a run can go on wherever the writing is cut short.

    The checkpoint comes last, since it speaks of the other files. In a new folder it comes before them: records without a checkpoint would
    look as if it had been lost. A name that leads out of the folder is refused.
    """
    checkpoint = 3 if folder.exists() else 1
    for name in sorted(files, key=lambda name: 0 if name == "run.json" else checkpoint if name.startswith("checkpoint") else 2):
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts:
            raise ValueError(f"a cell returned a file named {name!r}, which lies outside its folder")
        target = folder / parts
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, files[name])


def run_elsewhere(description: str, files: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """One cell on a machine of the cluster: why it failed (nothing if it did not), and its folder's files."""
    with tempfile.TemporaryDirectory(prefix="unseen-") as scratch:
        folder = Path(scratch) / "run"
        write_files(folder, files)
        return run_cell(json.loads(description), folder, Silent()), files_in(folder)


def on_ray(cells: Sequence[BenchmarkCell], out: Path, address: str | None, watch: ManyWatch, track: Sequence[str] = ()) -> dict[str, str]:
    """Run every cell somewhere on the cluster; without an address, on a cluster of this machine alone. Returns what failed, and why."""
    ray = _ray()
    refuse_unbuildable(cells, "--engine ray")
    _refuse_silent(address)
    local = {"include_dashboard": False} if address is None else {}  # nothing but this machine's own cluster is ours to shape
    before = os.umask(0o077)  # a cluster's token, which Ray writes when there is none, is for its owner alone
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **local)
    except (ConnectionError, RuntimeError, ValueError) as error:
        advice = "does this machine have the cluster's token (RAY_AUTH_TOKEN, or ~/.ray/auth_token as at its head)?"
        raise BadInput(f"Ray cannot be used at {address or 'this machine'}: {str(error).splitlines()[0]}; {advice}") from None
    finally:
        os.umask(before)
    failed: dict[str, str] = {}
    watch.planned(rounds_of(cells))
    try:
        running = {_submit(ray, cell, out): cell for cell in cells}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            cell = running.pop(done)
            try:
                reason, files = ray.get(done)
            except ray.exceptions.RayError as error:
                reason, files = f"{type(error).__name__}: {str(error).splitlines()[0]}", {}
            before = len(read_records(out / cell.folder / "records.jsonl"))
            write_files(out / cell.folder, files)
            track_finished(track, out / cell.folder, cell.experiment, before, home=out)
            watch.ended(cell.folder, reason)
            if reason:
                failed[cell.folder] = reason
    finally:
        ray.shutdown()
    return failed


def _refuse_silent(address: str | None) -> None:
    """Ray itself waits for minutes, or ends the process, where nobody answers."""
    if address in (None, "auto"):
        return
    host, _, port = str(address).removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            return
    except (OSError, ValueError, OverflowError) as error:
        how = "expected HOST:PORT of a running cluster (`ray start --head --port 6379` starts one)"
        raise BadInput(f"--address {address}: no answer ({error}); {how}") from None


def _submit(ray: Any, cell: BenchmarkCell, out: Path) -> Any:
    wants_gpu = cell.experiment.device == "cuda"
    remote = ray.remote(num_cpus=cell.experiment.threads, num_gpus=1 if wants_gpu else 0, max_retries=2)(run_elsewhere)
    folder = out / cell.folder
    return remote.remote(json.dumps(cell.experiment.description()), files_in(folder) if folder.exists() else {})


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would tell its makers otherwise
    if "RAY_AUTH_TOKEN" in os.environ or Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token")).is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # or Ray does not show a token that is there to a cluster that wants it
    try:
        import ray
    except ImportError:
        raise BadInput("--engine ray needs Ray; install it with: pip install 'unseen[ray]'") from None
    return ray
