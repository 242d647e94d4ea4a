"""One cell of a benchmark in a process of its own: `python -m unseen.bench.cell` reads cells and writes how each ended.

On its standard streams as framed messages, one cell after another, until its input ends; then it ends too, in the middle of a cell if
need be. Nothing is pickled.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import IO, Any

from unseen.engines.frames import answer_stream, read_frame, write_frame
from unseen.engines.kept import Kept
from unseen.engines.telling import NowAndThen
from unseen.errors import BadInput, ClientFailed, NoReplies
from unseen.experiment import read_experiment
from unseen.runs.record import Record
from unseen.runs.watch import Silent, Watch, Within
from unseen.training import train

__all__ = ["main", "pass_on", "run_cell", "why"]


def why(error: Exception) -> str:
    """What a table's reader is told about a cell that failed."""
    return str(error) if isinstance(error, BadInput | NoReplies | ClientFailed) else repr(error)


class _Telling(Silent):
    """Tells another process how the run goes."""

    def __init__(self, answers: IO[bytes]) -> None:
        self._answers = answers
        self._now_and_then = NowAndThen(lambda where: self._tell({"within": asdict(where)}))

    def within(self, where: Within) -> None:
        self._now_and_then(where)

    def round(self, record: Record, seconds: float) -> None:
        self._tell({"record": record, "seconds": seconds})

    def say(self, message: str) -> None:
        self._tell({"say": message})

    def _tell(self, told: Mapping[str, Any]) -> None:
        write_frame(self._answers, {"told": told})


def pass_on(told: Mapping[str, Any], watch: Watch) -> None:
    """At the other end: what a run in another process told, to whoever looks on here."""
    if "record" in told:
        watch.round(told["record"], told["seconds"])
    elif "within" in told:
        watch.within(Within(**told["within"]))
    else:
        watch.say(told["say"])


def run_cell(description: Mapping[str, Any], folder: Path, watch: Watch, kept: Kept | None = None) -> str:
    """Run one cell to its end, from where its folder stands. Returns why it failed; nothing if it did not."""
    kept = kept or Kept()
    try:
        train(read_experiment(description, own_code=True), folder, resume=True, watch=watch, alone=False, kept=kept)
    except OSError:  # a full disk is not this cell's fault
        raise
    except Exception as error:
        kept.clear()
        return why(error)
    return ""


def end_with(pipe: int) -> None:
    """A command that was killed takes its runs with it: they are whole on disk at any moment, and their folders and GPU are free again."""
    ended = select.poll()
    ended.register(pipe, 0)  # nothing to read is waited for, only the end
    ended.poll()
    os._exit(1)


def main() -> None:
    answers, kept = answer_stream(), Kept()
    if hasattr(select, "poll"):  # not on every platform
        Thread(target=end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    while True:
        try:
            header, _ = read_frame(sys.stdin.buffer)
        except EOFError:
            return
        try:
            write_frame(answers, {"failed": run_cell(header["experiment"], Path(header["folder"]), _Telling(answers), kept)})
        except OSError as error:
            write_frame(answers, {"os_error": error.strerror or str(error), "errno": error.errno})


if __name__ == "__main__":
    main()
