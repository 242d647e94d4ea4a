"""Messages between two processes over a pipe: a JSON header, then bytes. Nothing is pickled."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import IO, Any

__all__ = ["answer_stream", "read_frame", "write_frame"]


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
    header = json.loads(_whole(stream, int.from_bytes(_whole(stream, 4), "little")))
    return header, _whole(stream, header["body"])


def _whole(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
