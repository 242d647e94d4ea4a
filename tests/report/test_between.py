"""A run between sites on the page: every number counted anew from the records, and what it waits for now."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from synthetic_runs import write_run
from unseen.cli import app
from unseen.report.between import between_sites
from unseen.report.collect import collect
from unseen.report.page import render_page
from unseen.report.serve import Watched

EVIL = "<script>alert(1)</script>"


def between(folder: Path) -> dict[str, Any]:
    """A synthetic run, as if its clients were sites; in round 2 the first was left out."""
    write_run(folder, rounds=3, done=3)
    about = json.loads((folder / "run.json").read_text()) | {"between_sites": True, "partition": "ab" * 32}
    (folder / "run.json").write_text(json.dumps(about))
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    site = sorted(about["clients"])[0]
    records[1]["missing"] = {site: f"refused by the site: {EVIL}"}
    for row in records[1]["travelled"]:
        row["clients"] = [name for name in row["clients"] if name != site]
    records[2]["notes"] = {"epsilon": {site: 3.25}}
    records[2]["source"][site] = {records[2]["metric"]: 0.625, "samples": 8}
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {"site": site, "records": records, "about": about}


@pytest.fixture
def ran(tmp_path: Path) -> dict[str, Any]:
    return between(tmp_path / "r")


def test_what_a_site_did_is_counted(ran: dict[str, Any], tmp_path: Path) -> None:
    (run,) = between_sites(collect(tmp_path).runs)
    site = next(one for one in run.sites if one.name == ran["site"])
    sent = 0
    for record in ran["records"]:
        for row in [*record["travelled"], *record["scoring"]]:
            if row["direction"] == "sent":
                sent += row["bytes"] * row["clients"].count(ran["site"])
    assert site.sent == sent == sum(one.sent for one in site.rounds) > 0 and site.trains
    assert [one.number for one in site.left_out] == [2] and site.epsilon == 3.25
    assert site.score == 62.5
    assert {one.name for one in run.sites} == {*ran["about"]["clients"], *ran["about"]["targets"]}
    assert (run.done, run.rounds, run.study, run.now) == (3, 3, "ab" * 32, "")


def test_the_page_shows_sites_rounds_and_what_travelled(ran: dict[str, Any], tmp_path: Path) -> None:
    stands: Any = SimpleNamespace(study="ab" * 32, state="runs", round=3, waiting={"x": 1.0}, waits_for="north (train, 4 s)")
    page = render_page(collect(tmp_path), "runs", standings=[stands])
    assert '<a href="#sites">' in page and "Waits for north (train, 4 s)." in page and "Left out 1 time: why" in page
    row = re.search(rf'<th scope="row">{ran["site"]}</th><td class="l">trains</td>(.*?)</td>', page)
    assert row and row.group(1).count('<i class="in"') == 2 and row.group(1).count('<i class="out"') == 1
    assert "answered 2 of 3 rounds" in row.group(1) and EVIL not in page and "alert(1)" in page


def test_runs_of_one_machine_have_no_such_section(tmp_path: Path) -> None:
    write_run(tmp_path / "r", rounds=3, done=3)
    assert 'id="sites"' not in render_page(collect(tmp_path), "runs")


def test_the_page_is_made_anew_when_a_study_moves_on(ran: dict[str, Any], tmp_path: Path) -> None:
    stands = SimpleNamespace(study="ab" * 32, state="runs", round=3, waiting={}, waits_for="the server's own work")
    watched = Watched(tmp_path, standings=lambda: [stands])  # type: ignore[list-item]
    before = watched.stamp()
    assert "the server&#39;s own work" in watched.page() and watched.stamp() == before
    stands.waiting, stands.waits_for = {"north": 1.0}, "north"
    assert watched.stamp() != before and "Waits for north." in watched.page()


def test_watching_what_is_no_federation_is_a_mistake(ran: dict[str, Any], tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["watch", str(tmp_path), "--federation", str(tmp_path), "--port", "0"])
    assert said.exit_code == 2 and said.output.count("unseen: ") == 1 and "no federation in" in said.output
