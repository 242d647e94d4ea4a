"""Worker processes, with processes that are made up: what a run that fails leaves to the next one."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import methods_for_tests as own
from unseen.engines import workers
from unseen.engines.child import ChildEnded
from unseen.engines.tasks import Place
from unseen.engines.workers import Workers
from unseen.errors import ClientFailed
from unseen.runs.memory import MemoryStore


def test_of_a_run_that_failed_no_further_task_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was killed for want of memory would otherwise be followed by others, beside the next run."""
    asked: list[str] = []
    failed = threading.Event()

    class MadeUp:
        alive = True

        def __init__(self, module: str, threads: int) -> None:
            pass

        def call(self, header: dict[str, Any], body: bytes, tell: Any) -> Any:
            asked.append(header["client"])
            if header["client"] == "a":
                raise ChildEnded(-9)
            failed.wait()
            return {"staged": {}}, b""

        def stop(self) -> None:
            pass

    monkeypatch.setattr(workers, "ChildProcess", MadeUp)
    experiment: Any = SimpleNamespace(description=dict)
    with Workers(2) as both:
        answers = both.run(experiment, "train", dict.fromkeys("abcdef", own.Nothing()), Place(1, 0), MemoryStore(tmp_path), True)
        with pytest.raises(ClientFailed, match="exit code -9"):
            next(answers)
        failed.set()
        both._threads.shutdown(wait=True)
    assert set(asked) <= {"a", "b", "c"}, "whoever waited was not asked"
