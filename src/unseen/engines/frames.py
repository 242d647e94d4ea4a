"""Messages between two processes over a pipe: a JSON header, then bytes. Nothing is pickled."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Mapping
from typing import IO, Any

__all__ = ["answer_stream", "frame_parts", "read_frame", "room_for", "write_frame"]

_LARGE = 2**22  # bytes from which memory is asked of the system in large pages


def room_for(size: int) -> memoryview:
    """Memory for so many bytes that are to be written. In large pages a model is written several times as fast."""
    if size < _LARGE:
        return memoryview(bytearray(size)) if size else memoryview(b"")
    room = mmap.mmap(-1, size)
    with contextlib.suppress(AttributeError, OSError):  # not every system has them
        room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)


def answer_stream() -> IO[bytes]:
    """For a process at the other end, as its first act: where its answers go.

    What a method prints goes to standard error, not among the answers. Ctrl-C is the command's to handle; this process ends when its
    pipe does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers: IO[bytes] = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def frame_parts(header: Mapping[str, Any], body: bytes | memoryview = b"") -> tuple[bytes | memoryview, ...]:
    """A message as it is written: what goes before the body, and the body."""
    head = json.dumps({**header, "body": len(body)}).encode()
    return len(head).to_bytes(4, "little") + head, body


def write_frame(stream: IO[bytes], header: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
    for part in frame_parts(header, body):
        stream.write(part)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes | memoryview]:
    """One message; EOFError when the other side has gone."""
    header = json.loads(bytes(_whole(stream, int.from_bytes(_whole(stream, 4), "little"))))
    return header, _whole(stream, header["body"])


def _whole(stream: IO[bytes], size: int) -> bytes | memoryview:
    if size < _LARGE:
        data = stream.read(size)
        if len(data) < size:
            raise EOFError
        return data
    room, at = room_for(size), 0
    while at < size:
        read = stream.readinto(room[at:])  # type: ignore[attr-defined]
        if not read:
            raise EOFError
        at += read
    return room
