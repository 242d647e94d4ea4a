"""Messages between a process and its worker over a pipe: a JSON header, then bytes. Nothing is pickled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

__all__ = ["answer_stream", "read_frame", "start_process", "write_frame"]


def start_process(module: str, threads: int) -> subprocess.Popen[bytes]:
    """`python -m module` with pipes to it, for so many threads."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", module]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603


def answer_stream() -> IO[bytes]:
    """For a process at the other end, as its first act: where its answers go.

    What a method prints goes to standard error, not among the answers. Ctrl-C is the command's to handle; this process ends when its
    pipe does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers: IO[bytes] = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def write_frame(stream: IO[bytes], header: Mapping[str, Any], body: bytes = b"") -> None:
    head = json.dumps({**header, "body": len(body)}).encode()
    stream.write(len(head).to_bytes(4, "little") + head)
    stream.write(body)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """One message; EOFError when the other side has gone."""
    size = stream.read(4)
    if len(size) < 4:
        raise EOFError
    header = json.loads(stream.read(int.from_bytes(size, "little")))
    body = stream.read(header["body"])
    if len(body) < header["body"]:
        raise EOFError
    return header, body
