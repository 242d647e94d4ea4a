"""Writing files so that a crash, a kill or a full disk never leaves half of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["OWNER_ALONE", "append_whole", "write_atomically"]

Part = bytes | memoryview | str
OWNER_ALONE = 0o600  # the mode of a file that nobody else may read


def write_atomically(path: Path, data: Part | tuple[Part, ...], mode: int = 0o666) -> None:
    """The file is the old one or the new one, whole, whatever happens in between; `mode` is what the umask leaves of it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            for part in data if isinstance(data, tuple) else (data,):
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        _keep_names(path.parent)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _keep_names(folder: Path) -> None:
    """A folder's names on the disk: after a power loss the file is still the new one. Some systems and shares cannot do it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_whole(path: Path, at: int, lines: bytes, then: Callable[[], None] = lambda: None) -> None:
    """Write lines at this byte of a file that only its owner reads, replacing what lies behind it, and do `then`: all or nothing.

    What a full disk cut short is taken back. Unbuffered, or closing would write the rest after all.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0) as stream:
        os.ftruncate(stream.fileno(), at)
        stream.seek(at)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[stream.write(rest) :]
            os.fsync(stream.fileno())
            then()
        except OSError:
            os.ftruncate(stream.fileno(), at)
            raise
