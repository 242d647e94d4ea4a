"""The process with a site's data is the only one over its folder."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unseen.engines.frames import read_frame, write_frame
from unseen.errors import BadInput
from unseen.federation.kits import init
from unseen.federation.site import process
from unseen.federation.site.join import SiteSettings


class Watched(BytesIO):
    """An input that does something when it is at its end."""

    def __init__(self, first: bytes, then: Any) -> None:
        super().__init__(first)
        self._then = then

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if size and not data:
            self._then()
        return data


def test_a_second_process_over_a_sites_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = init(tmp_path / "server", "localhost", ["plain"]).path / "kits/plain.kit"
    settings = vars(SiteSettings(str(kit), str(tmp_path / "site"), "styled-digits", "plain", device="cpu"))
    process.open_kit(kit, tmp_path / "site")
    monkeypatch.setattr(process, "end_with_parent", lambda: None)
    monkeypatch.setattr(process.os, "umask", lambda mode: mode)
    monkeypatch.setattr(process, "_PATIENCE", 0.05)
    answers, question = BytesIO(), BytesIO()
    write_frame(question, settings)

    def another() -> None:
        with pytest.raises(BadInput, match=r"in use by another `unseen join`"), process._alone(tmp_path / "site"):
            pass

    monkeypatch.setattr(process, "answer_stream", lambda: answers)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Watched(question.getvalue(), another)))
    process.main()
    assert read_frame(BytesIO(answers.getvalue()))[0]["samples"] > 0
    with process._alone(tmp_path / "site"):  # it is over
        assert (tmp_path / "site/.site.lock").stat().st_mode & 0o077 == 0
