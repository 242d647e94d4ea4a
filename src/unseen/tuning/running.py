"""The tries of a plan, run and compared: rung by rung, resumable after a kill, and never mixed with those of another plan."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unseen.bench.plan import BenchmarkCell
from unseen.errors import BadInput
from unseen.files import write_atomically
from unseen.runs.folder import read_run
from unseen.runs.record import Record, read_records, read_timings
from unseen.runs.watch import ManyWatch, Watch
from unseen.tuning.choosing import Choice, best_of, lost_to_the_oracle, standing
from unseen.tuning.early import refuse_early
from unseen.tuning.plan import TuningPlan
from unseen.tuning.search import Rung, cost_of, lay_out, survivors
from unseen.tuning.uses import Use, score_of, uses_of

__all__ = ["STATE_FILE", "Blind", "TriesFailed", "Tuned", "oracle", "tune"]

STATE_FILE = "tuning.json"
_DIVERGED = "nothing to average"  # what a run says that ended since no client gave finite weights: such a try is no good
Runs = Callable[[Sequence[BenchmarkCell]], dict[str, str]]  # runs cells, and returns what failed, and why
AtOnce = Callable[[Sequence[BenchmarkCell]], int]
Key = tuple[str, str | None]  # a row's label, and a target


class Blind:
    """Somebody who looks on while tries go, and is not shown what they score on domains that do not train."""

    def __init__(self, watch: ManyWatch) -> None:
        self._watch = watch
        self.planned, self.ended, self.say = watch.planned, watch.ended, watch.say

    def started(self, run: str) -> Watch:
        return _BlindWatch(self._watch.started(run))


class _BlindWatch:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.begin, self.within, self.say = watch.begin, watch.within, watch.say

    def round(self, record: Record, seconds: float) -> None:
        self._watch.round({**record, "target": {}, "held_out": {}}, seconds)


class TriesFailed(RuntimeError):
    """Some tries ended for another reason than their settings; nothing is chosen."""


@dataclass(frozen=True)
class Tuned:
    """The choices, and the scores behind them."""

    plan: TuningPlan
    choices: tuple[Choice, ...]
    scores: Mapping[Use, float | None]
    rounds: Mapping[Use, int]  # in which round each was read

    def of(self, row: str, target: str | None) -> Choice:
        """The choice of a row for a target; one for all targets serves each."""
        return next(c for c in self.choices if c.row == row and c.target in (None, target))


def tune(plan: TuningPlan, out: Path, run: Runs, say: Callable[[str], None], at_once: AtOnce = lambda cells: 1) -> Tuned:
    """Run what is not there yet, and choose. `at_once`: how many of these `run` has going, to tell early that minutes cannot be enough."""
    uses = uses_of(plan)
    rungs = lay_out(plan, uses)
    refuse_early(plan, uses, out)
    state = _claim(plan, out)
    say(_announced(plan, rungs, uses))
    left: dict[Key, list[int]] = {}
    for use in uses:
        numbers = left.setdefault((use.row, use.target), [])
        numbers += [use.number] if use.number not in numbers else []
    scores: dict[Use, float | None] = {}
    rounds: dict[Use, int] = {}
    standings: dict[Key, dict[int, float | None]] = {key: {} for key in left}
    stood: dict[Key, dict[int, int]] = {key: {} for key in left}
    seeds: dict[Key, tuple[int, ...]] = {}
    for place, rung in enumerate(rungs):
        racing = {key for key, numbers in left.items() if len(numbers) > 1 or place == 0}
        wanted = [u for u in uses if u.seed in rung.seeds and (u.row, u.target) in racing and u.number in left[u.row, u.target]]
        missing = _missing(wanted, rung, out, state)
        if missing and place and plan.budget.unit == "minutes" and state.seconds * (1 + 1 / place) > 60 * plan.budget.amount:
            say(f"another seed would go beyond {plan.budget}; the choice rests on {len(rungs[place - 1].seeds)} of {len(plan.seeds)} seeds")
            break
        if len(rungs) > 1 and missing:
            say(f"step {place + 1} of {len(rungs)}: {_counted(wanted)} to round {rung.rounds}, seeds {', '.join(map(str, rung.seeds))}")
        if missing and plan.budget.unit == "minutes" and not place:
            missing = _first_alone(missing, run, out, state)
            _refuse_minutes(plan, len({u.cell.folder for u in wanted}), at_once(missing) if missing else 1, state)
        _run(missing, run, state)
        for use in wanted:
            scores[use] = score_of(use, out, rung.rounds)  # None where it diverged before that round, not after it
            rounds[use] = rung.rounds
        for key in racing:
            mine = [u for u in wanted if (u.row, u.target) == key]
            now = {n: standing(plan.rule, [(u, scores[u]) for u in mine if u.number == n]) for n in left[key]}
            standings[key] |= now
            stood[key] |= dict.fromkeys(now, rung.rounds)
            seeds[key] = rung.seeds
            _refuse_nothing(plan, key, now)
            left[key] = best_of(now, survivors(len(now), rung.keep))
    choices = tuple(Choice(*key, numbers[0], standings[key], stood[key], seeds[key]) for key, numbers in left.items())
    return Tuned(plan, choices, scores, rounds)


def oracle(tuned: Tuned, out: Path) -> list[tuple[Choice, int, float]]:
    """By choice: the try that is best on its target, and what the choice loses against it. It looks at the targets: only after the choice.

    Nothing where every domain served the choice itself: one choice, or one for a new site, by held-out source.
    """
    found = []
    for choice in tuned.choices:
        if choice.target is None and tuned.plan.holds_out:
            continue
        asked = [u for u in tuned.scores if (u.row, u.target) == (choice.row, choice.target)]

        def on_target(number: int, asked: Sequence[Use] = asked) -> float | None:
            mine = [u for u in asked if u.number == number]
            return standing("mean", [(u, _on_its_target(u, out, tuned.rounds[u])) for u in mine])

        last = max(choice.rounds.values())
        raced = replace(choice, standings={n: s for n, s in choice.standings.items() if choice.rounds[n] == last})
        lost = lost_to_the_oracle(raced, on_target)
        if lost is not None:
            found.append((choice, *lost))
    return found


def _on_its_target(use: Use, out: Path, rounds: int) -> float | None:
    records = read_records(out / use.cell.folder / "records.jsonl")
    if len(records) < rounds:
        return None
    record = records[rounds - 1]
    unseen = {**record["target"], **record["held_out"]}
    values = [unseen[name].get(record["metric"]) for name in ([use.target] if use.on else record["target"]) if name in unseen]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _missing(wanted: Sequence[Use], rung: Rung, out: Path, state: _State) -> list[BenchmarkCell]:
    """The runs that have not come to the rung's last round; one that diverged would do so again."""
    experiments = {u.cell.folder: u.cell.experiment for u in wanted}
    there = {folder: len(read_records(out / folder / "records.jsonl")) for folder in experiments}
    missing = [folder for folder in experiments if folder not in state.diverged and there[folder] < rung.rounds]
    rounds = {folder: max(rung.rounds, _begun_for(out / folder)) for folder in missing}
    return [BenchmarkCell(replace(experiments[folder], rounds=rounds[folder]), folder) for folder in missing]


