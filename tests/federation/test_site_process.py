"""The process with a site's data is the only one over its folder."""

from __future__ import annotations

import sys
import time
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unseen.engines.frames import read_frame, write_frame
from unseen.errors import BadInput
from unseen.federation.kits import init
from unseen.federation.messages import SignedMessage
from unseen.federation.site import join, process
from unseen.federation.site.join import SiteSettings
from unseen.federation.site.studies import SiteStudies


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


class Resting:
    """A process with data that says whether a study is under way, and counts hellos as a responder does."""

    made: list[Resting]
    at_rest = True

    def __init__(self, module: str, *, log: Path) -> None:
        self.alive, self.asked = True, 0
        self.made.append(self)

    def call(self, header: dict[str, Any], body: bytes = b"", tell: Any = None) -> tuple[dict[str, Any], bytes]:
        if "kit" in header:
            self.settings = header
            return {"samples": 1, "warnings": [], "approved": []}, b""
        self.asked += 1
        hellos = self.settings["hellos"] + self.asked
        return {"header": "{}", "signature": "", "at_rest": self.at_rest, "hellos": hellos}, body

    def stop(self) -> int:
        self.alive = False
        return 0


def until(true: Any) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_process_with_the_data_is_there_only_during_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "ChildProcess", Resting)
    monkeypatch.setattr(join, "_AT_REST", 0.03)
    monkeypatch.setattr(Resting, "made", [], raising=False)
    site = join.SiteProcess(SiteSettings("a.kit", str(tmp_path), "data", approve=("study.json",)))
    (first,) = Resting.made
    assert first.settings["approve"] == ("study.json",)
    until(lambda: not first.alive)
    question = SignedMessage("{}", b"?", b"")
    assert site.answer(question).payload == b"?" and site.answer(question).payload == b"?"  # it is started by a question
    _, second = Resting.made
    assert second.settings["hellos"] == 0 and second.settings["approve"] == () and second.asked == 2
    until(lambda: not second.alive)
    monkeypatch.setattr(Resting, "at_rest", False)
    site.answer(question)
    third = Resting.made[-1]
    assert third.settings["hellos"] == 2  # a limit does not begin anew with the process
    time.sleep(0.15)
    assert third.alive  # during a study it stays
    site.close()
    assert not third.alive and len(Resting.made) == 3


def test_a_site_is_at_rest_unless_a_study_is_under_way() -> None:
    studies = SiteStudies.__new__(SiteStudies)
    for agreed, ended, rests in ((False, False, True), (True, False, False), (True, True, True)):
        held: Any = SimpleNamespace(agreed=agreed, progress=SimpleNamespace(ended=ended))
        studies._held = {"old": SimpleNamespace(agreed=True, progress=SimpleNamespace(ended=True)), "new": held}  # type: ignore[dict-item]
        assert studies.at_rest is rests
