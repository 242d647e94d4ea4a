"""Messages between a process and its worker over a pipe: a JSON header, then bytes. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

__all__ = ["read_frame", "write_frame"]


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
