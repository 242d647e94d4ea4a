"""The programs behind the evidence, and its plans, tables and claims, which can be read."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from synthetic_runs import write_run
from unseen.bench.plan import read_benchmark
from unseen.data.sets.registry import DATASETS
from unseen.report.claims import read_claims
from unseen.report.collect import collect
from unseen.report.tables import Cell

EVIDENCE = Path(__file__).parents[1] / "benchmarks" / "evidence"
PLANS = sorted(EVIDENCE.glob("*.plan.toml"))
TABLES = sorted(file for file in EVIDENCE.glob("*.toml") if file not in PLANS and file.name != "claims.toml")
SCORES = sorted((EVIDENCE.parent / "results").glob("*.csv"))


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"evidence_{name}", EVIDENCE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


restore, summarise = program("restore"), program("summarise")


@pytest.mark.parametrize("file", PLANS, ids=lambda path: path.stem)
def test_a_plan_names_rows_and_rates_that_there_are(file: Path) -> None:
    plan = tomllib.loads(file.read_text())
    labels = [row["label"] for row in plan["methods"]]
    assert len(set(labels)) == len(labels) and plan["seeds"] == [0, 1, 2] and not set(plan["seeds"]) & set(plan["tune"]["seeds"])
    assert (plan["rounds"] >= 15 and plan.get("size", 128) >= 128) or file.stem.startswith(("styled", "phantom", "digits.plan", "patches"))
    tuned = {row["label"] for row in plan["methods"] if "rates" in row}
    assert {row["rate_of"] for row in plan["methods"] if "rate_of" in row} <= tuned
    assert len({len(row["rates"]) for row in plan["methods"] if "rates" in row}) == 1, "every row is tuned over as many rates"


def test_a_table_tells_what_was_run_without_the_commands(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("# Two rounds.\n#   unseen bench a.toml\n# 64 px.\nrounds = 2  # few\n")
    assert [*summarise.about(tmp_path / "a.toml")] == ["Two rounds.", "64 px."]


def test_rates_whose_tries_are_gone_stay_as_they_were_told(tmp_path: Path) -> None:
    assert [*summarise.kept_rates(tmp_path / "a.md")] == []
    (tmp_path / "a.md").write_text(f"# a\n| x |\n\n{summarise.TRIED} (it)\n\n| A @ 0.1 | 90.00 |\n")
    assert [*summarise.kept_rates(tmp_path / "a.md")] == ["", f"{summarise.TRIED} (it)", "", "| A @ 0.1 | 90.00 |"]


def test_distances_stand_beside_dice_where_there_are_masks() -> None:
    def run(name: str, seed: int, **hd95: float) -> SimpleNamespace:
        early, last = ({"target": {d: {"dice": 0.5, "hd95": h + add} for d, h in hd95.items()}, "metric": "dice"} for add in (9.0, 0.0))
        return SimpleNamespace(name=name, seed=seed, cell=Cell(name, "home", seed, [early, last]))

    runs = [run("A", 0, east=2.0, west=6.0), run("A", 1, east=4.0, west=6.0), run("B", 0, east=3.0, west=7.6), run("B", 1, east=5.0)]
    told = [*summarise.distances(runs, ["A"])]
    assert "| method | home → east | home → west | average |" in told
    assert "| A | 3.00 ± 1.41 | 6.00 ± 0.00 | 4.50 |" in told
    assert "| B | 4.00 ± 1.41 | 7.60 | 5.80 |" in told
    assert any(line.startswith("| B | +1.20 |") for line in told)
    no_masks = SimpleNamespace(name="A", seed=0, cell=Cell("A", "home", 0, [{"target": {"east": {"accuracy": 0.5}}, "metric": "accuracy"}]))
    assert [*summarise.distances([no_masks], ["A"])] == []


def test_a_claim_speaks_of_rows_that_there_are() -> None:
    labels = {file.stem: {r["label"] for r in tomllib.loads(file.read_text())["methods"]} for file in TABLES}
    for claim in read_claims(tomllib.loads((EVIDENCE / "claims.toml").read_text())):
        assert {claim.first, claim.second} <= labels[claim.table]


@pytest.mark.parametrize("file", TABLES, ids=lambda path: path.stem)
def test_a_table_can_be_run_and_its_printed_numbers_belong_to_its_columns(file: Path) -> None:
    values = tomllib.loads(file.read_text())
    cells = read_benchmark(values, seeds=[0])
    assert {cell.experiment.name for cell in cells} == {row["label"] for row in values["methods"]}
    domains = values["targets"] if values["data"].startswith("folder:") else DATASETS[values["data"]].domains
    columns = {*(domains or ()), "average"}
    assert all(set(row) <= columns for row in values.get("paper_numbers", {}).values())


@pytest.mark.parametrize("file", SCORES, ids=lambda path: path.stem)
def test_runs_restored_from_kept_scores_have_those_scores(file: Path, tmp_path: Path) -> None:
    benchmark = tomllib.loads((EVIDENCE / f"{file.stem}.toml").read_text())
    restored = restore.restore(file, benchmark, tmp_path / "runs")
    runs = collect(tmp_path / "runs").finished
    assert len(runs) == restored > 0
    assert restore.restore(file, benchmark, tmp_path / "runs") == 0
    summarise.write_scores(runs, tmp_path / "again.csv")
    assert sorted((tmp_path / "again.csv").read_text().splitlines()) == sorted(file.read_text().splitlines())


def test_a_run_that_is_there_is_not_restored(tmp_path: Path) -> None:
    lines = ["method,fold,seed,round,source validation,unseen domain,score"]
    lines += [f"A,art,{seed},{number},0.9,art,0.1" for seed in (0, 1) for number in (1, 2)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    write_run(tmp_path / "runs" / "mine", "A", "art", seed=1, rounds=2)
    assert restore.restore(tmp_path / "t.csv", {"data": "pacs", "rounds": 2}, tmp_path / "runs") == 1
    assert {(run.seed, run.folder) for run in collect(tmp_path / "runs").finished} == {(1, "mine"), (0, "restored/A/art/seed-0")}
