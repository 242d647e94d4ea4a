"""Worker processes that run client tasks in parallel.

A worker is `python -m unseen.engines.worker`: it rebuilds the experiment from its description and answers framed messages
on its standard streams (a JSON header, then payload bytes; nothing is pickled). It lives as long as the command does.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from unseen.engines.child import ChildEnded, ChildProcess
from unseen.engines.tasks import Place
from unseen.engines.telling import Asked
from unseen.errors import BadInput, ClientFailed
from unseen.experiment import Experiment
from unseen.payload import Payload
from unseen.runs.memory import MemoryStore

__all__ = ["Workers"]


class _Worker:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._start()

    def _start(self) -> None:
        self.process = ChildProcess("unseen.engines.worker", threads=self._threads)
        self.forget()

    def start_again_if_ended(self) -> None:
        """A process may be gone after its last answer or in the middle of one, killed for want of memory, say. Another takes its place."""
        if not self.process.alive:
            self.process.stop()  # its streams are still open
            self._start()

    def forget(self) -> None:
        """What it was told does not count: the next question tells it all."""
        self.experiment: dict[str, Any] | None = None
        self.down: tuple[str, Place] | None = None  # what question's common payload it still holds

    def call(
        self, header: Mapping[str, Any], body: bytes, tell: Callable[[dict[str, Any]], None] | None
    ) -> tuple[dict[str, Any], bytes | memoryview]:
        try:
            reply, content = self.process.call(header, body, tell)
        except ChildEnded as ended:
            raise ClientFailed(f"a worker process ended (exit code {ended.code}), perhaps for want of memory; try fewer workers") from ended
        if "bad_input" in reply:
            raise BadInput(reply["bad_input"])
        if "os_error" in reply:
            raise OSError(reply["errno"], reply["os_error"])
        if "failed" in reply:
            raise ClientFailed(f"{reply['failed']}\n\nIn the worker:\n{reply['traceback']}")
        return reply, content


class Workers:
    """A fixed number of worker processes, started at once and kept until `close`."""

    def __init__(self, number: int, threads: int = 1) -> None:
        self.number = number
        self._workers = [_Worker(threads) for _ in range(number)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(number)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.process.stop()

    def run(
        self,
        experiment: Experiment,
        path: str,
        downs: Mapping[str, Payload],
        place: Place,
        memory: MemoryStore,
        shared: bool,
        asked: Asked | None = None,
    ) -> Iterator[tuple[str, bytes | memoryview, dict[str, str]]]:
        """Answers in name order. A few tasks run ahead of the reader, never all of them, so memory does not grow with clients."""
        names = deque(sorted(downs))
        common = downs[names[0]].to_bytes() if shared and names else b""
        description = experiment.description()
        ahead: deque[tuple[str, Future[tuple[dict[str, Any], bytes | memoryview]]]] = deque()

        def one(name: str) -> tuple[dict[str, Any], bytes | memoryview]:
            worker = self._idle.get()
            try:
                worker.start_again_if_ended()
                header = {
                    "task": path,
                    "client": name,
                    "round": place.round,
                    "ask": place.ask,
                    "root": str(memory.root),
                    "versions": memory.versions.get(name, {}),
                }
                body = common if shared else downs[name].to_bytes()
                if worker.experiment != description:
                    header["experiment"] = description
                elif shared and worker.down == (path, place):
                    header["same_payload"], body = True, b""
                if asked is not None:
                    header["tells"] = True
                worker.forget()  # until it has answered: a task that fails leaves it with another run's things
                answer = worker.call(header, body, lambda told: asked.batch(name, *told["batches"]) if asked else None)
                if asked is not None:
                    asked.answer(name)
                worker.experiment, worker.down = description, (path, place) if shared else None
                return answer
            finally:
                self._idle.put(worker)

        try:
            while names or ahead:
                while names and len(ahead) < 2 * self.number:
                    name = names.popleft()
                    ahead.append((name, self._threads.submit(one, name)))
                name, future = ahead.popleft()
                reply, content = future.result()
                yield name, content, reply["staged"]
        finally:  # a run that fails wants no more answers
            for _, future in ahead:
                future.cancel()
