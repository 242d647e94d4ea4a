"""The recommendation: which method, which commands, for what reasons, on what evidence."""

from __future__ import annotations

import importlib.resources
import math
import shlex
import tomllib
from dataclasses import dataclass
from typing import Any

from unseen.advice.costing import Costs, steps_in_a_round
from unseen.advice.looking import SMALL, UNEVEN, Look
from unseen.method import Method
from unseen.methods import method_class

__all__ = ["RECOMMENDED", "Advice", "Evidence", "Request", "advise", "evidence"]

RECOMMENDED = "best"  # this project's recipe, for both tasks
_START = 20  # seconds that a run may take to begin: up to 15 were seen with two busy cores
_ALIKE = 1.5  # times the chance gap, below which sites look alike


@dataclass(frozen=True)
class Evidence:
    """One row of a committed table against its FedAvg: points, with a 95 % interval over pairs."""

    table: str
    task: str
    row: str
    against: str
    method: str
    parts: tuple[str, ...]
    difference: float
    low: float
    high: float
    domains: int
    seeds: int
    decision: str

    def __str__(self) -> str:
        size = f"{self.difference:+.1f} ({self.low:+.1f} to {self.high:+.1f}; {self.domains} domains, {self.seeds} seeds)"
        return f"{self.table}: {self.row} against {self.against} {size}: {self.decision}"


@dataclass(frozen=True)
class Request:
    """What the user said. The commands repeat it: costs were measured so."""

    data: str
    target: str | None
    rounds: int = 20
    network: str | None = None
    size: int | None = None
    device: str = "auto"
    timed: bool = True  # False: --seconds 0

    def options(self, target: str | None) -> str:
        """As a command has them, with this target."""
        given = {"data": self.data, "target": target, "rounds": self.rounds, "network": self.network, "size": self.size}
        given |= {"device": None if self.device == "auto" else self.device}
        return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)


