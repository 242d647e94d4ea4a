"""Refused questions in a site's ledger: short, and so many in an hour, however often a server asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from conftest import tiny_classification
from federation_in_memory import FederationInMemory
from unseen.federation.messages import Message, sign
from unseen.federation.site import refusals
from unseen.federation.site.ledger import Ledger, read_ledger
from unseen.federation.site.refusals import Refusals

KEY, SERVER = (Ed25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n in (1, 2))
STUDY, MOST = "5" * 64, 20


def opened(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.jsonl", KEY, SERVER.public_key(), "north", federation="f")


def noted(folder: Path) -> list[str]:
    return [entry["reason"] for entry in read_ledger(folder / "ledger.jsonl") if entry["kind"] == "refusal"]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hour, which a test may change."""
    now = ["2026-01-01T10"]
    monkeypatch.setattr(refusals, "_hour", lambda: now[0])
    return now


def test_a_server_cannot_fill_a_sites_disk_with_refused_questions(tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny_classification((40, 30, 20, 20)), "d")
    site, file = federation.carrier.responders["a"], tmp_path / "a" / "ledger.jsonl"
    for number in range(MOST + 30):
        header = {"task": "begin", "study": f"{number}" + "x" * 100_000, "federation": federation.server.id, "to": "a"}
        answer = json.loads(site.answer(sign(Message(header), federation.server.signing, "question")).header)
        assert answer["status"] == "refused" and "the study's name is not taken" in answer["reason"]
    assert file.stat().st_size < 50_000
    lines = noted(tmp_path / "a")
    assert len(lines) == MOST + 1 and lines[-1] == "question: further refusals of this kind are not noted in this hour"
    assert {entry["study"] for entry in read_ledger(file) if entry["kind"] == "refusal"} == {""}


def test_one_kind_of_refusal_hides_no_other(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    kept = Refusals(ledger)
    for number in range(100):
        kept.note({"study": STUDY, "task": "ask"}, "", f"question: {number}")
        kept.note({"study": STUDY, "task": "ask"}, "", f"made up {number}: {number}")
    kept.note({"study": STUDY, "task": "ask"}, "", "privacy: epsilon would be 9.00, at most 8 may be spent")
    lines = noted(tmp_path)
    assert len(lines) == 2 * (MOST + 1) + 1 and lines[-1].startswith("privacy")
    assert list(read_ledger(tmp_path / "ledger.jsonl"))[-1]["study"] == STUDY


def test_the_next_hour_has_room_again_and_a_new_process_has_not(tmp_path: Path, clock: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Refusals(opened(tmp_path))
    for _ in range(100):
        kept.note({"task": "ask"}, "", "study: no")
    assert len(noted(tmp_path)) == MOST + 1
    clock[0] = "2026-01-01T11"
    kept.note({"task": "ask"}, "", "study: no")
    assert len(noted(tmp_path)) == MOST + 2
    monkeypatch.undo()
    for _ in range(3):  # a process that ends over a question begins anew
        kept = Refusals(opened(tmp_path))
        for _ in range(100):
            kept.note({"task": "ask"}, "", "study: no")
    assert len(noted(tmp_path)) <= 2 * (MOST + 2), "twice where the hour ends just now"