def _begun_for(folder: Path) -> int:
    """The rounds that a run was begun for, under a larger budget: it cannot be gone on with to fewer."""
    begun = read_run(folder)
    return begun["experiment"]["rounds"] if begun else 0


def _run(cells: Sequence[BenchmarkCell], run: Runs, state: _State) -> None:
    if not cells:
        return
    began = time.monotonic()
    failed = run(cells)
    state.note(failed, time.monotonic() - began)
    other = [why for why in failed.values() if _DIVERGED not in why]
    if other:
        raise TriesFailed(
            f"{len(other)} of {len(cells)} runs failed for another reason than their settings; nothing is chosen. "
            f"The same command again goes on with them. The first said: {other[0]}"
        )


def _first_alone(missing: list[BenchmarkCell], run: Runs, out: Path, state: _State) -> list[BenchmarkCell]:
    """Unless runs have told it, the first tells what one takes, and what the start takes that comes once. Returns the others.

    Much of the start lies in the first round, so that another one tells the pace: of the same run, or of a second one.
    """
    if state.of_a_run:
        return missing
    before, rounds, alone = state.seconds, list[float](), 0
    while alone < len(missing) and (not alone or len(rounds) == 1):
        file = out / missing[alone].folder / "timings.jsonl"
        known = len(read_timings(file))
        _run([missing[alone]], run, state)
        rounds += [one["train"] + one["score"] for one in read_timings(file)[known:]]
        alone += 1
    took = state.seconds - before
    of_a_round = statistics.fmean(rounds[1:] or rounds or [took])
    of_a_run = of_a_round * missing[0].experiment.rounds if rounds else took
    state.keep(start=max(0.0, took - of_a_round * max(1, len(rounds))), of_a_run=of_a_run)
    return missing[alone:]


def _refuse_minutes(plan: TuningPlan, runs: int, at_once: int, state: _State) -> None:
    """Minutes that cannot be enough are refused before they are spent, each time they are given. Such as were enough stay so."""
    if 60 * plan.budget.amount >= state.enough > 0:
        return
    needed = state.start + state.of_a_run * runs / min(at_once, runs)
    if needed > 60 * plan.budget.amount:
        raise BadInput(
            f"the budget of {plan.budget} is too small for one try each: {runs} runs need about {math.ceil(needed / 6) / 10:g} minutes "
            "at the pace of the first. Give these, try less, or take fewer rounds; what was run is kept"
        )
    state.keep(enough=needed)


