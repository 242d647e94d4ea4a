"""Reading what a run wrote: whole lines alone, in order, each of the declared kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synthetic_runs import write_run
from unseen.runs.record import Record, Timing, read_records, read_timings


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write(file: Path, lines: list[Any]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_record_is_the_dict_that_was_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=3)
    records, timings = read_records(tmp_path / "run/records.jsonl"), read_timings(tmp_path / "run/timings.jsonl")
    assert records == lines_of(tmp_path / "run/records.jsonl") and type(records[0]) is dict
    assert timings == lines_of(tmp_path / "run/timings.jsonl")
    assert records[-1]["target"]["art"]["accuracy"] > 0 and records[-1]["target"]["art"]["samples"] == 100
    assert read_records(tmp_path / "nothing.jsonl") == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", 3),
        ("round", "2"),
        ("round", True),
        ("metric", None),
        ("source_mean", {"accuracy": "high"}),
        ("target", {"art": 0.5}),
        ("travelled", {}),
        ("travelled", [{"direction": "sent", "bytes": 3}]),
        ("missing", {"a": 1}),
        ("own", {"a": 0.5}),
        ("own_mean", []),
    ],
)
def test_a_line_of_another_kind_ends_the_reading(key: str, value: object, tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=3)
    file = tmp_path / "run/records.jsonl"
    lines = lines_of(file)
    lines[1][key] = value
    write(file, lines)
    assert [r["round"] for r in read_records(file)] == [1]


@pytest.mark.parametrize("key", [key for key in Record.__annotations__ if not key.startswith("own")])
def test_a_line_that_lacks_something_ends_the_reading(key: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=3)
    file = tmp_path / "run/records.jsonl"
    lines = lines_of(file)
    del lines[2][key]
    write(file, lines)
    assert [r["round"] for r in read_records(file)] == [1, 2]


@pytest.mark.parametrize("key", [*Timing.__annotations__])
def test_so_it_is_with_timings(key: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=3)
    file = tmp_path / "run/timings.jsonl"
    lines = lines_of(file)
    del lines[2][key]
    write(file, lines)
    assert [t["round"] for t in read_timings(file)] == [1, 2]


@pytest.mark.parametrize("line", ["[]", "3", "null", '"round"', "{", '{"round": 1}'])
def test_foreign_lines_are_no_records(line: str, tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text(line + "\n")
    assert read_records(tmp_path / "records.jsonl") == []
