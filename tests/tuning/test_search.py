"""How tries are gone through: halving against its slow version, budgets, what is kept after a stop, and what another plan meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuning.made_up import Written, by_smoothing, plan_values
from unseen.errors import BadInput
from unseen.tuning import running
from unseen.tuning.plan import TuningBudget, read_plan
from unseen.tuning.running import TriesFailed, tune
from unseen.tuning.search import Rung, cost_of, lay_out, survivors
from unseen.tuning.uses import uses_of
from unseen.tuning.writing import describe, table_of

NINE = [round(0.1 * n, 1) for n in range(9)]


def silent(text: str) -> None:
    pass


def nine(**tune: Any) -> dict[str, Any]:
    row = {"method": "fedavg", "label": "A", "try": {"smoothing": NINE}}
    return {**plan_values(row, choice="new-site", search="halving-rounds", **tune), "rounds": 9}


def test_the_layout_of_halving_by_hand() -> None:
    plan = read_plan(nine())
    uses = uses_of(plan)
    assert lay_out(plan, uses) == [Rung(3, (0,), 3), Rung(9, (0,))]
    assert cost_of(lay_out(plan, uses), uses).rounds == 4 * (9 * 3 + 3 * 6)
    tight = read_plan(nine(budget={"rounds": 100}))
    assert lay_out(tight, uses) == [Rung(1, (0,), 3), Rung(3, (0,), 3), Rung(9, (0,))]
    assert cost_of(lay_out(tight, uses), uses).rounds == 4 * (9 * 1 + 3 * 2), "one is left after the second, and need not go on"
    with pytest.raises(BadInput, match="the budget of 59 rounds is too small for one try each: 9 tries need 60 rounds at least"):
        lay_out(read_plan(nine(budget={"rounds": 59})), uses)


def test_halving_resumes_the_better_third_and_takes_what_the_whole_would_show(tmp_path: Path) -> None:
    """Scores cross between the rounds: the slow version goes by the same rounds."""

    def skill(name: str, domain: str, number: int) -> float:
        smoothing = float(name.rpartition("=")[2])
        return {1: smoothing, 3: 1 - abs(smoothing - 0.7), 9: 1.0}[number] if number in (1, 3, 9) else 0.0

    plan = read_plan(nine(budget={"rounds": 100}))
    run = Written(tmp_path, skill)
    tuned = tune(plan, tmp_path, run, silent)
    first = sorted(NINE, key=lambda s: -s)[:3]
    assert tuned.choices[0].number == NINE.index(max(first, key=lambda s: 1 - abs(s - 0.7)))
    asked = [(folder.split("/")[1].partition("=")[2], rounds) for folder, rounds in run.asked]
    assert sorted(set(asked)) == sorted([*((str(s), 1) for s in NINE), *((str(s), 3) for s in first)])
    assert len(asked) == 4 * 12
    assert tuned.choices[0].rounds == {n: 3 if NINE[n] in first else 1 for n in range(9)}
    assert any(line.endswith("to round 3") for line in table_of(tuned, plan.rows[0]))


def test_halving_over_seeds(tmp_path: Path) -> None:
    plan = read_plan({**nine(seeds=[5, 6, 7]), "tune": {**nine()["tune"], "search": "halving-seeds", "seeds": [5, 6, 7]}})
    assert lay_out(plan, uses_of(plan)) == [Rung(9, (5,), 3), Rung(9, (5, 6, 7))]
    run = Written(tmp_path, by_smoothing(dict(zip(NINE, NINE, strict=True))))
    tune(plan, tmp_path, run, silent)
    seeds: dict[str, list[str]] = {}
    for folder, _ in run.asked:
        _, name, fold, seed = folder.split("/")
        if fold == "without-a":
            seeds.setdefault(name, []).append(seed)
    assert sum(len(found) == 3 for found in seeds.values()) == 3 and sum(len(found) == 1 for found in seeds.values()) == 6


def test_a_try_that_diverges_later_keeps_its_place_in_the_steps_before(tmp_path: Path) -> None:
    """The same command again comes to the same choice: what a later step brought does not reach back into an earlier one."""

    def skill(name: str, domain: str, number: int) -> float:  # after the first step 0.5 stands fourth; in the end it would be the best
        smoothing = float(name.rpartition("=")[2])
        return smoothing if number <= 3 or smoothing != 0.5 else 1.0

    plan = read_plan(nine())
    run = Written(tmp_path, skill)
    run.diverging["smoothing=0.8/without-b"] = 5
    first = tune(plan, tmp_path, run, silent)
    assert first.choices[0].number == NINE.index(0.7), "0.8 led after the first step and diverged in the second"
    assert first.choices[0].standings[NINE.index(0.8)] is None
    run.asked.clear()
    again = tune(plan, tmp_path, run, silent)
    assert (again.choices, run.asked) == (first.choices, [])
    run.out = early = tmp_path / "early"
    run.diverging["smoothing=0.8/without-b"] = 3
    for _ in range(2):
        tuned = tune(plan, early, run, silent)
        assert tuned.choices[0].number == NINE.index(0.5), "0.8 diverged in the first step: the fourth took its place"
        assert tuned.choices[0].standings[NINE.index(0.8)] is None


@pytest.mark.parametrize(("schedule", "refused"), [("cosine", True), ({"name": "cosine", "over": 9}, False)])
def test_rates_that_fall_until_the_last_round_cannot_be_gone_on_with(schedule: Any, refused: bool) -> None:
    row = {"method": "fedavg", "label": "A", "try": {"smoothing": NINE}, "set": {"schedule": schedule}}
    plan = read_plan(plan_values(row, choice="new-site", search="halving-rounds"))
    uses = uses_of(plan)
    if not refused:
        assert len(lay_out(plan, uses)) == 2
        return
    with pytest.raises(BadInput, match=r"A: the learning rate falls until the last round, .* search by halving-seeds or grid"):
        lay_out(plan, uses)


def test_each_target_keeps_tries_of_its_own(tmp_path: Path) -> None:
    """What t keeps does not depend on its score: on d alone, another try would be best."""

    def skill(name: str, domain: str, number: int) -> float:
        smoothing = float(name.rpartition("=")[2])
        return smoothing if domain == "d" else 1 - smoothing

    values = {**nine(), "tune": {"rule": "held-out", "choice": "per-target", "search": "halving-rounds"}}
    tuned = tune(read_plan(values), tmp_path, Written(tmp_path, skill), silent)
    assert {c.target: c.number for c in tuned.choices} == dict.fromkeys("abcd", 0)
    kept = {c.target: sorted(n for n, r in c.rounds.items() if r == 9) for c in tuned.choices}
    assert kept["d"] == [0, 1, 2]


def test_what_is_said_of_a_search_that_ended_early_is_what_was_run(tmp_path: Path) -> None:
    by_rounds = read_plan(nine(budget={"rounds": 100}))
    run = Written(tmp_path / "rounds", by_smoothing(dict(zip(NINE, NINE, strict=True))))
    tuned = tune(by_rounds, run.out, run, silent)
    assert max(rounds for _, rounds in run.asked) == 3
    assert describe(tuned) == "chosen by held-out source, the mean; one choice for a new site; 3 rounds, seed 0"

    values = nine(seeds=[5, 6, 7])
    values["tune"] |= {"search": "halving-seeds", "keep": 2, "seeds": [5, 6, 7]}
    values["methods"] += [{"method": "fedavg", "label": "B", "try": {"smoothing": [0.0, 0.3]}}]
    by_seeds = read_plan(values)
    assert [rung.seeds for rung in lay_out(by_seeds, uses_of(by_seeds))] == [(5, 6), (5, 6, 7)]
    run = Written(tmp_path / "seeds", by_smoothing(dict(zip(NINE, NINE, strict=True))))
    tuned = tune(by_seeds, run.out, run, silent)
    assert not any("/seed-7" in folder for folder, _ in run.asked if "-B/" in folder), "one of two tries is left"
    assert describe(tuned).endswith("; A: 9 rounds, seeds 5, 6, 7; B: 9 rounds, seeds 5, 6")

    values["methods"] = values["methods"][1:]
    run = Written(tmp_path / "one", by_smoothing(dict(zip(NINE, NINE, strict=True))))
    assert describe(tune(read_plan(values), run.out, run, silent)).endswith("; 9 rounds, seeds 5, 6"), "seed 7 was not run at all"


def test_what_is_said_of_a_grid_is_its_rounds_and_seeds(tmp_path: Path) -> None:
    run = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3}))
    tuned = tune(read_plan(plan_values(seeds=[0, 1], rounds=1)), tmp_path, run, silent)
    assert describe(tuned) == "chosen by held-out source, the mean; a choice for each target; 1 round, seeds 0, 1"


@given(st.integers(1, 40), st.integers(2, 5), st.integers(1, 60))
def test_one_in_so_many_goes_on_and_never_none(tries: int, keep: int, rounds: int) -> None:
    assert 1 <= survivors(tries, keep) <= max(1, -(-tries // keep)) and (tries == 1 or survivors(tries, keep) < tries)


def test_a_budget_takes_as_many_seeds_as_it_can(tmp_path: Path) -> None:
    values = plan_values(choice="new-site", seeds=[0, 1, 2])
    told: list[str] = []
    run = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3}))
    tuned = tune(read_plan(values, TuningBudget("runs", 30)), tmp_path, run, told.append)
    assert tuned.choices[0].seeds == (0, 1) and len(run.asked) == 24
    assert told == ["3 tries, 24 runs and 96 rounds, within 30 runs; the budget allows 2 of 3 seeds"]
    with pytest.raises(BadInput, match="the budget of 11 runs is too small for one try each: 3 tries need 12 runs at least"):
        tune(read_plan(values, TuningBudget("runs", 11)), tmp_path, run, told.append)
    run.asked.clear()
    assert tune(read_plan(values), tmp_path, run, silent).choices[0].seeds == (0, 1, 2), "a larger budget goes on with what is there"
    assert len(run.asked) == 12


def test_a_budget_of_minutes_is_looked_at_between_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])
    values, told = plan_values(choice="new-site", seeds=[0, 1, 2]), []
    write = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3}))

    def run(cells: Any) -> dict[str, str]:
        now[0] += 10 * len(cells)
        return write(cells)

    tuned = tune(read_plan(values, TuningBudget("minutes", 5)), tmp_path, run, told.append)
    assert tuned.choices[0].seeds == (0, 1), "a seed takes two minutes"
    assert told[-1] == "another seed would go beyond 5 minutes; the choice rests on 2 of 3 seeds"
    again = tune(read_plan(values, TuningBudget("minutes", 5)), tmp_path, run, silent)
    assert again.choices[0].seeds == (0, 1) and again.choices == tuned.choices and now[0] == 240
    write.out = other = tmp_path / "other"
    for _ in range(2):
        with pytest.raises(BadInput, match=r"of 1 minutes is too small for one try each: 12 runs need about 2 minutes at the pace of the"):
            tune(read_plan(values, TuningBudget("minutes", 1)), other, run, silent)
    assert sum(1 for _ in other.rglob("records.jsonl")) == 1, "given again, it is refused again, and nothing more is run"
    assert tune(read_plan(values, TuningBudget("minutes", 2)), other, run, silent).choices[0].seeds == (0,), "the first run was kept"
    write.out = third = tmp_path / "third"
    assert tune(read_plan(values, TuningBudget("minutes", 1)), third, run, silent, lambda cells: 2).choices[0].seeds == (0,)


def test_the_start_is_counted_once_and_minutes_that_were_enough_stay_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, starts = [0.0], [100.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])
    values = {**plan_values(choice="new-site"), "rounds": 2}
    write = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3}))

    def run(cells: Any) -> dict[str, str]:
        failed = write(cells)
        for cell in cells:
            seconds = (2.0 + sum(starts) / 2, 2.0)  # half of the start lies in the first round
            lines = [json.dumps({"round": n, "train": train, "score": 1.0}) + "\n" for n, train in enumerate(seconds, 1)]
            (tmp_path / cell.folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / cell.folder / "timings.jsonl").write_text("".join(lines))
        now[0] += starts.pop() if starts else 0.0
        now[0] += 6 * len(cells)
        return failed

    with pytest.raises(BadInput, match=r"12 runs need about 2\.9 minutes"):  # 100 + 12 * 6 seconds, not 12 * 106
        tune(read_plan(values, TuningBudget("minutes", 2.8)), tmp_path, run, silent)
    write.failing["02-smoothing=0.1/without-b"] = "its process ended"
    enough = read_plan(values, TuningBudget("minutes", 2.9))
    with pytest.raises(TriesFailed):
        tune(enough, tmp_path, run, silent, lambda cells: len(cells))
    write.failing.clear()
    assert tune(enough, tmp_path, run, silent).choices[0].seeds == (0,), "with one run at a time too: these minutes were enough"


def test_runs_of_another_plan_are_refused(tmp_path: Path) -> None:
    run = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3}))
    tune(read_plan(plan_values(choice="new-site")), tmp_path, run, silent)
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(
        BadInput, match=r"holds runs of another plan \(tune.choice was \"new-site\" and is \"per-target\"\); choose another"
    ):
        tune(read_plan(plan_values()), tmp_path, run, silent)
    with pytest.raises(BadInput, match=r'row 1.label was "A" and is "B"'):
        row = {**plan_values()["methods"][0], "label": "B"}
        tune(read_plan(plan_values(row, choice="new-site")), tmp_path, run, silent)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    (tmp_path / "tuning.json").write_text("{")
    with pytest.raises(BadInput, match=r"tuning.json cannot be read"):
        tune(read_plan(plan_values(choice="new-site")), tmp_path, run, silent)
    (tmp_path / "tuning.json").unlink()
    with pytest.raises(BadInput, match="holds other files"):
        tune(read_plan(plan_values(choice="new-site")), tmp_path, run, silent)


@pytest.mark.parametrize(
    "kept", [[], "", {"plan": {}}, {"plan": None, "diverged": 3, "seconds": "x"}, {"plan": {}, "diverged": {}, "seconds": 1, "enough": []}]
)
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, kept: Any) -> None:
    (tmp_path / "tuning.json").write_text(json.dumps(kept))
    with pytest.raises(BadInput, match=r"tuning.json cannot be read|another plan"):
        tune(read_plan(plan_values()), tmp_path, Written(tmp_path, by_smoothing({})), silent)
