"""The cells of a benchmark as jobs of a Slurm cluster, through submitit.

A job is one command (`unseen.bench.single`) with the name of a file that says what to run: submitit pickles that command and nothing
else, and no pickle is ever read here. Runs are written where the folder of the benchmark is, so it must be on a disk that all machines
share. A job that ends early leaves a run that goes on.
"""

from __future__ import annotations

import getpass
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unseen.bench.jobs import refuse_unbuildable
from unseen.bench.plan import BenchmarkCell, rounds_of
from unseen.bench.single import outcome_of, write_cell
from unseen.errors import BadInput, nearest
from unseen.report.trackers import track_finished
from unseen.runs.record import read_records, read_timings
from unseen.runs.watch import ManyWatch, Watch

__all__ = ["SlurmJobs", "minutes_of", "on_slurm", "slurm_jobs"]

FOLDER = ".slurm"  # beside the runs: what each job reads, how it ended, and its logs
_LOOK, _ASK = 1.0, 20.0  # seconds between looks at the disk, and between questions to the scheduler
_SPOILT = ("TIMEOUT", "PREEMPTED", "NODE_FAIL")  # the run is as it was, and goes on in another job
_KEYS = {
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "time": "time", "cpus": "cpus_per_task",
    "gpus": "gpus_per_node", "memory": "mem",
}  # fmt: skip


@dataclass(frozen=True)
class SlurmJobs:
    """What each job asks the cluster for: as `--slurm` gave it, in submitit's words."""

    gpus: int
    asked: dict[str, Any] = field(default_factory=dict)


def slurm_jobs(words: Sequence[str]) -> SlurmJobs:
    """From KEY=VALUE words.

    >>> slurm_jobs(["time=1:30:00", "partition=gpu", "gpus=1"])
    SlurmJobs(gpus=1, asked={'time': 90, 'partition': 'gpu', 'gpus_per_node': 1})
    """
    problems: list[str] = []
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in _KEYS:
            problems.append(f"--slurm {word!r}" + (nearest(key, _KEYS) if equals else "; write KEY=VALUE, such as partition=gpu"))
        elif key in given:
            problems.append(f"--slurm {key} is given twice")
        elif key == "time":
            given[key] = minutes_of(value)
            problems += [] if given[key] else [f"--slurm time is {value!r}; expected minutes (90), H:MM:SS or D-H:MM:SS"]
        elif key in ("gpus", "cpus", "memory"):
            given[key] = int(value) if value.isascii() and value.isdecimal() and len(value) < 5 else None
            what = "a whole number" + (" of gigabytes" if key == "memory" else "")
            problems += [] if given[key] is not None else [f"--slurm {key} is {value!r}; expected {what}"]
        elif not re.fullmatch(r"[\w.,:|&*@+-]{1,200}", value):
            problems.append(f"--slurm {key} is {value!r}; expected a name without spaces")
        else:
            given[key] = value
    if "time" not in given and not problems:
        problems.append("--engine slurm needs to know how long a run may take; add for example --slurm time=4:00:00")
    if problems:
        raise BadInput(problems)
    asked = {_KEYS[key]: f"{value}GB" if key == "memory" else value for key, value in given.items()}
    return SlurmJobs(given.get("gpus", 0), asked)


