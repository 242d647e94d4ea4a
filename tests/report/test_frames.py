"""Runs as rows: what `unseen.load`, `result.frame()` and `unseen report --format csv` hold, against the records themselves."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import unseen
from synthetic_runs import write_run
from unseen import BadInput
from unseen.cli import app
from unseen.report.collect import Run
from unseen.report.frames import rows_below, rows_of, rows_to_csv

pd = pytest.importorskip("pandas")


def two_runs(folder: Path) -> None:
    write_run(folder / "a", "FedAvg", "art", 0, rounds=4)
    write_run(folder / "b", "FedSB", "photo", 1, rounds=5, done=2, own={"art": 0.5})


def test_a_row_for_each_run_and_round_with_scores_and_settings(tmp_path: Path) -> None:
    two_runs(tmp_path)
    frame = unseen.load(tmp_path)
    assert isinstance(frame, pd.DataFrame) and len(frame) == 4 + 2
    assert list(frame["run"]) == ["a"] * 4 + ["b"] * 2 and list(frame["round"]) == [1, 2, 3, 4, 1, 2]
    assert list(frame["finished"]) == [True] * 4 + [False] * 2 and set(frame["set.lr"]) == {1e-3}
    assert set(frame["set.aggregation"]) == {"mean"} and set(frame["network"]) == {"resnet18"}
    for name in ("a", "b"):
        records = [json.loads(line) for line in (tmp_path / name / "records.jsonl").read_text().splitlines()]
        rows = frame[frame["run"] == name]
        (target,) = records[0]["target"]
        assert list(rows["target.accuracy"]) == [record["target"][target]["accuracy"] for record in records]
        assert list(rows[f"target.{target}.accuracy"]) == list(rows["target.accuracy"])
        assert list(rows["source.accuracy"]) == [record["source_mean"]["accuracy"] for record in records]
        assert list(rows["sent_bytes"]) == [3 * 44_700_000] * len(records)
    best = frame[frame["run"] == "a"]["source.accuracy"].idxmax()
    assert list(frame.index[frame["by_source"]]) == [best] and list(frame.index[frame["by_last"]]) == [3]
    assert not frame[frame["run"] == "b"][["by_last", "by_source", "by_oracle"]].any().any(), "no rule picks of a run that is not finished"


def test_the_csv_has_the_same_rows(tmp_path: Path) -> None:
    two_runs(tmp_path)
    frame = unseen.load(tmp_path)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "csv"])
    assert done.exit_code == 0, done.output
    read = list(csv.DictReader(io.StringIO(done.stdout)))
    assert isinstance(frame, pd.DataFrame) and list(read[0]) == list(frame.columns) and len(read) == len(frame)
    for row, (_, other) in zip(read, frame.iterrows(), strict=True):
        assert (row["run"], int(row["round"])) == (other["run"], other["round"])
        assert float(row["target.accuracy"]) == other["target.accuracy"] and float(row["set.lr"]) == other["set.lr"]
    assert [row["own.accuracy"] for row in read[:4]] == [""] * 4 and read[4]["own.art.accuracy"] != ""


def test_without_pandas_it_is_said_and_the_csv_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_runs(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match=r"needs pandas, which is not installed; install it with: pip install 'unseen\[pandas\]'"):
        unseen.load(tmp_path)
    assert rows_to_csv(rows_below(tmp_path)).count("\n") == 7


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no runs"):
        unseen.load(tmp_path)
    with pytest.raises(BadInput, match="no folder"):
        unseen.load(tmp_path / "nowhere")
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(BadInput, match=r"is an exported model; load it with unseen\.deploy\.load_model"):
        unseen.load(str(tmp_path))


plain = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
nested = st.recursive(
    plain, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3) | st.lists(inner, max_size=2), max_leaves=8
)


@given(st.dictionaries(st.text(max_size=6), nested, max_size=4), nested, nested)
def test_settings_of_any_form_become_columns(told: dict[str, Any], fields: Any, model: Any) -> None:
    """run.json may come from anybody: whatever it says becomes text in its own cells."""
    about = {"name": "x", "fold": "y", "experiment": {**told, "seed": 0, "rounds": 1, "set": fields}, "model": model}
    record: Any = {"round": 1, "metric": "accuracy", "source": {}, "source_mean": {}, "target": {}, "held_out": {}, "travelled": []}
    rows = rows_of(Run("r", about, [{**record, "missing": {}}], []))
    read = list(csv.reader(io.StringIO(rows_to_csv(rows), newline="")))
    assert len(rows) == 1 and len(read) == 2 and len(read[0]) == len(read[1]) == len(rows[0])
