"""What is told of a federation at work: events at both ends, safe texts, and logs that stay small."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import tiny_classification
from federation_in_memory import EVERYTHING, FederationInMemory
from unseen import Experiment
from unseen.federation.activity import BoundedLog, Event, printable
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import begin, propose
from unseen.federation.server.standing import StudyFile, log_of, standings
from unseen.federation.site.responder import Responder
from unseen.methods import METHODS
from unseen.parts import PARTS
from unseen.runs.watch import Silent
from unseen.settings import build
from unseen.training import train

FOUR = tiny_classification((24, 20, 16, 12))
FEDAVG = Experiment(build(METHODS["fedavg"], {"batch": 8, "optimizer": "sgd"}, PARTS), FOUR.name, "d", rounds=2)


class Watched(FederationInMemory):
    """A federation whose sites tell what they do."""

    told: dict[str, list[Event]]

    def responder(self, name: str) -> Responder:
        responder = super().responder(name)
        self.told = getattr(self, "told", {})
        responder._tell._observer = self.told.setdefault(name, []).append
        return responder


@pytest.fixture
def federation(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "sites", FOUR, "d")


@given(st.text())
def test_a_text_from_elsewhere_is_one_short_line_without_control_characters(text: str) -> None:
    seen = printable(text)
    assert len(seen) <= 500 and seen.isprintable()
    assert seen == text or not text.isprintable() or len(text) > 500
    line = Event("refused", text, text, text, 3, 9, text).line
    assert line.isprintable() and "\x1b" not in line


def test_a_whole_study_is_told_at_both_ends(federation: Watched, tmp_path: Path) -> None:
    carrier, server = federation.carrier, federation.server
    study = propose(FEDAVG, server, carrier, Terms(), lambda text: None)
    seen: list[Event] = []
    with StudyFile(server.path, study, tmp_path / "run", seen.append) as standing:
        run = begin(FEDAVG, study, server, carrier, Terms(), lambda text: None, standing)
        (now,) = standings(server.path)
        assert (now.state, now.round, now.at_work, now.sites) == ("begins", 0, True, ["a", "b", "c", "d"])
        train(FEDAVG, tmp_path / "run", watch=Silent(), elsewhere=run)
        (now,) = standings(server.path)
        assert (now.state, now.round, now.rounds, now.waiting) == ("runs", 2, 2, {})
        standing(Event("ended", study=study.digest))
    (now,) = standings(server.path)
    assert now.state == "ended" and not now.at_work and now.waits_for == "nothing: it has ended" and not now.errors

    lines = [event.line for event in federation.told["a"]]
    name = f"study {study.digest[:8]}"
    assert lines[0].startswith("hello: answered, ") and lines[1] == f"{name}: approved: by this site's rules"
    assert [line.split(",")[1:3] for line in lines if "asked" in line] == [
        [f" round {n} of 2", f" {task}: asked"] for n in (1, 2) for task in ("train", "score")
    ]
    assert lines[-1] == f"{name}: ended"
    answered = [event for event in federation.told["a"] if event.kind == "answered" and event.study]
    assert [event.next for event in answered] == [
        "the score after round 1", "train, round 2", "the score after round 2", "nothing: the study is at its end"
    ]  # fmt: skip
    assert [event.text for event in answered] == ["model, count", "score, count"] * 2
    assert [event.next for event in federation.told["d"] if event.kind == "answered"][1] == "the score, round 2"

    # The server counts the bytes that the sites say have left.
    by_site = {site: [e.bytes for e in told if e.kind == "answered" and e.study] for site, told in federation.told.items()}
    assert {site: [e.bytes for e in seen if e.site == site and e.kind == "answered" and e.round] for site in "abcd"} == by_site
    assert now.bytes == sum(sum(sizes) for sizes in by_site.values()) > 0
    log = log_of(server.path).read_text()
    assert f"a, {name}, round 2 of 2, train: answered" in log and oct(log_of(server.path).stat().st_mode)[-3:] == "600"


def test_the_server_says_who_is_waited_for_and_who_has_not_approved(tmp_path: Path) -> None:
    federation = Watched(tmp_path / "sites", FOUR, "d", {"b": replace(EVERYTHING, studies="by-hand")}, by_rule=False)
    study = propose(FEDAVG, federation.server, federation.carrier, Terms(), lambda text: None)
    StudyFile(federation.server.path, study)
    (now,) = standings(federation.server.path)
    assert now.state == "proposed" and "approval" in now.waits_for
    said: list[str] = []
    with StudyFile(federation.server.path, study, tmp_path / "run") as standing:
        begin(FEDAVG, study, federation.server, federation.carrier, Terms(), said.append, standing)
        standing(Event("asked", site="b", study=study.digest, round=1, ask=1, bytes=9))
        (now,) = standings(federation.server.path)
        assert now.waits_for.startswith("b (train, ") and now.last["b"] == "has not approved it"
        ((when, error),) = now.errors
        assert "nobody here has approved" in error and when > 0
    (now,) = standings(federation.server.path)
    assert now.waits_for == "`unseen run --resume`: it is not running"
    assert [event.kind for event in federation.told["b"]] == ["answered", "waits"]


def test_a_reason_from_a_site_reaches_nobody_with_control_characters(federation: Watched) -> None:
    from unseen.federation.messages import Message, sign
    from unseen.federation.server.exchange import Exchange
    from unseen.method import Refused

    def evil(client: str, signed: object) -> object:
        from unseen.federation.messages import SignedMessage

        assert isinstance(signed, SignedMessage)
        header = json.loads(signed.header) | {"status": "refused", "reason": "\x1b]0;owned\x07\n[red]fine"}
        return sign(Message(header), federation.carrier.responders[client]._key, "answer")

    federation.carrier.tamper = evil  # type: ignore[assignment]
    seen: list[Event] = []
    exchange = Exchange(federation.server, federation.carrier, Terms(), seen.append)
    ((_, answer),) = exchange.ask({"a": Message({"task": "hello", "nonce": "1"})})
    assert answer == Refused("refused by the site: ?]0;owned??[red]fine")
    assert [event.kind for event in seen] == ["asked", "refused"] and seen[1].line.isprintable()


def test_what_stands_in_the_folder_may_be_anything(federation: Watched, tmp_path: Path) -> None:
    folder = federation.server.path / "studies"
    folder.mkdir()
    for number, text in enumerate(('{"study": 1}', "[]", "{", "null", "9" * 300_000, json.dumps({"study": "a" * 64, "odd": 1}))):
        (folder / f"{number}.json").write_text(text)
    assert standings(federation.server.path) == []
    assert standings(tmp_path / "nowhere") == []


def test_a_log_stays_within_twice_its_bound_and_others_append_to_it(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "site.log", most=2000)
    other = os.open(tmp_path / "site.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in range(300):
        log.write(f"line {number}")
        os.write(other, b"from another process\n")
        assert sum(file.stat().st_size for file in tmp_path.glob("site.log*")) <= 4200
    os.close(other)
    assert "line 299" in (tmp_path / "site.log").read_text() + (tmp_path / "site.log.1").read_text()
    BoundedLog(tmp_path / "no/such/folder.log").write("is lost, and nothing else")
