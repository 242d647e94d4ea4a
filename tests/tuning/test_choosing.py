"""The choice: what it rests on, and what can never enter it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuning.made_up import DOMAINS, Written, by_smoothing, plan_values
from unseen.bench.plan import BenchmarkCell, read_benchmark
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.methods import FedAvg
from unseen.tuning.choosing import standing
from unseen.tuning.plan import read_plan
from unseen.tuning.running import TriesFailed, Tuned, oracle, tune
from unseen.tuning.uses import Use, uses_of
from unseen.tuning.writing import reported_elsewhere, scores_csv, settled, table_of, to_toml


def silent(text: str) -> None:
    pass


def chosen(tuned: Tuned) -> dict[str | None, str]:
    rows = {row.label: row for row in tuned.plan.rows}
    return {c.target: rows[c.row].tries[c.number].name for c in tuned.choices}


def test_a_run_without_two_domains_serves_both_and_is_made_once() -> None:
    uses = uses_of(read_plan(plan_values()))
    assert len(uses) == 3 * 4 * 3, "three tries, four targets, three sources held out of each"
    runs = {use.cell.folder: use.cell.experiment for use in uses}
    assert len(runs) == 3 * 6, "as many as there are pairs of domains"
    for use in uses:
        experiment = runs[use.cell.folder]
        assert {experiment.target, experiment.held_out} == {use.target, use.on}, "it trained on neither"
        assert f"without-{'+'.join(sorted((str(use.target), str(use.on))))}" in use.cell.folder


def test_a_choice_cannot_be_made_to_rest_on_its_own_target() -> None:
    cell = BenchmarkCell(Experiment(FedAvg(), target="a"), "run")
    with pytest.raises(ValueError, match="its own score"):
        Use("A", 0, "a", "a", 0, cell)
    Use("A", 0, None, "a", 0, cell)


@settings(max_examples=8)
@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.sampled_from(DOMAINS), st.lists(st.floats(0, 1), min_size=3, max_size=3))
@pytest.mark.parametrize("rule", ["held-out", "held-out-worst"])
def test_whatever_a_target_scores_its_own_choice_stays(
    tmp_path_factory: pytest.TempPathFactory, rule: str, scores: list[float], target: str, other: list[float]
) -> None:
    plan = read_plan(plan_values(rule=rule))
    table = {(n, d): scores[4 * n + k] for n in range(3) for k, d in enumerate(DOMAINS)}
    changed = {**table, **{(n, target): other[n] for n in range(3)}}
    choices = []
    for values in (table, changed):

        def skill(name: str, domain: str, number: int, values: dict[tuple[int, str], float] = values) -> float:
            return values[[0.0, 0.1, 0.2].index(float(name.rpartition("=")[2])), domain]

        out = tmp_path_factory.mktemp("tries")
        choices.append(chosen(tune(plan, out, Written(out, skill), silent)))
        expected = {}
        for t in DOMAINS:  # the slow version: over the other domains, the mean or the least
            rest = [[values[n, d] for d in DOMAINS if d != t] for n in range(3)]
            judged = [min(row) if rule == "held-out-worst" else sum(row) / 3 for row in rest]
            expected[t] = [n for n in range(3) if judged[n] >= max(judged) - 1e-12]
        assert all(["smoothing=0.0", "smoothing=0.1", "smoothing=0.2"].index(choices[-1][t]) in expected[t] for t in DOMAINS)
    assert choices[0][target] == choices[1][target]


def test_by_source_validation_the_targets_are_not_read(tmp_path: Path) -> None:
    plan = read_plan(plan_values(rule="source", choice="one"))
    source = {"0.0": 0.4, "0.1": 0.8, "0.2": 0.6}
    run = Written(tmp_path, by_smoothing({0.0: 0.9, 0.1: 0.1, 0.2: 0.5}), lambda cell: source[cell.experiment.name.rpartition("=")[2]])
    tuned = tune(plan, tmp_path, run, silent)
    assert chosen(tuned) == {None: "smoothing=0.1"}
    assert all(use.on is None for use in tuned.scores) and "0.9" not in scores_csv(tuned)
    ((choice, best, lost),) = oracle(tuned, tmp_path)
    assert choice.number == 1 and best == 0 and lost == pytest.approx(0.8), "told afterwards: 0.9 against 0.1"


def test_the_oracle_of_a_choice_per_target(tmp_path: Path) -> None:
    def skill(name: str, domain: str, number: int) -> float:
        strong = name.endswith("0.2")
        return (0.3 if strong else 0.6) if domain != "d" else (0.9 if strong else 0.5)

    tuned = tune(read_plan(plan_values()), tmp_path, Written(tmp_path, skill), silent)
    assert chosen(tuned)["d"] == "smoothing=0.0", "on a, b and c the strong one is bad"
    lost = {choice.target: (best, lost) for choice, best, lost in oracle(tuned, tmp_path)}
    assert lost["d"] == (2, pytest.approx(0.4)), "on d itself it would have been the best"
    assert lost["a"] == (0, 0.0)


def test_the_oracle_looks_at_the_tries_that_came_to_the_last_step_alone(tmp_path: Path) -> None:
    """An early round of a try that was dropped is not held against a late round of the others."""

    def skill(name: str, domain: str, number: int) -> float:
        return {"0.0": 1.0, "0.1": 0.5, "0.2": 0.6}[name.rpartition("=")[2]]

    source = {"0.0": 0.1, "0.1": 0.8, "0.2": 0.7}
    plan = read_plan(plan_values(rule="source", choice="one", search="halving-rounds", keep=2))
    run = Written(tmp_path, skill, lambda cell: source[cell.experiment.name.rpartition("=")[2]])
    tuned = tune(plan, tmp_path, run, silent)
    assert tuned.choices[0].rounds == {0: 2, 1: 4, 2: 4}
    ((choice, best, lost),) = oracle(tuned, tmp_path)
    assert (choice.number, best, lost) == (1, 2, pytest.approx(0.1))


def test_one_choice_takes_every_score_and_says_so(tmp_path: Path) -> None:
    plan = read_plan(plan_values(choice="one"))
    tuned = tune(plan, tmp_path, Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3})), silent)
    assert chosen(tuned) == {None: "smoothing=0.2"} and len(tuned.scores) == 36
    assert reported_elsewhere(tuned) == "chosen on these domains: report on others (a, b, c, d)"
    assert oracle(tuned, tmp_path) == []
    assert "at an edge: smoothing 0.2 is the highest of 3 tried" in "\n".join(table_of(tuned, plan.rows[0]))


def test_for_a_new_site_every_domain_is_a_source(tmp_path: Path) -> None:
    plan = read_plan(plan_values(choice="new-site"))
    run = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.5, 0.2: 0.3}))
    tuned = tune(plan, tmp_path, run, silent)
    assert chosen(tuned) == {None: "smoothing=0.1"} and len(run.asked) == 3 * 4
    assert {use.on for use in tuned.scores} == set(DOMAINS) and {use.cell.experiment.held_out for use in tuned.scores} == {None}


def test_seeds_count_within_a_domain_and_the_worst_is_that_of_a_domain(tmp_path: Path) -> None:
    plan = read_plan(plan_values(rule="held-out-worst", choice="new-site", seeds=[7, 8]))
    run = Written(tmp_path, lambda name, domain, number: 0.0)
    values = {("0.0", 7): 0.1, ("0.0", 8): 0.9, ("0.1", 7): 0.4, ("0.1", 8): 0.4, ("0.2", 7): 0.3, ("0.2", 8): 0.3}

    def written(cells: Any) -> dict[str, str]:
        for cell in cells:
            run.skill = lambda name, domain, number, seed=cell.experiment.seed: values[name.rpartition("=")[2], seed]
            run([cell])
        return {}

    assert chosen(tune(plan, tmp_path, written, silent)) == {None: "smoothing=0.0"}, "0.5 on average over seeds in each domain"


def test_for_one_choice_a_domain_without_each_other_target_is_a_case_of_its_own() -> None:
    uses = [use for use in uses_of(read_plan(plan_values(rule="held-out-worst", choice="one", seeds=[7, 8]))) if use.number == 0]
    values = {("a", "without-a+b", 7): 0.1, ("a", "without-a+b", 8): 0.3}  # all else scores 0.9
    scores = [(use, values.get((str(use.on), use.cell.folder.split("/")[2], use.seed), 0.9)) for use in uses]
    assert len(scores) == 4 * 3 * 2
    assert standing("held-out-worst", scores) == pytest.approx(0.2), "the mean over seeds of a scored without b, not of all of a's"
    assert standing("held-out", scores) == pytest.approx((11 * 0.9 + 0.2) / 12)


def test_a_try_that_diverges_is_not_taken_and_is_not_run_again(tmp_path: Path) -> None:
    plan = read_plan(plan_values(choice="new-site"))
    run = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.9}))
    run.failing["03-smoothing=0.2/without-b"] = "round 1: nothing to average (a: not finite)"
    tuned = tune(plan, tmp_path, run, silent)
    assert chosen(tuned) == {None: "smoothing=0.1"} and "diverged" in "\n".join(table_of(tuned, plan.rows[0]))
    run.asked.clear()
    assert chosen(tune(plan, tmp_path, run, silent)) == {None: "smoothing=0.1"} and run.asked == []
    run.failing["smoothing"] = "nothing to average"
    other = tmp_path / "other"
    run.out = other
    with pytest.raises(BadInput, match="A: no try has a score by the held-out sources"):
        tune(plan, other, run, silent)


def test_a_run_that_fails_otherwise_leaves_no_choice_and_goes_on_later(tmp_path: Path) -> None:
    plan = read_plan(plan_values(choice="new-site"))
    run = Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3}))
    run.failing["02-smoothing=0.1/without-b"] = "its process ended"
    with pytest.raises(TriesFailed, match=r"1 of 12 runs failed .* The first said: its process ended"):
        tune(plan, tmp_path, run, silent)
    run.failing.clear()
    run.asked.clear()
    assert chosen(tune(plan, tmp_path, run, silent)) == {None: "smoothing=0.2"}
    assert [folder for folder, _ in run.asked] == ["01-A/02-smoothing=0.1/without-b/seed-0"], "what is there is not run again"


def test_what_is_written_can_be_run_and_has_the_choice(tmp_path: Path) -> None:
    rows = (
        {"method": "fedavg", "label": "A", "rates": [0.1, 0.3], "set": {"epochs": 2}},
        {"method": "fedadg", "label": "B", "rates": [0.1, 0.2], "rate_fields": {"lr_f": 1.0, "lr_g": 0.7}},
        {"method": "fedavg", "label": "C", "rate_of": "A", "by_target": {"a": {"epochs": 3}}},
        {"method": "fedavg", "label": "D", "choice_of": "A", "set": {"lr": 5.0}},
        "fedsb",
    )
    plan = read_plan(plan_values(*rows))

    def skill(name: str, domain: str, number: int) -> float:  # a likes the higher rate, the others the lower one
        rate, up = float(name.rpartition("@ ")[2]), 1 if domain == "a" else -1
        return 0.5 + up * rate * (3 if domain == "a" else 1) / 3

    tuned = tune(plan, tmp_path, Written(tmp_path, skill), silent)
    written = to_toml(settled(tuned), ["a comment", ""])
    values = tomllib.loads(written)
    assert written.startswith("# a comment\n#\n") and "tune" not in values
    a, b, c, d, e = values["methods"]
    assert a == {
        "method": "fedavg",
        "label": "A",
        "set": {"epochs": 2},
        "by_target": {t: {"lr": 0.1 if t == "a" else 0.3} for t in DOMAINS},
    }
    assert b["by_target"]["a"] == {"lr_f": 0.1, "lr_g": 0.07} and b["by_target"]["b"] == {"lr_f": 0.2, "lr_g": 0.14}
    assert c["by_target"]["a"] == {"epochs": 3, "lr": 0.1} and c["by_target"]["b"] == {"lr": 0.3}
    assert d["by_target"]["a"] == {"lr": 0.1} and e == "fedsb"
    cells = {(cell.experiment.name, cell.experiment.target): cell.experiment for cell in read_benchmark(values)}
    assert cells["A", "a"].method.lr == 0.1 and cells["A", "b"].method.lr == 0.3  # type: ignore[attr-defined]
    assert cells["D", "b"].method.lr == 0.3  # type: ignore[attr-defined]


def test_fields_by_target_make_runs_of_their_own() -> None:
    row = {"method": "fedavg", "label": "A", "try": {"smoothing": [0.0, 0.1]}, "by_target": {"a": {"epochs": 2}}}
    uses = uses_of(read_plan(plan_values(row)))
    for use in uses:
        assert use.cell.experiment.method.epochs == (2.0 if use.target == "a" else 1.0)  # type: ignore[attr-defined]
    assert any(use.cell.folder.endswith("without-a+b-as-for-b/seed-0") for use in uses)
    assert len({use.cell.folder for use in uses}) == 2 * (6 + 3)


def test_every_score_is_kept_in_a_table(tmp_path: Path) -> None:
    tuned = tune(read_plan(plan_values()), tmp_path, Written(tmp_path, by_smoothing({0.0: 0.1, 0.1: 0.2, 0.2: 0.3})), silent)
    lines = scores_csv(tuned).splitlines()
    assert lines[0] == "row,try,for target,scored on,seed,round,score,run" and len(lines) == 1 + 36
    assert "A,smoothing=0.1,a,b,0,4,0.2,01-A/02-smoothing=0.1/without-a+b/seed-0" in lines
    assert json.loads((tmp_path / "tuning.json").read_text())["diverged"] == {}
