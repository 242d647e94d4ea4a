"""One attack and what came of it, in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from unseen.leakage.intervals import CHANCE, Separation

__all__ = ["WORDS", "Attempt", "Outcome", "membership_attempt", "not_run"]

Outcome = Literal["images", "better", "clear", "guessing", "silent", "untried"]
_WORKS = 0.75  # AUC of a control that is no chance: of 12 images and 12 others, one in fifty reaches it by guessing
WORDS: dict[Outcome, str] = {  # from the worst
    "images": "images come back",
    "better": "better than guessing",
    "clear": "leaves in the clear",
    "guessing": "no better than guessing",
    "silent": "says nothing",
    "untried": "not attacked",
}


@dataclass(frozen=True)
class Attempt:
    """An attack on something that left."""

    what: str  # what left
    attack: str
    outcome: Outcome
    verdict: str  # a sentence
    measure: str = ""  # what the figure is
    value: float | None = None
    low: float | None = None  # of the 99 % interval
    high: float | None = None
    baseline: float | None = None  # what guessing gives by the same measure
    control: float | None = None  # what the attack gives where it must succeed
    control_is: str = ""
    also: str = ""  # a second figure

    def values(self) -> dict[str, Any]:
        return asdict(self)


def not_run(what: str, attack: str, why: str, outcome: Outcome = "silent") -> Attempt:
    return Attempt(what, attack, outcome, why)


def membership_attempt(what: str, attack: str, found: Separation, control: float | None, control_is: str) -> Attempt:
    """Whether images that trained can be told from images that did not."""
    apart = found.low is not None and (found.low > 0.5 or (found.high or 0.0) < 0.5)
    sure = found.by_chance < CHANCE / 5  # a second look at the same scores
    also = f"{found.found:.1%} of them found ({found.found_low:.1%} to {found.found_high:.1%}) where at most 1 % of the others are mistaken"
    outcome: Outcome = "better" if apart or sure else "guessing"
    if outcome == "better":
        verdict = f"better than guessing: training images are told from others, {_chance(found)}"
    elif control is not None and control < _WORKS:
        outcome, verdict = "silent", "the attack fails even where it must succeed, so this row says nothing"
    else:
        verdict = "no better than guessing"
    return Attempt(what, attack, outcome, verdict, "AUC", found.auc, found.low, found.high, 0.5, control, control_is, also)


def _chance(found: Separation) -> str:
    if found.auc < 0.5:
        return f"{1 - found.auc:.0%} of the time with the score turned round"
    return f"{found.auc:.0%} of the time (half is chance)"
