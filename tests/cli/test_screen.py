"""What a person sees while runs go, and after: on a terminal, in a log, at 80 columns; and nothing left over."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from synthetic_runs import write_run
from unseen.bench.jobs import in_processes
from unseen.bench.overriding import overridden
from unseen.bench.plan import read_benchmark
from unseen.cli import app, show, tables
from unseen.cli.bench import _show
from unseen.data.domain import DomainDataset
from unseen.engines.tasks import Place
from unseen.engines.telling import Asked
from unseen.engines.workers import Workers
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.methods import FedAvg
from unseen.methods.best import Best
from unseen.report.tables import Cell, comparison
from unseen.runs.listing import FAILED_FILE, list_runs, remove_run
from unseen.runs.screen import Board, Screen
from unseen.runs.watch import Silent, Within
from unseen.training import train

SMALL = {"targets": ["plain", "outline"], "rounds": 2, "network": "small_cnn:width=2", "methods": ["fedavg"], "set": {"steps": 2}}


def unseen(*words: object, expect: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == expect, result.output
    return result.output


class Listening(Silent):
    def __init__(self) -> None:
        self.heard: list[Within] = []

    def within(self, where: Within) -> None:
        self.heard.append(where)


def console(width: int = 80, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=width, height=40, force_terminal=terminal, highlight=False, color_system=None, soft_wrap=True)


def written(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def drawn(thing: Any, width: int = 80) -> list[str]:
    on = console(width)
    on.print(thing._draw())
    return [line.rstrip() for line in written(on).splitlines()]


def record(number: int, target: float = 0.5) -> Any:
    rows = {"source": {}, "source_mean": {"accuracy": 0.8}, "target": {"x": {"accuracy": target}}, "held_out": {}}
    return {**rows, "fold": "x", "round": number, "seed": 0, "method": "A", "metric": "accuracy", "travelled": [], "missing": {}}


def test_a_round_tells_its_batches_and_clients_here_and_in_another_process(tiny: DomainDataset, tmp_path: Path) -> None:
    watch = Listening()
    train(Experiment(FedAvg(batch=8, steps=3), tiny, "c", rounds=2), None, watch=watch)
    told = [w for w in watch.heard if w.round == 2 and w.task == "train"]
    assert [(w.answered, w.batches, w.of) for w in told] == [
        (0, 0, 0), (0, 1, 3), (0, 2, 3), (0, 3, 3), (1, 0, 0), (1, 1, 3), (1, 2, 3), (1, 3, 3), (2, 0, 0),
    ]  # fmt: skip
    assert [w.answered for w in watch.heard if w.round == 2 and w.task == "scoring.score"] == [0, 1, 2, 3]
    passes = Listening()
    train(Experiment(FedAvg(batch=16, epochs=1.5), tiny, "c", rounds=1), None, watch=passes)
    last = {w.answered: w for w in passes.heard if w.task == "train" and w.batches}
    assert all(w.batches == w.of for w in last.values()) and len(last) == 2, "as many batches as were announced"
    other = Listening()
    cell = read_benchmark(SMALL)[0].experiment
    with Workers(1) as pool:
        train(cell, tmp_path / "run", watch=other, workers=pool)
    assert {w.clients for w in other.heard if w.task == "train"} == {3}
    assert [w.answered for w in other.heard if w.task == "train" and w.round == 2][-1] == 3


def test_several_clients_at_work_are_counted_together() -> None:
    heard: list[Within] = []
    asked = Asked(heard.append, Place(1, 1), "train", 3)
    asked.batch("a", 2, 10)
    asked.batch("b", 1, 10)
    asked.answer("a")
    assert heard[2] == Within(1, "train", 0, 3, 3, 20) and heard[-1] == Within(1, "train", 1, 3, 1, 10)


def test_the_board_at_eighty_columns_has_one_bar_and_a_line_for_each_run_at_work() -> None:
    with Board(console(), quiet=True) as board:
        board.planned({f"FedAvg/{name}/seed-0": 10 for name in "abcd"})
        board.started("FedAvg/a/seed-0")
        board.ended("FedAvg/a/seed-0", "no data")
        one, two = board.started("FedAvg/b/seed-0"), board.started("FedAvg/a-domain-with-a-name-that-is-far-too-long-for-a-line/seed-0")
        one.round(record(1), 2.0)
        one.round(record(2), 2.0)
        one.within(Within(3, "train", 1, 3, 14, 26))
        two.within(Within(1, "train", 0, 3))
        lines = drawn(board)
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
    assert re.fullmatch(r"━.* +1 of 5 runs, 2 at work, 1 failed · 0:00, about 0:00 left", lines[0]), lines[0]
    assert lines[1] == "FedAvg/b/seed-0: round 3/10, train 1/3 clients, batch 14/26, source 0.80"
    assert lines[2].endswith("…")


def test_nothing_of_a_live_view_is_left_and_the_unseen_score_is_not_shown(tiny: DomainDataset) -> None:
    on = console()
    with Screen(on) as watch:
        train(Experiment(FedAvg(batch=8, steps=1), tiny, "c", rounds=2), None, watch=watch)
    text = written(on)
    assert "\x1b[2K" in text and text.rstrip().endswith("\x1b[2K"), "the last thing written takes the view away"
    assert "round 2 of 2" in text and not re.search(r"\bc 0\.", text)
    log = console(terminal=False)
    with Screen(log, show_target=True) as watch:
        train(Experiment(FedAvg(batch=8, steps=1), tiny, "c", rounds=2), None, watch=watch)
    assert "\x1b" not in written(log) and re.search(r"round 2/2  source 0\.\d+  c 0\.", written(log))


def test_one_failure_many_times_over_is_told_once() -> None:
    on = console(terminal=False)
    with Board(on) as board:
        board.planned({f"A/{n}": 3 for n in range(48)})
        for n in range(48):
            board.started(f"A/{n}")
            board.ended(f"A/{n}", f"o/A/{n} has no data")
    assert written(on).splitlines() == ["[1/48] A/0 failed: o/A/0 has no data"]


def test_runs_in_other_processes_tell_how_they_go(tmp_path: Path) -> None:
    watch = Listening()
    assert in_processes(read_benchmark(SMALL)[:1], tmp_path, 1, watch) == {}
    assert watch.heard and {w.clients for w in watch.heard if w.task == "train"} <= {3}


def cells(seeds: int, *columns: str) -> list[Cell]:
    def one(method: str, column: str, seed: int) -> Cell:
        row = {
            **record(1),
            "fold": column,
            "seed": seed,
            "target": {column: {"accuracy": 0.7 + 0.001 * seed + (0.1 + 0.001 * seed) * (method == "B")}},
        }
        return Cell(method, column, seed, [row])  # type: ignore[list-item]

    return [one(method, column, seed) for method in "AB" for column in columns for seed in range(seeds)]


@pytest.mark.parametrize(("columns", "width"), [(4, 80), (6, 80), (6, 130), (14, 80), (6, 40)])
def test_a_table_never_breaks_a_number(columns: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    on = console(width)
    monkeypatch.setattr(tables, "screen", on)
    found = comparison(cells(3, *(f"domain{n}" for n in range(columns))), "last")
    tables.show_table(found)
    text = written(on)
    assert all(len(line.rstrip()) <= width for line in text.splitlines()) and "**" not in text and "|" not in text
    numbers = re.findall(r"\d\d\.\d+ ?± ?\d\.\d+", text)
    assert len(numbers) == 2 * (columns + 2), "every number is whole, on one line"


def test_markdown_in_a_file_and_drawn_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, mark in ((False, "| B | **80.20 ± 0.20** |"), (True, "B        80.20 ± 0.20")):
        on = console(terminal=terminal)
        monkeypatch.setattr(tables, "screen", on)
        tables.show_comparison(cells(3, "x"), "last")
        assert mark in written(on)
        assert "in the last round; mean ± standard deviation over seeds 0 to 2." in " ".join(written(on).split())


def test_the_model_that_bench_offers_is_of_the_row_that_it_calls_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was run on the easy domain alone has the highest mean, and no average."""
    for seed in range(3):
        write_run(tmp_path / f"Easy/photo/{seed}", "Easy", "photo", seed, skill=0.95)
        for fold in ("photo", "sketch"):
            write_run(tmp_path / f"Whole/{fold}/{seed}", "Whole", fold, seed, skill=0.6)
    monkeypatch.setattr(tables, "screen", on := console(200))
    rows: Any = [SimpleNamespace(experiment=SimpleNamespace(seed=seed)) for seed in range(3)]
    _show(["unseen", "bench", "plan.toml"], tmp_path, rows, {}, quiet=False)
    said = written(on)
    assert "Whole reaches" in said and f"unseen export {tmp_path}/Whole/" in said


