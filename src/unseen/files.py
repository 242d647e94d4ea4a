"""Writing files so that a crash, a kill or a full disk never leaves half of one."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes | str) -> None:
    """The file is the old one or the new one, whole, whatever happens in between."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    content = data.encode() if isinstance(data, str) else data
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