def minutes_of(text: str) -> int | None:
    """A time as Slurm writes it, in whole minutes; None where it is none.

    >>> [minutes_of(text) for text in ("90", "1:30:00", "2-0:00:01", "10:30", "1-12", "soon", "0")]
    [90, 90, 2881, 11, 2160, None, None]
    """
    found = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,5})(?::(\d{1,2}))?(?::(\d{1,2}))?", text)
    if not found:
        return None
    days, first, second, third = (int(part) if part else None for part in found.groups())
    if days is not None or third is not None:  # [D-]H[:MM[:SS]]
        seconds = 86400 * (days or 0) + 3600 * (first or 0) + 60 * (second or 0) + (third or 0)
    else:  # M[:SS]
        seconds = 60 * (first or 0) + (second or 0)
    return -(-seconds // 60) or None


def on_slurm(
    cells: Sequence[BenchmarkCell], out: Path, wants: SlurmJobs, at_once: int | None, watch: ManyWatch, track: Sequence[str] = ()
) -> dict[str, str]:
    """Run every cell as a job, at most `at_once` of them submitted at a time; none: all. Returns what failed, and why.

    `track` names trackers, which are told when a run has ended. However this ends, no job of it stays on the cluster.
    """
    refuse_unbuildable(cells, "--engine slurm")
    name = f"unseen-{secrets.token_hex(4)}"
    executor = _executor(out.absolute() / FOLDER, name, wants)
    waiting = [cell for cell in cells if not _finished(cell, out)]
    running, failed, queue = dict[str, _Submitted](), dict[str, str](), _Queue()
    watch.planned(rounds_of(cells))
    for cell in cells:
        if cell not in waiting:
            watch.ended(cell.folder)
    watch.say(f"{len(waiting)} of {len(cells)} runs are submitted as jobs named {name}; {len(cells) - len(waiting)} are finished already")
    try:
        while waiting or running:
            while waiting and len(running) < (at_once or len(cells)):
                cell = waiting[0]
                try:
                    running[cell.folder] = _submit(executor, cell, out, wants, watch.started(cell.folder))
                except BadInput as refused:
                    if not running:
                        raise
                    at_once = len(running)  # the cluster has a limit of its own
                    watch.say(f"{refused.problems[0]}; {at_once} at a time from now on")
                    break
                del waiting[0]
            time.sleep(_LOOK)
            known = queue.looked_at()
            for folder, job in list(running.items()):
                reason = job.ended(known)
                job.tell_rounds(over=reason is not None)
                if reason is None:
                    continue
                del running[folder]
                track_finished(track, out / folder, job.cell.experiment, job.begun, home=out)
                if job.goes_on(reason):
                    watch.say(f"{folder}: job {job.id} ended ({job.state}) in round {job.rounds()}; the run goes on in another job")
                    waiting.insert(0, job.cell)
                    continue
                watch.ended(folder, reason)
                if reason:
                    failed[folder] = reason
    finally:
        if waiting or running:  # by name: also the one that was just being submitted
            _asked("scancel", "--user", getpass.getuser(), "--name", name)
    return failed


def _finished(cell: BenchmarkCell, out: Path) -> bool:
    run = out / cell.folder
    return (run / "model.safetensors").is_file() and len(read_records(run / "records.jsonl")) >= cell.experiment.rounds


@dataclass
class _Submitted:
    """A job on the cluster."""

    id: str
    cell: BenchmarkCell
    file: Path  # what it reads
    run: Path
    watch: Watch  # who is told of its rounds
    begun: int  # rounds that were recorded when it was submitted
    told: int
    size: int = 0  # of the timings when they were last read
    missed: int = 0  # how often in a row the scheduler did not know it
    state: str = ""

    def rounds(self) -> int:
        return len(read_records(self.run / "records.jsonl"))

    def tell_rounds(self, *, over: bool) -> None:
        """Those that it wrote since the last look. Each waits for its seconds, which follow its record, unless the job is over."""
        file = self.run / "timings.jsonl"
        size = file.stat().st_size if file.exists() else 0
        if size == self.size and not over:
            return
        self.size = size
        seconds = {timing["round"]: timing["train"] + timing["score"] for timing in read_timings(file)}
        for record in read_records(self.run / "records.jsonl")[self.told :]:
            if record["round"] not in seconds and not over:
                return
            self.told = record["round"]
            self.watch.round(record, seconds.get(record["round"], 0.0))

    def ended(self, known: Container[str] | None) -> str | None:
        """Why it failed, "" if it did not; None while it waits or works. `known` are the scheduler's jobs where it was just asked."""
        told = outcome_of(self.file)
        if told is not None or known is None:
            return told
        self.missed = 0 if self.id in known else self.missed + 1
        if self.missed < 2:  # a disk between machines may be a little behind
            return None
        if (told := outcome_of(self.file)) is not None:
            return told
        self.state = _state_of(self.id)
        return f"its job {self.id} ended ({self.state}) before the run did; its log is {self.file.parent / f'{self.id}_0_log.err'}"

    def goes_on(self, reason: str) -> bool:
        """Whether another job would get further: this one was ended by the cluster, and the run had moved."""
        return bool(reason) and self.state in _SPOILT and self.rounds() > self.begun


def _submit(executor: Any, cell: BenchmarkCell, out: Path, wants: SlurmJobs, watch: Watch) -> _Submitted:
    from submitit.core.utils import CommandFunction

    file, run = out.absolute() / FOLDER / f"{cell.folder.replace('/', '.')}.json", out.absolute() / cell.folder
    description = {**cell.experiment.description(), "device": "cuda" if wants.gpus else "cpu"}  # of the job's machine, not of this one
    write_cell(file, description, run)
    begun = len(read_records(run / "records.jsonl"))
    try:
        job = executor.submit(CommandFunction([sys.executable, "-m", "unseen.bench.single", str(file)]))
    except Exception as error:  # submitit's own classes, and whatever sbatch ran into
        said = str(error).strip().splitlines()
        raise BadInput(f"the cluster took no job ({said[-1] if said else type(error).__name__})") from error
    return _Submitted(str(job.job_id), cell, file, run, watch, begun, begun)


class _Queue:
    """The user's jobs that wait or run, as the scheduler has them. One question serves all jobs of a command."""

    def __init__(self) -> None:
        self._asked = time.monotonic()

    def looked_at(self) -> Container[str] | None:
        """Their numbers, now and then; None where it is too soon to ask again, or the scheduler does not answer."""
        if time.monotonic() - self._asked < _ASK:
            return None
        self._asked = time.monotonic()
        told = _asked("squeue", "--noheader", "--user", getpass.getuser(), "--format", "%i")
        return None if told is None else frozenset(told.split())


def _state_of(job: str) -> str:
    """As the accounting has it, where there is one."""
    told = _asked("sacct", "--noheader", "--parsable2", "--allocations", "--format", "State", "--jobs", job)
    return told.split()[0] if told and told.split() else "state unknown"


def _asked(*words: str) -> str | None:
    """What a command of Slurm answers; None where it does not."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None


def _executor(folder: Path, name: str, wants: SlurmJobs) -> Any:
    try:
        import submitit
    except ImportError:
        raise BadInput("--engine slurm needs submitit; install it with: pip install 'unseen[slurm]'") from None
    lacking = [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]
    if lacking:
        raise BadInput(f"--engine slurm: this machine has no {', '.join(lacking)}; run it where jobs are submitted to the cluster")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # a job unpickles the command that lies here: nobody else may put one
    executor = submitit.SlurmExecutor(folder=folder)
    executor.update_parameters(job_name=name, **wants.asked)
    return executor
