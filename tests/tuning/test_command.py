"""`unseen tune` with real training: what it writes, what a kill leaves, and that a run does not depend on whom it serves."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tuning.made_up import FILE, plan_values
from unseen.bench.plan import read_benchmark
from unseen.bench.sequential import run_benchmark
from unseen.cli import app
from unseen.experiment import read_experiment
from unseen.runs.record import read_records
from unseen.runs.watch import Silent, Within
from unseen.training import train
from unseen.tuning.plan import TuningBudget, read_plan
from unseen.tuning.running import Blind, tune
from unseen.tuning.search import lay_out
from unseen.tuning.uses import uses_of
from unseen.tuning.writing import to_toml

invoke = CliRunner().invoke
FAST = ["--network", "small_cnn:width=2", "--device", "cpu", "--rounds", "2", "--workers", "1"]


def test_a_run_is_the_same_whichever_of_the_two_domains_is_called_the_target(tmp_path: Path) -> None:
    use = uses_of(read_plan(plan_values()))[0]
    experiment = replace(use.cell.experiment, rounds=2)
    turned = replace(experiment, target=experiment.held_out, held_out=experiment.target)
    one, two = (train(e, tmp_path / name, watch=Silent()) for e, name in ((experiment, "one"), (turned, "two")))
    assert all(one.state[name].equal(two.state[name]) for name in one.state)
    for a, b in zip(one.records, two.records, strict=True):
        assert {**a["target"], **a["held_out"]} == {**b["target"], **b["held_out"]} and a["target"] == b["held_out"]
        assert a["source_mean"] == b["source_mean"]


def test_halving_with_real_runs_resumes_them_to_the_same_bits(tmp_path: Path) -> None:
    row = {"method": "fedavg", "label": "A", "rates": [0.001, 0.05, 0.5], "set": {"batch": 8}}
    values = {**plan_values(row, choice="new-site", search="halving-rounds", keep=2), "rounds": 4}
    plan = read_plan(values)
    tuned = tune(plan, tmp_path, lambda cells: run_benchmark(cells, tmp_path, 1, Silent()), lambda text: None)
    last = tuned.choices[0]
    assert sorted(last.rounds.values()) == [2, 4, 4]
    use = next(u for u in uses_of(plan) if u.number == last.number)
    whole = train(use.cell.experiment, tmp_path / "whole", watch=Silent())
    assert read_records(tmp_path / use.cell.folder / "records.jsonl") == list(whole.records)


def test_a_smaller_budget_goes_on_with_a_run_that_was_killed_on_its_way_to_more_rounds(tmp_path: Path) -> None:
    class Killed(Silent):
        def within(self, where: Within) -> None:
            raise KeyboardInterrupt

    row = {"method": "fedavg", "label": "A", "rates": [0.001, 0.05, 0.5], "set": {"batch": 8}}
    values = {**plan_values(row, choice="new-site", search="halving-rounds", keep=2), "rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        tune(read_plan(values), tmp_path, lambda cells: run_benchmark(cells, tmp_path, 1, Killed()), lambda text: None)
    (begun,) = tmp_path.rglob("run.json")
    assert json.loads(begun.read_text())["experiment"]["rounds"] == 2 and read_records(begun.parent / "records.jsonl") == []
    smaller = read_plan(values, TuningBudget("rounds", 30))
    assert [rung.rounds for rung in lay_out(smaller, uses_of(smaller))] == [1, 2, 4]
    tuned = tune(smaller, tmp_path, lambda cells: run_benchmark(cells, tmp_path, 1, Silent()), lambda text: None)
    rounds = {file.parent: len(read_records(file)) for file in tmp_path.rglob("records.jsonl")}
    assert rounds[begun.parent] == 2 and sorted(tuned.choices[0].rounds.values()) == [1, 2, 2]


def test_a_method_with_variants_is_tuned_and_its_file_can_be_run(tmp_path: Path) -> None:
    out = tmp_path / "tries"
    command = ["tune", f"{FILE}:Recipe", "--data", f"{FILE}:four", "--out", str(out), *FAST, "--set", "batch=8"]
    told = invoke(app, command)
    assert told.exit_code == 0, told.output
    assert "chosen on these domains: report on others (a, b, c, d)" in told.output and "rounds in 0:0" in told.output
    values = tomllib.loads((out / "tuned.toml").read_text())
    assert values["method"] == f"{FILE}:Recipe" and values["set"] == {"batch": 8, "lr": 0.05, "average": "none"}
    assert [cell.experiment.target for cell in read_benchmark(values)] == ["a", "b", "c", "d"]
    again = invoke(app, [*command, "-q"])
    assert again.exit_code == 0 and "moving" in again.output and "round 1" not in again.output, "nothing was run twice"
    assert invoke(app, ["bench", str(out / "tuned.toml"), "--out", str(tmp_path / "bench"), "-q"]).exit_code == 0


def test_with_a_target_the_file_is_for_run_and_bench(tmp_path: Path) -> None:
    told = invoke(
        app, ["tune", f"{FILE}:Recipe", "--data", f"{FILE}:four", "--target", "b", "--out", str(tmp_path / "t"), *FAST, "--oracle"]
    )
    assert told.exit_code == 0, told.output
    assert "report on others" not in told.output and "oracle (looks at the unseen domain" in told.output
    values = tomllib.loads((tmp_path / "t" / "tuned.toml").read_text())
    assert values["target"] == "b" and values["method"] == f"{FILE}:Recipe" and values["set"] == {"lr": 0.05, "average": "none"}
    assert read_experiment(values, own_code=True).target == "b"
    assert invoke(app, ["run", str(tmp_path / "t" / "tuned.toml"), "--out", str(tmp_path / "run"), "-q"]).exit_code == 0


def test_another_metric_goes_into_the_tries_and_into_the_file(tmp_path: Path) -> None:
    out = tmp_path / "t"
    told = invoke(
        app, ["tune", f"{FILE}:Recipe", "--data", f"{FILE}:four", "--metric", "balanced_accuracy", "--out", str(out), *FAST, "-q"]
    )
    assert told.exit_code == 0, told.output
    records = [record for file in out.rglob("records.jsonl") for record in read_records(file)]
    assert len(records) == 2 * 4 * 2 and {record["metric"] for record in records} == {"balanced_accuracy"}
    values = tomllib.loads((out / "tuned.toml").read_text())
    assert {cell.experiment.metric for cell in read_benchmark(values)} == {"balanced_accuracy"}


def test_a_plan_from_a_file_keeps_its_comments_and_shows_no_unseen_score(tmp_path: Path) -> None:
    row = {"method": "fedavg", "label": "A", "rates": [0.01, 0.05]}
    file = tmp_path / "my.plan.toml"
    values = plan_values(row, choice="per-target", rounds=1)
    file.write_text("# why\n" + to_toml({**values, "targets": ["a"]}, []))
    told = invoke(app, ["tune", str(file), "--out", str(tmp_path / "t"), "--write", str(tmp_path / "my.toml"), "--workers", "1", "-v"])
    assert told.exit_code == 0, told.output
    text = (tmp_path / "my.toml").read_text()
    assert text.startswith(
        "# why\n# Written by `unseen tune my.plan.toml`: chosen by held-out source, the mean; a choice for each target; "
    )
    rounds = [line.partition(": round ")[2].split() for line in told.output.splitlines() if ": round " in line]
    assert rounds and all(words[1] == "source" and words[3].replace(".", "").isdigit() for words in rounds), rounds
    changed = file.read_text().replace("0.05", "0.07")
    file.write_text(changed)
    refused = invoke(app, ["tune", str(file), "--out", str(tmp_path / "t")])
    assert refused.exit_code == 2 and "holds runs of another plan (row 1.rates was" in " ".join(refused.output.split())


def test_a_looker_on_is_blind_to_what_does_not_train() -> None:
    shown: list[Any] = []

    class Looking(Silent):
        def round(self, record: Any, seconds: float) -> None:
            shown.append(record)

    Blind(Looking()).started("a").round({"target": {"a": {"accuracy": 0.9}}, "held_out": {"b": {}}, "round": 1}, 1.0)  # type: ignore[typeddict-item]
    assert shown == [{"target": {}, "held_out": {}, "round": 1}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedavg"], "needs --data"),
        (["fedavg", "--data", "styled-digits"], "fedavg declares no variants"),
        (["nothing.toml"], "no file nothing.toml"),
        (["fedavgg", "--data", "styled-digits"], "did you mean 'fedavg'"),
        ([f"{FILE}:Recipe", "--data", f"{FILE}:four", "--budget", "hours=3"], "expected one of runs, rounds or minutes"),
        ([f"{FILE}:Recipe", "--data", f"{FILE}:three", "--target", "a"], "needs 3 sources"),
        ([f"{FILE}:Recipe", "--data", f"{FILE}:four", "--rule", "oracle"], "expected source, held-out or held-out-worst"),
        (
            ["best", "--data", f"{FILE}:four", "--set", "restyling=none", "--set", "batch=8"],
            'unseen: best: set has restyling = "none", and the tries decide restyling; expected fields that they leave alone. '
            "Leave it out of set, or out of the tries (a plan names its own)",
        ),
        ([f"{FILE}:Recipe", "--data", f"{FILE}:four", "--jobs", "0"], "--jobs '0'"),
        ([f"{FILE}:Recipe", "--data", f"{FILE}:four", "--budget", "runs=3"], "too small for one try each: 2 tries need 8 runs"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = invoke(app, ["tune", *arguments])
    assert told.exit_code == 2 and message in " ".join(told.output.split()), told.output
    assert list(tmp_path.iterdir()) == []


def test_options_of_a_method_are_refused_beside_a_plan(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("methods = []\n")
    told = invoke(app, ["tune", str(tmp_path / "a.toml"), "--target", "a", "--metric", "auc", "--set", "lr=1"])
    assert told.exit_code == 2 and "--target, --metric, --set: a plan says this itself" in " ".join(told.output.split())


def test_a_tuned_file_reads_back_as_it_was(tmp_path: Path) -> None:
    values = {"data": 'a "b" \\ ü', "x": True, "n": 1e-4, "methods": ["fedavg", {"method": "fedsb", "set": {"a b": {}}}]}
    values |= {"set": {"batch": 8}, "paper_numbers": {"FedSB + é": {"average": 1.5}}}
    assert tomllib.loads(to_toml(values, ["x"])) == json.loads(json.dumps(values))


def test_a_declared_variant_may_switch_a_part_off(tmp_path: Path) -> None:
    values = {"data": f"{FILE}:four", "methods": [{"method": f"{FILE}:Recipe", "variants": "declared"}], "tune": {}}
    assert read_plan(values).rows[0].tries[1].fields == {"lr": 0.05, "average": "none"}, "as a file can say it"
    assert read_experiment({"method": "fedavg", "set": {"average": "none"}}).method.average is None
