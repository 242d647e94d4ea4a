"""What would stop every run is said before the first, and leaves no folder behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tuning.made_up import FILE, plan_values
from unseen.cli import app
from unseen.cli.tune import tune
from unseen.methods import method_class
from unseen.tuning.early import refuse_early
from unseen.tuning.plan import read_plan
from unseen.tuning.uses import uses_of
from unseen.tuning.writing import to_toml

invoke = CliRunner().invoke
ROW = {"method": "fedavg", "label": "A", "rates": [0.01, 0.05]}
DIVIDED = """
import dataclasses

import numpy as np
from four_domains import four


def divided():
    data = four()
    split = np.array(["train"] * 12 + ["val"] * 6)
    return dataclasses.replace(data, domains=tuple(dataclasses.replace(domain, split=split) for domain in data.domains))
"""
BESIDE = ["--data", f"{FILE}:four", "--device", "cpu", "--rounds", "1"]


def refused(arguments: list[str]) -> str:
    told = invoke(app, ["tune", *arguments])
    assert told.exit_code == 2, told.output
    return " ".join(told.output.split())


def plan_file(folder: Path, values: dict[str, Any]) -> str:
    file = folder / "my.plan.toml"
    file.write_text(to_toml(values, []))
    return str(file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "nowhere"], "no domain of striped 'nowhere'; there are: a, b, c, d"),
        (["--target", "nowhere", "--rule", "source"], "no domain of striped 'nowhere'; there are: a, b, c, d"),
        (["--network", "small_cn"], "did you mean 'small_cnn'?"),
        (["--weights", "/nofile.pt"], "/nofile.pt"),
    ],
)
def test_what_would_stop_every_try_is_said_once_and_claims_nothing(tmp_path: Path, options: list[str], message: str) -> None:
    out = tmp_path / "o"
    told = refused([f"{FILE}:Recipe", *BESIDE, *options, "--out", str(out)])
    assert told.count(message) == 1 and "problems" not in told
    assert not out.exists()


@pytest.mark.parametrize(
    ("around", "tune"),
    [
        ({"targets": ["a", "z"]}, {"choice": "per-target"}),
        ({"targets": ["a", "z"]}, {"choice": "new-site"}),
        ({"targets": ["a", "z"]}, {"choice": "one", "rule": "source"}),
        ({}, {"choice": "one", "targets": ["a", "z"]}),
        ({"sources": "a,b,c,z", "targets": ["d"]}, {"choice": "per-target"}),
    ],
)
def test_domains_that_a_plan_misspells_are_told_and_claim_nothing(tmp_path: Path, around: dict[str, Any], tune: dict[str, Any]) -> None:
    plan, out = plan_file(tmp_path, {**plan_values(ROW, **tune), **around}), tmp_path / "o"
    told = refused([plan, "--out", str(out)])
    assert told.count("no domain of striped 'z'; there are: a, b, c, d") == 1 and "problems" not in told
    assert not out.exists()


def test_a_row_that_leaves_nothing_open_is_looked_at_before_the_tries(tmp_path: Path) -> None:
    closed = {"method": "fedavg", "label": "B", "rate_of": "A", "network": "small_cn"}
    told = refused([plan_file(tmp_path, plan_values(ROW, closed, choice="new-site")), "--out", str(tmp_path / "o")])
    assert "no network 'small_cn'; did you mean 'small_cnn'?" in told and not (tmp_path / "o").exists()


def test_validation_zero_with_the_rule_source_is_told_before_the_tries(tmp_path: Path) -> None:
    around = {"validation": 0.0, "rounds": 1}
    told = refused([plan_file(tmp_path, {**plan_values(ROW, rule="source", choice="one"), **around}), "--out", str(tmp_path / "o")])
    assert "validation is 0, and the rule source judges tries by the validation parts" in told and not (tmp_path / "o").exists()


def test_data_with_a_validation_part_of_their_own_need_no_share(tmp_path: Path) -> None:
    file = tmp_path / "divided.py"
    file.write_text(DIVIDED)
    plan = read_plan({**plan_values(ROW, rule="source", choice="one"), "validation": 0.0, "data": f"{file}:divided"})
    refuse_early(plan, uses_of(plan), tmp_path)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("my.plan.toml", "my.plan.toml, which is kept; choose another --write"),
        ("x/../my.plan.toml", "my.plan.toml, which is kept; choose another --write"),
        ("o/tuning.json", "tuning.json, which is kept"),
        (".", "is a folder; name a file in it"),
        ("my.plan.toml/tuned.toml", "my.plan.toml: Not a directory); choose another --write"),
    ],
)
def test_a_file_that_must_not_or_cannot_be_written_is_told_before_the_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_file(tmp_path, {**plan_values(ROW, choice="new-site"), "rounds": 1})
    before = Path(plan).read_text()
    told = refused([plan, "--out", "o", "--write", write])
    assert message in told and Path(plan).read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["my.plan.toml"], "nothing was run"


def test_the_plan_in_the_folder_of_the_tries_is_not_written_over_by_default(tmp_path: Path) -> None:
    file = tmp_path / "tuned.toml"
    file.write_text(to_toml(plan_values(ROW, choice="new-site"), []))
    assert "which is kept; choose another --write" in refused([str(file), "--out", str(tmp_path)])


def test_the_examples_of_the_help_name_methods_that_declare_variants() -> None:
    examples = re.findall(r"unseen tune (\w+) --data", tune.__doc__ or "")
    assert examples and all(method_class(name).variants for name in examples)
