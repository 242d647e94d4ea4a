"""The documents' tables are those of the results, and what evidence.md computes from kept scores is what verdicts.md says."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unseen.report.verdicts import judge

ROOT = Path(__file__).parents[1]


def program(path: str) -> ModuleType:
    name = path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


tables = program("docs/making/tables.py")
CLAIMS = tomllib.loads((ROOT / "benchmarks/evidence/claims.toml").read_text())["claims"]
SAID = {(row.claim, row.paper): row for row in tables.verdicts(ROOT / "benchmarks/results/verdicts.md")}


@pytest.mark.parametrize("file", tables.documents(), ids=lambda file: file.name)
def test_tables_are_as_they_should_be(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert tables.with_tables(text) == text, "run: make format"


def by_source(claim: dict[str, Any]) -> str:
    """The verdict where source validation picks the round."""
    scores = tables.scores(claim["table"], "source", later=True)
    ours = judge(claim["first"], claim["second"], scores[claim["first"]], scores[claim["second"]], claimed=claim["printed"])
    return ours.decision


def test_differences_from_kept_scores_are_those_of_the_verdicts() -> None:
    compared = 0
    for claim in CLAIMS:
        said = SAID.get((claim["claim"], claim["where"]))
        if said is not None:
            rows = claim["table"], claim["first"], claim["second"]
            last, source = (tables.difference(*rows, rule, later=True) for rule in ("last", "source"))
            low, high = (float(end) for end in said.interval.split(" to "))
            assert (last.difference, last.low, last.high) == pytest.approx((float(said.ours), low, high), abs=0.011), claim
            assert source.difference == pytest.approx(float(said.by_source), abs=0.011), claim
            compared += 1
    assert compared == len(SAID) > 20


def test_verdicts_of_the_first_seeds_are_kept_beside_those_of_all() -> None:
    first = {(row.claim, row.paper): row for row in tables.verdicts(ROOT / "benchmarks/results/again/verdicts-first.md")}
    assert first.keys() == SAID.keys()
    for claim in CLAIMS:
        found = tables.difference(claim["table"], claim["first"], claim["second"])
        assert found.difference == pytest.approx(float(first[claim["claim"], claim["where"]].ours), abs=0.011), claim


def test_what_evidence_md_says_of_the_other_rule() -> None:
    changed = {c["claim"]: (SAID[c["claim"], c["where"]].verdict, by_source(c)) for c in CLAIMS if (c["claim"], c["where"]) in SAID}
    turned = {claim: now for claim, (before, now) in changed.items() if before != now}
    assert {claim for claim, now in turned.items() if now == "undecided"} == {
        "smoothing alone beats FedAvg, both with the plain mean",
        "the budget adds to smoothing",
        "RandConv helps FedAvg from photo, with a tenth of its weight",
        "ELCFS as released beats FedAvg",
    }
    assert {claim for claim, now in turned.items() if now == "reproduced"} == {"FedSB beats FedAvg", "ELCFS beats FedAvg in classification"}
    assert {claim for claim, now in turned.items() if now == "not reproduced"} == {
        "FedDAG beats FedDAG without NDAG",
        "FedGCA beats FedDyn + RandConv from photo, with a tenth of beta",
    }


def test_a_table_is_filled_between_its_marks_alone() -> None:
    text = "a\n<!-- table: ends\npacs-single-source | FedAvg\n-->\nold\n<!-- end of table -->\nb\n"
    told = tables.with_tables(text)
    assert told.startswith("a\n<!-- table: ends\npacs-single-source | FedAvg\n-->\n| row | source, % | unseen, % |\n")
    assert told.endswith("\n<!-- end of table -->\nb\n") and "old" not in told and tables.with_tables(told) == told
