"""What a benchmark writes beside its runs, and what the report makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unseen.bench.plan import read_benchmark
from unseen.cli import app
from unseen.errors import BadInput

FILE = """
data = "styled-digits"
targets = ["plain"]
rounds = 1
network = "small_cnn:width=2"
methods = ["fedavg"]
[set]
steps = 1
[paper_numbers]
"FedAvg" = { plain = 81.25 }
"JiGen" = { plain = 70, average = 66.5 }
"""


def test_the_papers_numbers_reach_the_page(tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_text(FILE)
    done = CliRunner().invoke(app, ["bench", str(tmp_path / "bench.toml"), "--out", str(tmp_path / "b"), "--workers", "1", "-q"])
    assert done.exit_code == 0, done.output
    plan = json.loads((tmp_path / "b/bench.json").read_text())
    assert plan["runs"] == ["FedAvg/plain/seed-0"] and plan["paper_numbers"]["FedAvg"] == {"plain": 81.25}
    page = CliRunner().invoke(app, ["report", str(tmp_path / "b"), "--format", "html"]).stdout
    assert "81.25" in page and "JiGen" in page


@pytest.mark.parametrize("printed", [3, {"FedAvg": 80}, {"FedAvg": {"plain": "high"}}, {"FedAvg": {"plain": True}}])
def test_numbers_that_are_none_are_refused(printed: object) -> None:
    with pytest.raises(BadInput, match="paper_numbers"):
        read_benchmark({"methods": ["fedavg"], "targets": ["plain"], "paper_numbers": printed})


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_text(FILE)
    (tmp_path / "b").write_text("")
    done = CliRunner().invoke(app, ["bench", str(tmp_path / "bench.toml"), "--out", str(tmp_path / "b"), "-q"])
    assert done.exit_code == 2 and "choose another --out" in done.output
