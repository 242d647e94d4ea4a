"""The worker process's main loop: read a question, run the client's task, write the answer."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import IO, Any

from unseen.device.heap import freed_memory_stays
from unseen.engines.frames import answer_stream, read_frame, write_frame
from unseen.engines.tasks import Place, TaskRunner, find_task
from unseen.engines.telling import NowAndThen
from unseen.errors import BadInput
from unseen.experiment import read_experiment
from unseen.method import task_types
from unseen.runs.memory import MemoryStore
from unseen.world import build_world

__all__ = ["main"]


class _WorkerState:
    """What a worker holds between questions: the world it works in and the payload it was last sent."""

    def __init__(self, answers: IO[bytes]) -> None:
        self._now_and_then = NowAndThen(lambda name, *batches: write_frame(answers, {"told": {"batches": batches}}))
        self.runner: TaskRunner | None = None
        self.payload: bytes | memoryview = b""

    def answer(self, header: dict[str, Any], body: bytes | memoryview) -> tuple[dict[str, Any], bytes]:
        if "experiment" in header:
            self.runner = TaskRunner(build_world(read_experiment(header["experiment"], own_code=True)))
        assert self.runner is not None
        self.runner.tell = self._now_and_then if "tells" in header else None
        if "same_payload" not in header:
            self.payload = body
        task = find_task(header["task"], self.runner.world.experiment.method)
        down_type, _ = task_types(task)
        name = header["client"]
        memory = MemoryStore(Path(header["root"]))
        memory.versions = {name: header["versions"]}
        place = Place(header["round"], header["ask"])
        up, staged = self.runner.run(task, down_type.from_bytes(self.payload), name, place, memory)
        return {"staged": staged}, up.to_bytes()


def main() -> None:
    with freed_memory_stays():
        _answer_questions(answer_stream())


def _answer_questions(answers: IO[bytes]) -> None:
    state = _WorkerState(answers)
    while True:
        try:
            header, body = read_frame(sys.stdin.buffer)
        except EOFError:
            return
        try:
            write_frame(answers, *state.answer(header, body))
        except BrokenPipeError:
            return
        except BadInput as bad:
            write_frame(answers, {"bad_input": bad.problems})
        except OSError as error:
            write_frame(answers, {"os_error": error.strerror or str(error), "errno": error.errno})
        except Exception as error:
            what = f"client {header['client']!r} failed in {header['task']}: {type(error).__name__}: {error}"
            write_frame(answers, {"failed": what, "traceback": traceback.format_exc()})


if __name__ == "__main__":
    main()
