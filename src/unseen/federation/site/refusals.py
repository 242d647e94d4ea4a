"""What a site refused, in its ledger: so little of it that a server which asks without end does not fill the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from unseen.federation.site.ledger import Ledger
from unseen.federation.site.policy import Policy

__all__ = ["Refusals"]

_DIGEST = re.compile(r"[0-9a-f]{64}")  # the name of a study
_OF_A_RULE = 20  # noted in one hour of the clock
_LONGEST = 500  # characters of a reason
_BESIDE = {"study", "question", "memory", "receipt", "hello", "data", "evaluate-only", "secure sums"}  # what else a refusal may name
_RULES = _BESIDE | {field.name for field in dataclasses.fields(Policy)}


class Refusals:
    """Notes refused questions. In one hour each rule has its own number of them, so that one cannot hide the others."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._hour, self._noted = _hour(), Counter[str]()
        for entry in ledger.entries():  # a process that begins anew does not begin to count anew
            if entry.get("kind") == "refusal" and str(entry["time"]).startswith(self._hour):
                self._noted[_rule(str(entry["reason"]))] += 1

    def note(self, header: Mapping[str, Any], question: str, reason: str) -> None:
        """One line, or none where the hour has enough of them. The last one says so."""
        if (hour := _hour()) != self._hour:
            self._hour, self._noted = hour, Counter()
        rule = _rule(reason)
        if self._noted[rule] > _OF_A_RULE:
            return
        if self._noted[rule] == _OF_A_RULE:
            reason = f"{rule}: further refusals of this kind are not noted in this hour"
        study = header.get("study")
        name = study if isinstance(study, str) and _DIGEST.fullmatch(study) else ""
        entry = {"kind": "refusal", "study": name, "question": question, "task": header.get("task"), "reason": reason[:_LONGEST]}
        with contextlib.suppress(OSError):  # a refusal lets nothing out, so a full disk need not keep it back
            self._ledger.append([entry])
            self._noted[rule] += 1


def _rule(reason: str) -> str:
    """The rule that a refusal names before its colon. Those that name none count as one: nobody can make up more rules."""
    name = reason.partition(":")[0]
    return name if name in _RULES else "other"


def _hour() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="hours")[: len("2000-01-01T00")]
