"""The ledger: one changed byte is found, a kill while writing is mended."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from unseen.cli import app
from unseen.errors import BadInput
from unseen.federation.site.ledger import Ledger, read_ledger, verify


def filled(folder: Path, lines: int = 3) -> Path:
    ledger = Ledger(folder / "ledger.jsonl")
    for n in range(lines):
        ledger.append([{"run": "r", "round": n, "field": "model", "bytes": 10 * n}])
    return ledger.file


def test_lines_are_chained_and_readable_by_the_owner_alone(tmp_path: Path) -> None:
    file = filled(tmp_path)
    assert verify(file) == 3
    entries = list(read_ledger(file))
    assert entries[1]["previous"] == entries[0]["hash"]
    assert file.stat().st_mode & 0o777 == 0o600
    Ledger(file).append([{"run": "later"}])
    assert verify(file) == 4


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_one_changed_byte_is_found(position: int, flip: int, tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").unlink(missing_ok=True)
    (tmp_path / "ledger.jsonl.head").unlink(missing_ok=True)
    file = filled(tmp_path, 2)
    data = bytearray(file.read_bytes())
    data[position % len(data)] ^= flip
    file.write_bytes(bytes(data))
    with pytest.raises(BadInput, match="changed"):
        verify(file)


@pytest.mark.parametrize("damage", [lambda lines: lines[:-1], lambda lines: lines[1:], lambda lines: [lines[1], lines[0], lines[2]]])
def test_a_missing_or_moved_line_is_found(damage: Any, tmp_path: Path) -> None:
    file = filled(tmp_path)
    file.write_bytes(b"".join(damage(file.read_bytes().splitlines(keepends=True))))
    with pytest.raises(BadInput, match="changed"):
        verify(file)


def test_a_kill_while_writing_is_mended_but_a_cut_before_is_not(tmp_path: Path) -> None:
    file = filled(tmp_path)
    head = file.with_name("ledger.jsonl.head").read_bytes()
    Ledger(file).append([{"run": "x"}])
    file.with_name("ledger.jsonl.head").write_bytes(head)  # killed before the head was replaced
    file.write_bytes(file.read_bytes() + b'{"half')  # and in the middle of another line
    Ledger(file).append([{"run": "y"}])
    assert verify(file) == 5
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(BadInput):
        Ledger(file)


def test_a_full_disk_leaves_the_ledger_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = filled(tmp_path)
    ledger = Ledger(file)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            ledger.append([{"run": "lost"}])
    ledger.append([{"run": "kept"}])
    assert verify(file) == 4 and [e["run"] for e in read_ledger(file)][-1] == "kept"


def test_lines_that_a_disk_takes_in_part_are_taken_back(tmp_path: Path) -> None:
    """The kernel takes what still fits and refuses the rest, as a full disk does; the limit is lifted again afterwards."""
    resource = pytest.importorskip("resource")
    file = filled(tmp_path)
    ledger, before = Ledger(file), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 400, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            ledger.append([{"run": "lost", "field": n} for n in range(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    ledger.append([{"run": "kept"}])
    assert verify(file) == 4 and [e["run"] for e in read_ledger(file)][-1] == "kept"


def test_on_the_command_line(tmp_path: Path) -> None:
    file = filled(tmp_path)
    assert "3 lines" in CliRunner().invoke(app, ["ledger", "verify", str(tmp_path)]).output
    assert "model" in CliRunner().invoke(app, ["ledger", "show", str(tmp_path)]).output
    file.write_bytes(file.read_bytes().replace(b'"bytes":10', b'"bytes":11'))
    result = CliRunner().invoke(app, ["ledger", "verify", str(tmp_path)])
    assert result.exit_code == 2 and "line 2" in result.output
