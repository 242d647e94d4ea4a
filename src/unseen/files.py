"""Writing files so that a crash, a kill or a full disk never leaves half of one."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["OWNER_ALONE", "write_atomically"]

OWNER_ALONE = 0o600  # the mode of a file that nobody else may read


def write_atomically(path: Path, data: bytes | str, mode: int | None = None) -> None:
    """The file is the old one or the new one, whole, whatever happens in between. With a `mode` nobody else ever had it open to them."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    content = data.encode() if isinstance(data, str) else data
    try:
        with scratch.open("wb") as file:
            if mode is not None:
                scratch.chmod(mode)  # before there is anything in it
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
