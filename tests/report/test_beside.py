"""Balanced accuracy, AUC and calibration beside accuracy, the distance beside Dice: in every table of a report, by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from synthetic_runs import write_run
from unseen.cli import app
from unseen.report.beside import beside, companions_of
from unseen.report.collect import collect
from unseen.report.tables import Cell, to_csv, to_latex, to_markdown

invoke = CliRunner().invoke


def cell(method: str, seed: int, metric: str = "accuracy", fold: str = "a", **targets: dict[str, float]) -> Cell:
    record: Any = {"fold": fold, "seed": seed, "metric": metric, "round": 1, "source_mean": {metric: 0.5}, "held_out": {}}
    record["target"] = {name: {**row, "samples": 10} for name, row in targets.items()}
    return Cell(method, fold, seed, [record])


ROWS = [
    cell("A", 0, a={"accuracy": 0.9, "balanced_accuracy": 0.5, "weighted_auc": 0.6, "ece": 0.1}),
    cell("A", 0, fold="b", b={"accuracy": 0.7, "balanced_accuracy": 0.7, "weighted_auc": 0.8, "ece": 0.3}),
    cell("A", 1, a={"accuracy": 0.9, "balanced_accuracy": 0.8, "weighted_auc": 0.9, "ece": 0.2}),
    cell("A", 1, fold="b", b={"accuracy": 0.9, "balanced_accuracy": 0.8, "weighted_auc": 0.9, "ece": 0.2}),
    cell("A", 2, a={"accuracy": 0.1, "balanced_accuracy": 0.1, "weighted_auc": 0.1, "ece": 0.9}),  # half done: it does not count
    cell("B", 0, a={"accuracy": 0.8, "balanced_accuracy": 0.8, "ece": 0.05}),  # AUC is undefined with one class
]


def test_means_over_domains_then_seeds() -> None:
    table = beside(ROWS, "last")
    assert table.columns == ("balanced accuracy", "AUC", "ECE") and table.lower == ("ECE",)
    a = table.rows["A"]
    assert (a["balanced accuracy"].mean, a["AUC"].mean, a["ECE"].mean) == (pytest.approx(70.0), pytest.approx(80.0), pytest.approx(20.0))
    assert a["balanced accuracy"].std == pytest.approx(14.1421, abs=1e-3) and a["ECE"].n == 2, "seeds 60 and 80"
    assert "AUC" not in table.rows["B"] and table.rows["B"]["ECE"].std is None


def test_what_a_table_goes_by_is_not_beside_it() -> None:
    by_balance = [cell("A", 0, "balanced_accuracy", a={"accuracy": 0.9, "balanced_accuracy": 0.5, "ece": 0.1})]
    assert beside(by_balance, "last").columns == ("accuracy", "ECE")
    masks = [cell("A", 0, "dice", a={"dice": 0.9, "hd95": 4.5, "hd": 9.0})]
    table = beside(masks, "last")
    assert table.columns == ("HD95",) and table.rows["A"]["HD95"].mean == 4.5, "in its own unit"
    assert companions_of([cell("A", 0, a={"accuracy": 0.9})]) == () and beside([], "last").columns == ()


def test_in_every_format() -> None:
    table = beside(ROWS, "last")
    text = to_markdown(table)
    assert text.startswith("Beside accuracy, mean over the unseen domains; lower is better in ECE; last round")
    assert "| method | balanced accuracy | AUC | ECE |" in text and "| B | 80.00 | – | 5.00 |" in text
    assert "balanced accuracy & AUC & ECE" in to_latex(table)
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert {(r["method"], r["metric"], r["target"]) for r in rows} == {
        *(("A", m, "average") for m in ("balanced accuracy", "AUC", "ECE")),
        *(("B", m, "average") for m in ("balanced accuracy", "ECE")),
    }


def test_reports_have_them_and_runs_say_where_they_are(tmp_path: Path) -> None:
    for method in ("A", "B"):
        write_run(tmp_path / method, method)
        file = tmp_path / method / "records.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            record["target"]["art"] |= {"balanced_accuracy": 0.61, "weighted_auc": 0.72}
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    for format, told in (
        ("md", "| method | balanced accuracy | AUC | ECE |"),
        ("tex", "AUC & ECE"),
        ("csv-table", "balanced accuracy,61.0"),
    ):
        report = invoke(app, ["report", str(tmp_path), "--format", format, "--rule", "last"])
        assert report.exit_code == 0 and told in report.output, report.output
    assert invoke(app, ["report", str(tmp_path), "--format", "html", "--out", str(tmp_path / "r.html")]).exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert ">balanced accuracy</th>" in page and ">AUC</th>" in page and "72.00" in page
    from unseen.cli.answers import screen
    from unseen.cli.tables import say_where_others_are

    with screen.capture() as shown:
        say_where_others_are(collect(tmp_path).cells, "runs/my demo")
    assert shown.get() == "Balanced accuracy, AUC and ECE: unseen report 'runs/my demo'\n"