class _State:
    """What the folder of the tries holds beside their runs."""

    def __init__(self, file: Path, kept: dict[str, Any]) -> None:
        self._file, self._kept = file, kept

    @property
    def diverged(self) -> dict[str, str]:
        """Folders of runs that came to no finite weights, and what they said; they would do so again."""
        found: dict[str, str] = self._kept["diverged"]
        return found

    @property
    def seconds(self) -> float:
        return float(self._kept["seconds"])

    @property
    def start(self) -> float:
        """Seconds that the first run took beside its rounds at their later pace."""
        return float(self._kept.get("start", 0.0))

    @property
    def of_a_run(self) -> float:
        """Seconds of a run's rounds; 0 where none has told it."""
        return float(self._kept.get("of_a_run", 0.0))

    @property
    def enough(self) -> float:
        """Seconds that were found to be enough for one try each; 0 where none were."""
        return float(self._kept.get("enough", 0.0))

    def keep(self, **seconds: float) -> None:
        self._kept |= seconds
        self.save()

    def note(self, failed: Mapping[str, str], seconds: float) -> None:
        self._kept["diverged"] |= {folder: why for folder, why in failed.items() if _DIVERGED in why}
        self._kept["seconds"] += seconds
        self.save()

    def save(self) -> None:
        write_atomically(self._file, json.dumps(self._kept, indent=1) + "\n")


def _claim(plan: TuningPlan, out: Path) -> _State:
    """The folder for this plan. One that holds tries of another plan, or anything else, is refused; a budget may change."""
    now = json.loads(json.dumps(_identity(plan), default=str))
    file = out / STATE_FILE
    if not file.exists():
        others = sorted(p.name for p in out.iterdir() if not p.name.startswith(".")) if out.is_dir() else []
        if others:
            raise BadInput(
                f"{out} holds other files ({', '.join(others[:3])}) and no {STATE_FILE}; choose an empty or new folder for --out"
            )
        try:
            out.mkdir(parents=True, exist_ok=True)
            state = _State(file, {"plan": now, "diverged": {}, "seconds": 0.0})
            state.save()
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise BadInput(f"{out} cannot be written ({error.strerror}); choose another --out") from error
        return state
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        before, _, _ = kept["plan"], dict(kept["diverged"]), float(kept["seconds"])
        _ = [float(kept.get(key, 0.0)) for key in ("start", "of_a_run", "enough")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file} cannot be read ({error!r}); choose another --out") from error
    if before != now:
        what = "; ".join(_differences(before, now)[:3])
        raise BadInput(f"{out} holds runs of another plan ({what}); choose another --out, or put the plan back")
    return _State(file, kept)


def _identity(plan: TuningPlan) -> dict[str, Any]:
    values = {key: value for key, value in plan.values.items() if key != "paper_numbers"}
    how = {key: value for key, value in values.get("tune", {}).items() if key != "budget"}
    return {**values, "tune": how}


def _differences(before: Any, now: Any, where: str = "") -> list[str]:
    """In what two plans differ, innermost keys first named by their path.

    >>> _differences({"tune": {"rounds": 5}, "a": 1}, {"tune": {"rounds": 8}, "a": 1})
    ['tune.rounds was 5 and is 8']
    """
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(before.keys() | now.keys())
        return [text for key in keys for text in _differences(before.get(key), now.get(key), f"{where}.{key}".lstrip("."))]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now) and where == "methods":
        return [text for n, pair in enumerate(zip(before, now, strict=True), 1) for text in _differences(*pair, f"row {n}")]
    return [] if before == now else [f"{where} was {_short(before)} and is {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:56]} ..."


def _refuse_nothing(plan: TuningPlan, key: Key, standings: Mapping[int, float | None]) -> None:
    if best_of(standings, 1):
        return
    where = f" for {key[1]}" if key[1] else ""
    by = "source validation (is validation 0?)" if plan.rule == "source" else "the held-out sources"
    raise BadInput(f"{key[0]}: no try{where} has a score by {by}; all diverged, or the metric is undefined there")


def _announced(plan: TuningPlan, rungs: Sequence[Rung], uses: Sequence[Use]) -> str:
    cost = cost_of(rungs, uses)
    tries = sum(len(row.tries) for row in plan.open_rows)
    bound = f", within {plan.budget}" if plan.budget.amount < float("inf") else ""
    fewer = rungs[-1].seeds != plan.seeds and plan.budget.unit != "minutes"
    less = f"; the budget allows {len(rungs[-1].seeds)} of {len(plan.seeds)} seeds" if fewer else ""
    most = "at most " if len(rungs) > 1 else ""
    return f"{tries} tries, {most}{cost.runs} runs and {cost.rounds} rounds{bound}{less}"


def _counted(uses: Sequence[Use]) -> str:
    return f"{len({u.cell.folder for u in uses})} runs of {len({(u.row, u.number) for u in uses})} tries"
