"""Files that are the old one or the new one, whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from unseen.files import write_atomically


def test_the_bytes_and_then_the_name_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that a power loss takes back would be an answer that left and that nobody knows of."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def replaced(one: Path, other: Path) -> None:
        done.append("name")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_atomically(tmp_path / "a", ("one ", b"two"))
    assert done == ["file", "name", "folder"] and (tmp_path / "a").read_bytes() == b"one two" and len([*tmp_path.iterdir()]) == 1
