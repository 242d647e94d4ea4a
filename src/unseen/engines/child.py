"""A Python process that this one starts, asks and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from unseen.engines.frames import read_frame, write_frame

__all__ = ["ChildEnded", "ChildProcess", "end_with_parent"]

_GRACE = 5.0  # seconds in which a process may end by itself
_PIPE = 2**20  # bytes that a pipe holds: a model goes through it in few turns


class ChildEnded(Exception):
    """The process ended before it had answered."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the process ended (exit code {code})")
        self.code = code


def end_with_parent() -> None:
    """For a process at the other end, as its first act: a killed parent cannot tell its children, so they look."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _append_to(log: Path) -> IO[bytes]:
    """The end of a log that only its owner can read."""
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _widen(pipe: IO[bytes]) -> None:
    with contextlib.suppress(ImportError, AttributeError, OSError):  # another system, or a user with too many pipes
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)


class ChildProcess:
    """`python -m module`, from its start to its end.

    With pipes, the two exchange frames over the child's standard streams, and the child ends when its input does. Without, the child
    reads nothing, writes to its log, and ends when the system tells it to.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        pipes: bool = True,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        with contextlib.ExitStack() as stack:
            written = stack.enter_context(_append_to(log)) if log else None
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else written,
                stderr=written,
                env={**os.environ, **limits, **(environment or {})},
            )
        self._in_call = threading.Lock()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _widen(pipe)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(
        self, header: Mapping[str, Any], body: bytes | memoryview = b"", tell: Callable[[dict[str, Any]], None] | None = None
    ) -> tuple[dict[str, Any], bytes | memoryview]:
        """Send a frame and read the one that answers it. ChildEnded if the process ends before.

        What the process tells on the way (frames with the key `told`) goes to `tell`.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._in_call:
            try:
                write_frame(self._process.stdin, header, body)
                while "told" in (answer := read_frame(self._process.stdout))[0]:
                    if tell is not None:
                        tell(answer[0]["told"])
                return answer
            except (EOFError, BrokenPipeError) as error:
                raise ChildEnded(self._wait(_GRACE)) from error
            except BaseException:  # cut short: what the process still answers would pass for the answer to the next call
                self._process.kill()
                raise

    def stop(self, grace: float = _GRACE) -> int:
        """End the process, whatever it does, and close its streams; returns its exit code.

        It may take `grace` seconds to end by itself. A process that another thread is calling has none: that answer is not wanted.
        """
        if not self._in_call.acquire(blocking=False):  # the other thread uses the streams; they are closed when it is done with them
            self._wait(0)
            self._in_call.acquire()
        try:
            self._close_streams()
            if self._process.stdin is None:
                self._process.terminate()
            return self._wait(grace)
        finally:
            self._in_call.release()

    def _close_streams(self) -> None:
        """Both: a process that waits for somebody to read its answers would not see the end of its input."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what was not yet sent to a process that is gone
                    stream.close()

    def _wait(self, grace: float) -> int:
        try:
            return self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
