"""How each study stands, written down in the federation's folder by whoever runs it: for `unseen serve`, `status` and `watch` to read.

One small file a study, replaced as a whole. It has names, sizes and times, and reasons as texts; no payload and no key.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unseen.federation.activity import BoundedLog, Event, Observer, nobody, printable
from unseen.federation.study.study import Study
from unseen.federation.study.words import task_in_words
from unseen.files import OWNER_ALONE

__all__ = ["StudyFile", "StudyStanding", "log_of", "standings"]

_MOST_ERRORS, _MOST_FILES, _MOST_BYTES = 10, 50, 2**18
_SAYS_SO, _NOT_APPROVED = "studies: nobody here has approved", "has not approved it"


def log_of(federation: Path) -> Path:
    """The server's log: everything that `serve`, `run` and `propose` tell."""
    return federation / "server.log"


@dataclass
class StudyStanding:
    """What is known of a study at the server."""

    study: str
    method: str
    rounds: int
    sums: bool
    sites: list[str]
    run: str = ""  # its folder
    state: str = "proposed"  # begins, runs, ended
    round: int = 0
    since: float = 0.0  # seconds of the epoch
    task: str = ""  # asked last
    waiting: dict[str, float] = field(default_factory=dict)  # sites that were asked and have not answered: since when
    last: dict[str, str] = field(default_factory=dict)  # by site: the last thing that came
    bytes: int = 0  # came from the sites since this run began
    errors: list[tuple[float, str]] = field(default_factory=list)
    at_work: bool = False  # a process is on it now; found out by whoever reads

    @property
    def waits_for(self) -> str:
        """What must happen next, in words."""
        without = sorted(site for site, told in self.last.items() if told == _NOT_APPROVED)
        if self.state == "ended":
            return "nothing: it has ended"
        if self.state == "proposed":
            return "the sites' approval, then `unseen run --study`"
        if not self.at_work and self.state == "begins":
            return f"approval by {', '.join(without)}; then `unseen run --study`" if without else "`unseen run --study`, which ended"
        if not self.at_work:
            return "`unseen run --resume`: it is not running"
        if self.waiting:
            longest = time.time() - min(self.waiting.values())
            return f"{', '.join(sorted(self.waiting))} ({self.task}, {max(0, longest):.0f} s)"
        return "the server's own work"


class StudyFile:
    """Writes how one study stands, as events come, and passes them on to the log and to whoever looks on."""

    def __init__(self, federation: Path, study: Study, run: Path | None = None, observer: Observer = nobody) -> None:
        folder = federation / "studies"
        folder.mkdir(exist_ok=True, mode=0o700)
        _forget_old(folder)
        self._file, self._log, self._observer = folder / f"{study.digest}.json", BoundedLog(log_of(federation)), observer
        self._lock = FileLock(self._file.with_suffix(".lock"), mode=OWNER_ALONE)
        self._study = study
        method, sites = str(study.experiment["method"]), sorted(study.participants)
        self.standing = StudyStanding(study.digest, method, study.rounds, study.sums, sites, since=time.time())
        if run is not None:
            self.standing.run, self.standing.state = str(run.absolute()), "begins"
        self._write()

    def __enter__(self) -> StudyFile:
        """A process is on it from now on."""
        with contextlib.suppress(Timeout, OSError):
            self._lock.acquire(timeout=0)
        return self

    def __exit__(self, *_: object) -> None:
        self.standing.waiting = {}
        self._write()
        self._lock.release()

    def __call__(self, event: Event) -> None:
        event = self._in_words(event)
        self._log(event)
        self._observer(event)
        now, standing = time.time(), self.standing
        if event.round is not None:
            standing.state, standing.round = "runs", event.round
        match event.kind:
            case "asked":
                standing.task = event.task
                standing.waiting[event.site] = now
            case "answered":
                standing.waiting.pop(event.site, None)
                standing.bytes += event.bytes
                standing.last[event.site] = f"{event.task} answered"
            case "refused" | "failed":
                standing.waiting.pop(event.site, None)
                standing.last[event.site] = _NOT_APPROVED if _SAYS_SO in event.text else printable(event.text)
                standing.errors = [*standing.errors, (now, printable(f"{event.site}: {event.text}"))][-_MOST_ERRORS:]
            case "ended":
                standing.state, standing.waiting = "ended", {}
        self._write()

    def _in_words(self, event: Event) -> Event:
        task = task_in_words(self._study, event.round, event.ask, event.step) if event.round is not None else event.task
        return replace(event, task=task, rounds=self._study.rounds)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # what is only looked at must not stop a run
            told = {key: value for key, value in asdict(self.standing).items() if key != "at_work"}
            scratch = self._file.with_suffix(".tmp")  # not synced to the disk: it is written with every message, and lost without harm
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ALONE), "w") as file:
                json.dump(told, file)
            scratch.replace(self._file)


def standings(federation: Path) -> list[StudyStanding]:
    """All studies of a federation, the newest last. A file that cannot be read is left out."""
    return sorted(_read(federation / "studies"), key=lambda one: one.since)


def _read(folder: Path) -> Iterator[StudyStanding]:
    for file in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            if file.stat().st_size > _MOST_BYTES:
                continue
            told: Mapping[str, Any] = json.loads(file.read_text())
            standing = StudyStanding(**told)
            standing.at_work = _is_held(file.with_suffix(".lock"))
            yield standing


def _is_held(lock: Path) -> bool:
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0, mode=OWNER_ALONE):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _forget_old(folder: Path) -> None:
    """Of many studies the newest are kept. What ran is in the runs' own folders."""
    with contextlib.suppress(OSError):
        for old in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)[:-_MOST_FILES]:
            old.unlink(missing_ok=True)
            old.with_suffix(".lock").unlink(missing_ok=True)
