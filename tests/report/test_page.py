"""The page: what it says, what it refuses, what it escapes, how large it is."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from synthetic_runs import write_bench, write_run
from unseen.cli import app
from unseen.errors import BadInput
from unseen.report.charts import Line, class_chart, line_chart, nice_ticks
from unseen.report.collect import collect
from unseen.report.page import render_page
from unseen.report.summary import curves


class Words(HTMLParser):
    """The tags and the text of a page, and whether every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "input", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += [data.strip()] if data.strip() else []


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    write_bench(tmp_path / "b", methods=3, seeds=2, rounds=4)
    return tmp_path / "b"


def test_every_section_is_there_and_nothing_is_fetched(bench: Path) -> None:
    page = render_page(collect(bench), "Three methods")
    words = Words(page)
    assert words.open == []
    for heading in (
        "Comparison",
        "Paired tests",
        "Learning curves",
        "What travelled",
        "Time",
        "Partition",
        "Settings and departures",
        "Runs",
    ):
        assert heading in words.text
    assert {"average", "worst domain", "ECE", "unseen: sketch", "44.7 MB", "resnet18", "lr"} <= set(words.text)
    assert not re.search(r"""\b(src|href)=(?!"#)""", page) and "http:" not in page and "https:" not in page
    assert page.count("<svg") == 5 + 8 and words.tags.count("script") == 1  # curves and bytes; partitions


def test_numbers_are_those_of_the_table(bench: Path) -> None:
    from unseen.report.statistics import interval_within
    from unseen.report.tables import comparison

    found = collect(bench)
    words = Words(render_page(found, "x")).text
    for rule in ("last", "source", "oracle"):
        stat = comparison(found.cells, rule).rows["FedSB"]["average"]
        low, high = interval_within(stat) or (0, 0)
        assert f"{stat.mean:.2f}" in words and f"{low:.1f} to {high:.1f}" in words


def test_a_run_that_ended_early_is_marked_and_not_averaged(bench: Path) -> None:
    before = Words(render_page(collect(bench), "x")).text
    write_run(bench / "early", "FedAvg", "art", 7, 4, done=2, skill=0.0)
    after = Words(render_page(collect(bench), "x")).text
    assert "1 unfinished" in after and "2 of 4: unfinished" in after
    at = before.index("average"), after.index("average")
    assert before[at[0] : at[0] + 20] == after[at[1] : at[1] + 20]


def test_a_run_in_progress_can_be_looked_at(tmp_path: Path) -> None:
    write_run(tmp_path / "r", done=2)
    with pytest.raises(BadInput, match="no finished run"):
        collect(tmp_path)
    page = render_page(collect(tmp_path, unfinished=True), "x", live=True)
    assert "No run is finished yet" in page and 'class="c0 open"' in page and "stamp" in page
    write_run(tmp_path / "empty", "FedSB", done=0)
    assert Words(render_page(collect(tmp_path, unfinished=True), "x")).open == []