def card(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(show, "screen", on := console(80))
    show.methods(name, as_json=False)
    lines = [line.rstrip() for line in written(on).splitlines()]
    assert all(len(line) <= 80 for line in lines)
    return lines


def test_a_card_speaks_of_papers_and_presets_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    best, fedsb = card("best", monkeypatch), card("fedsb", monkeypatch)
    assert "tasks: classification, segmentation" in best and not any("in the paper" in line for line in best)
    assert any("; presets: paper, released" in line for line in fedsb)
    assert any(line.endswith("in the paper") for line in fedsb) and any(line.endswith("not in the paper") for line in fedsb)


def test_a_card_shows_the_variants_that_tune_chooses_among(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = card("best", monkeypatch)
    begin = next(n for n, line in enumerate(lines) if line.startswith("variants"))
    assert "unseen tune best" in lines[begin]
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[begin + 1 : begin + 1 + len(Best.variants)]}
    assert list(rows) == list(Best.variants) and rows["gentle"] == "restyling = gentle" and rows["unmoved"] == "affine = none"
    assert json.loads(unseen("methods", "best", "--json"))["variants"] == Best.variants
    assert not any(line.startswith("variants") for line in card("fedsb", monkeypatch))


def test_a_run_is_resumed_by_its_folder_alone(tmp_path: Path) -> None:
    run = ["--method", "fedavg", "--target", "plain", "--network", "small_cnn:width=2", "--set", "steps=1", "--workers", 1, "-q"]
    unseen("run", *run, "--rounds", 1, "--out", tmp_path / "a")
    unseen("run", *run, "--rounds", 3, "--out", tmp_path / "whole")
    unseen("run", "--resume", tmp_path / "a", "--rounds", 3, "--workers", 1, "-q")
    assert (tmp_path / "a/records.jsonl").read_bytes() == (tmp_path / "whole/records.jsonl").read_bytes()
    file = tmp_path / "r.toml"
    file.write_text('method = "fedavg"\ntarget = "plain"\nnetwork = "small_cnn:width=2"\nrounds = 3\n[set]\nsteps = 1\n')
    assert "finished already" in unseen("run", "--out", tmp_path / "a", "--workers", 1, "--resume", file), "as a flag before a file too"


def test_a_mistake_found_before_round_1_leaves_no_run_behind(tmp_path: Path) -> None:
    run = [
        "run",
        "--method",
        "fedavg",
        "--target",
        "plain",
        "--network",
        "small_cnn:width=2",
        "--set",
        "steps=1",
        "--rounds",
        1,
        "--workers",
        1,
    ]
    assert "no weight file" in unseen(*run, "--weights", tmp_path / "none.pth", "--out", tmp_path / "run", expect=2)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text('{"experiment": {"seed": 3}, "name": "A", "fold": "x"}')  # killed before it began
    unseen(*run, "--out", tmp_path / "run", "-q")


def test_bench_takes_overrides_and_says_who_lacks_a_field(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    rows = 'methods = ["fedavg", { method = "fedsb", set = { budget = 9 }, by_target = { plain = { budget = 8 } } }]\n'
    file.write_text(f'targets = "all"\nrounds = 50\nseeds = [0, 1]\n{rows}')
    words = ["--rounds", 1, "--targets", "plain", "--seeds", 0, "--network", "small_cnn:width=2", "--workers", 1]
    text = unseen("bench", file, "--out", tmp_path / "b", *words, "--set", "fedavg.steps=1", "--set", "budget=2")
    assert "--set budget: fedavg has no such field" in text
    experiment = json.loads((tmp_path / "b/FedSB/plain/seed-0/run.json").read_text())["experiment"]
    assert (experiment["rounds"], experiment["set"]["budget"], experiment["network"]) == (1, 2, "small_cnn:width=2")
    assert "--rounds 1 --network small_cnn:width=2 --targets plain --set fedavg.steps=1 --set budget=2 --seeds 0,1,2" in " ".join(
        text.split()
    )
    with pytest.raises(BadInput, match="did you mean 'fedsb'"):
        overridden({"methods": ["fedsb"]}, {}, None, {"fedbs.lr": 1})


def test_runs_lists_what_failed_and_why_and_takes_it_away(tmp_path: Path) -> None:
    for cell in read_benchmark(SMALL):
        train(cell.experiment, tmp_path / cell.folder, watch=Silent())
    first, second = (cell.folder for cell in read_benchmark(SMALL))
    lines = (tmp_path / second / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / second / "records.jsonl").write_text(lines[0])
    assert [run.state for run in list_runs(tmp_path)] == ["stopped", "finished"]
    (tmp_path / FAILED_FILE).write_text(json.dumps({second: "the disk burnt", "FedSB/x/seed-0": "no data"}))
    (tmp_path / second / "mine.txt").write_text("kept")
    text = unseen("runs", tmp_path)
    assert "1 finished, 2 failed" in text and "the disk burnt" in text and re.search(r"outline/seed-0 +failed +1/2", text)
    assert json.loads(unseen("runs", tmp_path, "--json"))[0]["why"] == "the disk burnt"
    said = unseen("runs", tmp_path, "--clean", "failed", "--yes")
    assert "mine.txt" in said and (tmp_path / second / "mine.txt").exists() and not (tmp_path / second / "run.json").exists()
    assert not (tmp_path / FAILED_FILE).exists() and [run.folder for run in list_runs(tmp_path)] == [first]
    (outside := tmp_path.parent / "outside").mkdir(exist_ok=True)
    (outside / "run.json").write_text("{}")
    (tmp_path / "link").symlink_to(outside)
    for run in list_runs(tmp_path):
        remove_run(tmp_path, run)
    assert (outside / "run.json").exists(), "a link is not followed"


def test_version_and_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.match(r"unseen \d+\.\d+\.\d+ \(torch ", unseen("--version"))
