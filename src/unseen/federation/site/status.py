"""How a site stands, read from its folder: whether it is at work, its studies, its ledger, what was spent. Nothing is started for it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.errors import BadInput
from unseen.federation.kits import Kit, open_kit
from unseen.federation.site.by_hand import is_at_work, pending, waiting_studies
from unseen.federation.site.ledger_chain import read_ledger, verify
from unseen.federation.study.study import Study, read_signed_study, read_study

__all__ = ["SiteStatus", "StudyAtSite", "site_status"]

_MOST_REFUSALS = 50


@dataclass(frozen=True)
class StudyAtSite:
    """One study in a site's folder."""

    study: str
    method: str
    rounds: int
    sums: bool
    state: str  # waits for approval, approved, runs, ended, cannot be read
    round: int = 0
    approved: str = ""  # when, and by whom
    left: int = 0  # bytes, as the ledger has them


@dataclass(frozen=True)
class SiteStatus:
    """What a person at a site wants to know."""

    site: str
    federation: str
    server: str
    folder: str
    at_work: bool
    connected_since: float | None  # seconds of the epoch; None without a line, and over a folder
    studies: list[StudyAtSite]
    to_take_up: int  # approvals that wait for `unseen join`
    ledger_lines: int
    ledger_head: str
    ledger_problem: str
    plain_answers: int  # that left without noise
    epsilon: float | None  # spent with noise so far
    refusals: list[tuple[str, str]]  # the last ones: when, why


def site_status(folder: Path) -> SiteStatus:
    """BadInput if this is no site's folder. A ledger that was changed is no error here; it is said."""
    kit = open_kit(folder, folder)
    entries, problem = _ledger(kit)
    at_work, line = is_at_work(folder), folder / "flower/connected"
    answers = {entry["question"]: entry for entry in entries if "noise" in entry and "question" in entry}
    spent = [entry["epsilon"] for entry in answers.values() if isinstance(entry.get("epsilon"), int | float)]
    return SiteStatus(
        site=kit.client,
        federation=kit.federation,
        server=kit.server,
        folder=str(folder),
        at_work=at_work,
        connected_since=line.stat().st_mtime if at_work and line.exists() else None,
        studies=[*_waiting(kit), *_approved(folder, entries)],
        to_take_up=len([*pending(folder)]),
        ledger_lines=len(entries),
        ledger_head=str(entries[-1].get("hash", "")) if entries else "",
        ledger_problem=problem,
        plain_answers=sum(not entry["noise"] for entry in answers.values()),
        epsilon=max(spent) if spent else None,
        refusals=[(str(e.get("time", "")), str(e.get("reason", ""))) for e in entries if e.get("kind") == "refusal"][-_MOST_REFUSALS:],
    )


def _ledger(kit: Kit) -> tuple[list[dict[str, Any]], str]:
    file = kit.path / "ledger.jsonl"
    if not file.exists() and not file.with_name("ledger.jsonl.head").exists():
        return [], ""
    try:
        verify(file, kit.signing.public_key(), kit.server_key, earlier=kit.earlier)
        return [*read_ledger(file)], ""
    except BadInput as changed:
        return [], str(changed)


def _waiting(kit: Kit) -> list[StudyAtSite]:
    found = []
    for file in waiting_studies(kit.path):
        with contextlib.suppress(OSError, BadInput):
            found.append(_of(read_signed_study(file.read_bytes(), kit.server_key), "waits for approval"))
    return found


def _approved(folder: Path, entries: list[dict[str, Any]]) -> list[StudyAtSite]:
    approvals = {entry["study"]: entry for entry in entries if entry.get("kind") == "approval"}
    found = []
    for file in (folder / "studies").glob("*/approval.json"):
        name = file.parent.name
        told = approvals.get(name, {})
        by = {"hand": "a person", "rule": "rule"}.get(str(told.get("by")), "")
        approved = f"{str(told.get('time', ''))[:16].replace('T', ' ')} by {by}" if by else ""
        left = sum(entry["bytes"] for entry in entries if entry.get("study") == name and isinstance(entry.get("bytes"), int))
        try:
            study = read_study(json.loads((file.parent / "study.json").read_text()))
            round_number, ended = _progress(file.parent)
        except (OSError, ValueError, RecursionError):
            found.append(StudyAtSite(name, "?", 0, False, "cannot be read: it was changed, or another version wrote it", 0, approved, left))
            continue
        state = "ended" if ended else "runs" if round_number >= 0 else "approved, not begun"
        found.append(_of(study, state, max(0, round_number), approved, left))
    return sorted(found, key=lambda one: one.approved)


def _progress(folder: Path) -> tuple[int, bool]:
    """The round that a study is in, -1 before the first question, and whether it has ended."""
    try:
        told = json.loads((folder / "progress.json").read_text())
        return int(told["order"][0]), told["ended"] is True
    except FileNotFoundError:
        return -1, False
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError("no progress") from error


def _of(study: Study, state: str, round_number: int = 0, approved: str = "", left: int = 0) -> StudyAtSite:
    return StudyAtSite(study.digest, str(study.experiment["method"]), study.rounds, study.sums, state, round_number, approved, left)
