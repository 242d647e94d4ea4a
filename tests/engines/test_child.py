"""A child process: one call, one answer; and it ends, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unseen.engines.child import ChildEnded, ChildProcess

TESTS = str(Path(__file__).parents[1])
LARGE = bytes(2**20)  # more than a pipe holds
NEVER = 30.0  # seconds of grace that no test should use up


@pytest.fixture
def children() -> Iterator[Any]:
    """Starts children, and sees that each of them is gone afterwards, with its streams."""
    started: list[ChildProcess] = []

    def start(behaviour: str, **settings: Any) -> ChildProcess:
        path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
        started.append(ChildProcess("child_for_tests", behaviour, environment={"PYTHONPATH": path}, **settings))
        return started[-1]

    yield start
    for child in started:
        child.stop(grace=0)
        assert not child.alive
        assert all(stream is None or stream.closed for stream in (child._process.stdin, child._process.stdout))


def within(seconds: float, what: Any, *arguments: Any) -> Any:
    began = time.monotonic()
    outcome = what(*arguments)
    assert time.monotonic() - began < seconds
    return outcome


def test_one_frame_brings_one_back_until_the_end_of_the_input(children: Any) -> None:
    child = children("answers", threads=3)
    assert child.call({"say": "a"}, LARGE) == ({"echo": "a", "threads": "3", "body": len(LARGE)}, LARGE)
    assert child.call({"say": "b"})[0]["echo"] == "b"
    assert child.alive
    assert within(NEVER, child.stop, NEVER) == 0, "it ended by itself"
    assert child.stop() == 0, "once more does no harm"


def test_one_that_ignores_the_end_of_its_input_is_killed(children: Any) -> None:
    child = children("ignores")
    child.call({"say": "ready"})
    assert within(20, child.stop, 0.1) == -signal.SIGKILL


@pytest.mark.parametrize("stopped", [False, True])
def test_one_that_was_killed(children: Any, stopped: bool) -> None:
    child = children("answers")
    child.call({"say": "ready"})
    if stopped:  # it lies in the system's hands, and hears nothing
        os.kill(child.pid, signal.SIGSTOP)
        assert within(20, child.stop, 0.1) == -signal.SIGKILL
        return
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildEnded, match=r"exit code -9"):
        child.call({"say": "?"}, LARGE)
    assert within(20, child.stop, NEVER) == -signal.SIGKILL


@pytest.mark.parametrize("when", ["between", "within"])
def test_one_that_dies_in_the_middle_of_a_call(children: Any, when: str) -> None:
    child = children("answers")
    with pytest.raises(ChildEnded) as told:
        child.call({"die": when})
    assert told.value.code == 7 and not child.alive


def test_one_that_fills_its_pipe_and_never_reads(children: Any) -> None:
    """A call from another thread hangs then; ending the process ends the call."""
    child, told = children("writes"), list[BaseException]()

    def call() -> None:
        try:
            child.call({"say": "?"}, LARGE)
        except ChildEnded as ended:
            told.append(ended)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive(), "neither can go on"
    assert within(20, child.stop, NEVER) == -signal.SIGKILL
    thread.join(20)
    assert not thread.is_alive() and len(told) == 1


def test_one_that_fills_its_pipe_ends_when_nobody_will_read_it(children: Any) -> None:
    child = children("writes")
    time.sleep(0.2)
    assert within(20, child.stop, NEVER) != 0


def test_a_call_that_is_cut_short_leaves_no_answer_for_the_next(children: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    child = children("answers")
    child.call({"say": "ready"})

    def interrupted(stream: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("unseen.engines.child.read_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            child.call({"say": "an answer nobody waited for"})
    with pytest.raises(ChildEnded):
        child.call({"say": "next"})


def test_one_without_pipes_writes_to_its_log_and_is_told_to_end(children: Any, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    stays = children("stays", pipes=False, log=log)
    while "ready" not in log.read_text():
        assert stays.alive
        time.sleep(0.05)
    assert log.stat().st_mode & 0o777 == 0o600
    assert within(20, stays.stop, 0.1) == -signal.SIGKILL, "it ignored what it was told"
    ends = children("answers", pipes=False, log=log)
    assert within(NEVER, ends.stop, NEVER) in (0, -signal.SIGTERM)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
def test_one_that_stays_with_its_parent_ends_when_that_is_killed() -> None:
    start = "from unseen.engines.child import ChildProcess; print(ChildProcess('child_for_tests', 'stays with its parent').pid, flush=True)"
    path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", f"{start}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().decode().strip()
        until(lambda: b"child_for_tests" in (child / "cmdline").read_bytes() and len([*(child / "task").iterdir()]) > 1)
        parent.kill()
    until(lambda: not child.exists() or ") Z " in (child / "stat").read_text())


def until(fits: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not fits():
        assert time.monotonic() < end
        time.sleep(0.05)