@dataclass(frozen=True)
class Advice:
    """What to run, and why."""

    method: str
    commands: tuple[str, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    cost: tuple[str, ...]
    leaves: tuple[str, ...]


def evidence() -> list[Evidence]:
    """What the package's own tables say, from the file that is made of them (benchmarks/evidence/advice.py)."""
    text = (importlib.resources.files("unseen.advice") / "evidence.toml").read_text(encoding="utf-8")
    return [Evidence(**{**row, "parts": tuple(row["parts"])}) for row in tomllib.loads(text)["findings"]]


def advise(look: Look, asked: Request, costs: Costs | None, cores: int, method: str) -> Advice:
    """Everything that is said, from what was seen and measured."""
    made = method_class(method)()
    found = [one for one in evidence() if (one.task, one.method) == (look.task, method)]
    minutes = _tune_minutes(look, made, asked.rounds, costs, len(made.variants), cores)
    return Advice(
        method,
        _commands(look, asked, method, minutes),
        tuple(_reasons(look, method)),
        tuple(_warnings(look, asked.target)),
        tuple(found),
        tuple(_cost(look, made, asked, costs, cores)),
        _leaves(costs),
    )


def _commands(look: Look, asked: Request, method: str, minutes: int | None) -> tuple[str, ...]:
    """The variants are tried first, where there are any and a source can be held out."""
    metric = " --metric balanced_accuracy" if look.uneven > UNEVEN else ""
    if method_class(method).variants and len(look.images) >= 3:
        budget = f" --budget minutes={minutes}" if minutes else ""
        tuning = f"unseen tune {method} {asked.options(asked.target)}{metric}{budget} --out runs/tune-{method}"
        return tuning, f"unseen {'run' if asked.target else 'bench'} runs/tune-{method}/tuned.toml --out runs/{method}"
    return (f"unseen run --method {method} {asked.options(asked.target or next(iter(look.images)))}{metric} --out runs/{method}",)


def _reasons(look: Look, method: str) -> list[str]:
    told = []
    if look.gaps is not None:
        apart = f"two sites differ {look.gaps.times:.1f} times as much in style as two halves of one"
        if look.gaps.times < _ALIKE:
            told.append(f"{apart}: the sites look alike, so that restyling has little to win; a new site may still look different")
        else:
            told.append(f"{apart}: a new site will look different too, and a model must not go by the style")
    if look.task == "segmentation":
        told.append("masks are compared by Dice and the surface distance; labels are not smoothed")
    if method_class(method).variants and len(look.images) >= 3:
        told.append(
            "restyling can lose where texture or colour is the sign itself, moving where lines are thin: your own sources decide between "
            "the variants (unseen tune)"
        )
    return told


def _warnings(look: Look, target: str | None) -> list[str]:
    told = []
    if look.uneven > UNEVEN:
        told.append(
            f"class shares differ between sites by up to {100 * look.uneven:.0f} %: accuracy rewards guessing the common class; "
            "go by balanced_accuracy, and look at AUC"
        )
    small = [f"{name} ({count})" for name, count in look.images.items() if count < SMALL]
    if small:
        told.append(f"few images at {', '.join(small)}: their validation says little, and their model weighs as much as any other")
    if len(look.images) < 3:
        told.append(f"{len(look.images)} sources: one cannot be held out and two trained on, so nothing can be chosen by held-out source")
    if target is None and len(look.images) >= 3:
        told.append("no unseen domain was named: how it does at a new site is estimated by leaving out each of yours in turn")
    elif target is None:
        told.append("no unseen domain was named: the command leaves out one of your sites, so that the other trains alone")
    return told


def _times(look: Look, made: Method[Any], costs: Costs) -> list[float] | None:
    """Seconds of a round at each site."""
    steps = [steps_in_a_round(made, look.task, int(0.9 * count)) for count in look.images.values()]
    return [costs.seconds(number) for number in steps if number is not None] or None


def _tune_minutes(look: Look, made: Method[Any], rounds: int, costs: Costs | None, variants: int, cores: int) -> int | None:
    """Every variant, without each source in turn, with a fifth to spare."""
    times = _times(look, made, costs) if costs else None
    if not times or variants < 2:
        return None
    trained = sum(times) * (len(times) - 1) / min(cores, len(times) - 1)  # over all choices of the one that is left out
    return math.ceil(1.2 * variants * (rounds * trained + len(times) * _START) / 60)


def _cost(look: Look, made: Method[Any], asked: Request, costs: Costs | None, cores: int) -> list[str]:
    times, rounds = _times(look, made, costs) if costs else None, asked.rounds
    if not asked.timed:
        return ["not measured: --seconds 0 lets no step be timed; leave it out to see the cost"]
    if costs is None or times is None:
        return ["not measured: this method counts its work in its own way; `unseen speed` measures it"]
    here = rounds * sum(times) / min(cores, len(times))
    apart = rounds * max(times)
    hint = "" if costs.whole else " (the first steps alone were timed, so rather less)"
    up, down = (rounds * costs.bytes(way) for way in ("sent", "received"))
    return [
        f"training, {rounds} rounds: about {_duration(here)} on this machine{hint}",
        f"between sites, each with a machine like this: about {_duration(apart)}, and the way of the messages",
        f"a step takes {1000 * costs.step:.0f} ms here; scoring comes on top",
        f"traffic of a site over {rounds} rounds: {_size(up)} leave it, {_size(down)} reach it",
    ]


def _leaves(costs: Costs | None) -> tuple[str, ...]:
    if costs is None:
        return ()
    rows = [row for row in costs.travelled if row["direction"] == "sent"]
    return tuple(
        f"{row['kind']} ({row['field']}), {_size(row['bytes'])} a round{', more with more data' if row['grows'] else ''}" for row in rows
    )


def _duration(seconds: float) -> str:
    """For people.

    >>> [_duration(s) for s in (3, 200, 9000)]
    ['3 s', '3 min', '2.5 h']
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _size(number: float) -> str:
    return next(
        (f"{number / scale:.1f} {unit}" for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if number >= scale), f"{number:.0f} B"
    )