def test_a_round_without_the_metric_shifts_no_other(tmp_path: Path) -> None:
    """AUC, say, is not defined where a round's cases are of one class."""
    for seed in (0, 1):
        write_run(tmp_path / str(seed), "A", "art", seed, 4)
    records = [json.loads(line) for line in (tmp_path / "1/records.jsonl").read_text().splitlines()]
    del records[1]["target"]["art"]["accuracy"]
    (tmp_path / "1/records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    runs = collect(tmp_path).runs
    (line,) = curves(runs, {"A": 0})["art"]
    scores = [[100 * run.records[n - 1]["target"]["art"]["accuracy"] for run in runs] for n in (1, 3, 4)]
    assert [x for x, _ in line.points] == [1, 3, 4]
    assert [y for _, y in line.points] == pytest.approx([sum(row) / 2 for row in scores])
    assert line.band == [(min(row), max(row)) for row in scores]


NASTY = "<script>alert('1')</script>\"&"


def test_html_in_names_is_text(tmp_path: Path) -> None:
    write_run(tmp_path / "r", NASTY, fold=NASTY)
    write_run(tmp_path / "s", "plain")
    (tmp_path / "bench.json").write_text(json.dumps({"paper_numbers": {NASTY: {NASTY: 1.0}}}))
    page = render_page(collect(tmp_path), NASTY)
    assert "<script>alert" not in page
    words = Words(page)
    assert NASTY in words.text and words.tags.count("script") == 1


@given(st.text(min_size=1))
def test_any_name_gives_a_whole_chart(name: str) -> None:
    chart = line_chart([Line(name, 3, [(1, 0.0), (2, 5.0)])], "round", "score")
    printable = "".join(c for c in name if c >= " " and c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff")
    if printable == name:
        assert name in "".join(ET.fromstring(chart).itertext())


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_inside_and_evenly_spaced(low: float, length: float) -> None:
    ticks = nice_ticks(low, low + length)
    assert 1 <= len(ticks) <= 12
    assert all(low - 1e-6 * length <= t <= low + length * (1 + 1e-6) for t in ticks)


def test_one_point_and_long_lines_are_drawn() -> None:
    assert "<circle" in line_chart([Line("a", 0, [(1, 1.0)])], "x", "y")
    long = line_chart([Line("a", 0, [(n, n % 7) for n in range(5000)], [(n % 7 - 1, n % 7 + 1) for n in range(5000)])], "x", "y")
    assert len(long) < 10_000 and long.count("<path") > 2
    assert line_chart([Line("a", 0, [])], "x", "y") == ""


def test_the_partition_is_drawn_by_class() -> None:
    chart = ET.fromstring(class_chart({"north": [0, 4], "a site with a long name": [8, 1]}, ["benign", "malignant, with more text"]))
    text = [node.text for node in chart.iter("text") if node.text]
    numbers = [node.find("title").tail if node.find("title") is not None else node.text for node in chart.iter("text")]  # type: ignore[union-attr]
    assert text == ["0", "4", "8", "1"]
    assert "north" in numbers and "a site with …" in numbers and "a site with a long name" in "".join(chart.itertext())
    shades = {path.get("fill-opacity"): path.get("d", "").count("z") for path in chart.iter("path")}
    assert shades == {"0.06": 1, "0.25": 1, "0.50": 1}  # 1, 4 and 8 of 8; nothing where there is nothing
    many = class_chart({f"client {n}": [n] * 65 for n in range(100)}, [str(n) for n in range(65)])
    assert len(many) < 160_000 and "65 classes" in many and many.count("<path") == 8


def test_partitions_are_drawn_as_often_as_they_differ(bench: Path) -> None:
    page = render_page(collect(bench), "x")
    assert (
        page.count('class="chart cells"') == 8 == page.count("unseen: art; seed ") * 4
    )  # four domains under two seeds, three methods alike
    runs = json.loads((bench / "m0/art/seed-0/run.json").read_text())
    for client in runs["clients"].values():
        assert sum(client["classes"]) == client["train"] and f"{client['train']} + {client['validation']}" in page
    write_run(bench / "more", "FedAvg", "art", 9, 4)
    assert "1 more, under other seeds" in render_page(collect(bench), "x")


def test_between_sites_no_classes_are_drawn_and_the_page_says_why(tmp_path: Path) -> None:
    write_run(tmp_path / "r")
    file = tmp_path / "r/run.json"
    about = json.loads(file.read_text())
    about |= {"between_sites": True, "clients": {n: {k: v for k, v in c.items() if k != "classes"} for n, c in about["clients"].items()}}
    file.write_text(json.dumps(about))
    page = render_page(collect(tmp_path), "x")
    assert "chart cells" not in page and "stays with it: only the totals are known here" in page


def test_the_papers_numbers_stand_beside_ours(bench: Path) -> None:
    numbers = {"FedAvg": {"art": 99.25, "average": 50}, "JiGen": {"average": 61.5}}
    (bench / "bench.json").write_text(json.dumps({"runs": [], "paper_numbers": numbers}))
    words = Words(render_page(collect(bench), "x")).text
    assert {"Beside the paper's own numbers", "99.25", "JiGen", "61.50"} <= set(words)
    (bench / "bench.json").write_text('{"paper_numbers": {"a": 3}}')
    with pytest.raises(BadInput, match=r"bench\.json cannot be read"):
        collect(bench)


@pytest.mark.parametrize(("key", "value"), [("data", "vlcs"), ("protocol", "single-source"), ("size", 96)])
def test_runs_that_cannot_be_compared_are_refused(bench: Path, key: str, value: object) -> None:
    write_run(bench / "other", "FedAvg", rounds=4, **{key: value})
    with pytest.raises(BadInput, match=f"{key} differs: .*{value}"):
        collect(bench)
    forced = collect(bench, force=True)
    assert f"mixed by --force: {key} differs" in forced.notes[0]
    assert "mixed by --force" in render_page(forced, "x")


def test_a_run_that_would_take_anothers_place_is_refused(bench: Path) -> None:
    write_run(bench / "again", "FedAvg", "art", 0, 4, done=2)  # not finished: it is left out anyway
    collect(bench)
    write_run(bench / "once more", "FedAvg", "art", 0, 4)
    with pytest.raises(BadInput, match=r"FedAvg, fold art, seed 0 is there more than once \(m0/art/seed-0, once more\)"):
        collect(bench)
    assert "a table takes the last" in collect(bench, force=True).notes[0]


@pytest.mark.parametrize("text", ["{}", "[]", "no", '{"name": "a", "fold": "b", "experiment": {}}'])
def test_a_damaged_run_is_named(bench: Path, text: str) -> None:
    (bench / "bad").mkdir()
    (bench / "bad/run.json").write_text(text)
    with pytest.raises(BadInput, match=r"bad/run\.json"):
        collect(bench)


def test_segmentation_has_its_surface_distance(tmp_path: Path) -> None:
    write_run(tmp_path / "a", task="segmentation")
    words = Words(render_page(collect(tmp_path), "x")).text
    assert "HD95" in words and "ECE" not in words


def test_own_models_have_a_table_under_every_rule(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "Personal", own={"photo": 0.8125, NASTY: 0.6875})
    write_run(tmp_path / "b", "Shared")
    words = Words(render_page(collect(tmp_path), "x"))
    assert words.open == [] and words.tags.count("script") == 1
    assert words.text.count("Each client's own model, at that client") == 3 and words.text.count("worst client") == 3  # nothing is held out
    at = words.text.index("Each client's own model, at that client")
    numbers = ["method", "photo", NASTY, "average", "worst client", "seeds", "Personal", "81.25", "68.75", "75.00", "68.75", "1"]
    assert words.text[at + 2 : at + 2 + len(numbers)] == numbers
    assert words.text[at + 2 + len(numbers)] != "Shared"  # it has no such models


def test_two_hundred_runs_stay_small(tmp_path: Path) -> None:
    write_bench(tmp_path / "b", methods=10, seeds=5, rounds=12)
    page = render_page(collect(tmp_path / "b"), "Two hundred")
    assert len(page) < 400_000 and "only the best" in page


def test_the_command(bench: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(bench), "--format", "html", "--out", str(tmp_path / "x" / "page.html")])
    assert done.exit_code == 0, done.output
    assert "Learning curves" in (tmp_path / "x" / "page.html").read_text()
    write_run(bench / "other", data="vlcs")
    refused = CliRunner().invoke(app, ["report", str(bench)])
    assert refused.exit_code == 2 and "data differs" in refused.output and "--force" in refused.output
    assert CliRunner().invoke(app, ["report", str(bench), "--force"]).exit_code == 0
