"""Cells of a benchmark at the same time: the same files as one after another, whatever fails or is killed on the way."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from unseen.bench import cluster, jobs
from unseen.bench.cluster import files_in, run_elsewhere, write_files
from unseen.bench.jobs import in_processes
from unseen.bench.plan import BenchmarkCell, read_benchmark
from unseen.bench.sequential import run_benchmark
from unseen.cli import app
from unseen.engines.child import ChildProcess
from unseen.engines.frames import write_frame
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.methods import FedAvg
from unseen.runs.watch import Silent, Watch
from unseen.training import train

RESULTS = ("records.jsonl", "model.safetensors", "best.safetensors", "run.json")

TOML = """
data = "styled-digits"
targets = ["plain"]
seeds = [0, 1]
rounds = 2
network = "small_cnn:width=2"
device = "cpu"
methods = [{ method = "fedavg", set = { batch = 128 } }, { method = "fedsb", set = { budget = 2, batch = 16 } }]
"""
PLAN = tomllib.loads(TOML)


@pytest.fixture(scope="module")
def cells() -> list[BenchmarkCell]:
    return read_benchmark(PLAN)


@pytest.fixture(scope="module")
def one_after_another(cells: list[BenchmarkCell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert run_benchmark(cells, out, 1, Silent()) == {}
    return out


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def ended(self, run: str, failed: str = "") -> None:
        self.lines.append(run)


def same(cells: list[BenchmarkCell], a: Path, b: Path) -> None:
    for cell in cells:
        for name in RESULTS:
            assert (a / cell.folder / name).read_bytes() == (b / cell.folder / name).read_bytes(), (cell.folder, name)


def test_two_at_a_time_leave_the_same_files(cells: list[BenchmarkCell], one_after_another: Path, tmp_path: Path) -> None:
    watch = Heard()
    assert in_processes(cells, tmp_path, 2, watch) == {}
    same(cells, one_after_another, tmp_path)
    assert sorted(watch.lines) == sorted(cell.folder for cell in cells)


def test_a_cell_that_fails_or_is_killed_leaves_the_others_alone(
    cells: list[BenchmarkCell], one_after_another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, killed = jobs._run, []

    def run(process: ChildProcess, description: dict[str, object], folder: Path, watch: Watch) -> str:
        if folder == tmp_path / cells[0].folder and not killed:
            killed.append(folder)
            os.kill(process.pid, signal.SIGKILL)
        return real(process, description, folder, watch)

    monkeypatch.setattr(jobs, "_run", run)
    occupied = tmp_path / cells[1].folder / "somebody-elses.txt"
    occupied.parent.mkdir(parents=True)
    occupied.write_text("kept")
    failed = in_processes(cells, tmp_path, 1, Silent())
    assert list(failed) == [cells[0].folder, cells[1].folder]
    assert "exit code -9" in failed[cells[0].folder] and "somebody-elses.txt" in failed[cells[1].folder]
    same(cells[2:], one_after_another, tmp_path)
    occupied.unlink()
    assert in_processes(cells, tmp_path, 1, Silent()) == {}, "the same command again goes on"
    same(cells, one_after_another, tmp_path)


def test_a_killed_command_takes_its_runs_with_it(cells: list[BenchmarkCell], tmp_path: Path) -> None:
    child = ChildProcess("unseen.bench.cell", threads=1)
    stdin = child._process.stdin
    assert stdin is not None
    try:
        endless = replace(cells[0].experiment, rounds=1_000_000)
        write_frame(stdin, {"experiment": endless.description(), "folder": str(tmp_path / "run")})
        while not (tmp_path / "run" / "records.jsonl").exists() and child.alive:
            time.sleep(0.05)
        assert (tmp_path / "run" / "records.jsonl").exists(), "it ended by itself"
        stdin.close()  # as the system does for a process that is gone
        assert child._process.wait(timeout=30) == 1
    finally:
        child.stop(grace=0)


def test_data_of_this_process_alone_cannot_be_given_to_another(tiny: object, tmp_path: Path) -> None:
    own = BenchmarkCell(Experiment(FedAvg(), tiny, "c"), "own")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="in this process alone; leave --jobs out"):
        in_processes([own], tmp_path, 2, Silent())


def test_a_cell_elsewhere_goes_on_from_the_files_it_is_given(cells: list[BenchmarkCell], one_after_another: Path, tmp_path: Path) -> None:
    train(read_benchmark({**PLAN, "rounds": 1})[0].experiment, tmp_path / "half", watch=Silent())
    reason, files = run_elsewhere(json.dumps(cells[0].experiment.description()), files_in(tmp_path / "half"))
    assert reason == ""
    write_files(tmp_path / "whole" / cells[0].folder, files)
    same([cells[0]], one_after_another, tmp_path / "whole")
    assert len((tmp_path / "half/timings.jsonl").read_text().splitlines()) == 1
    assert files["timings.jsonl"].startswith((tmp_path / "half/timings.jsonl").read_bytes()), "round 1 was not run again"


@pytest.mark.parametrize("written", range(7))
def test_a_new_folder_that_came_home_in_part_can_go_on(
    cells: list[BenchmarkCell], one_after_another: Path, tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, real, left = files_in(one_after_another / cells[0].folder), cluster.write_atomically, [written]

    def until_the_disk_is_full(path: Path, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(cluster, "write_atomically", until_the_disk_is_full)
    with contextlib.suppress(OSError):
        write_files(tmp_path / cells[0].folder, files)
    monkeypatch.undo()
    assert run_benchmark(cells[:1], tmp_path, 1, Silent()) == {}
    same(cells[:1], one_after_another, tmp_path)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5})?\.x", fullmatch=True), st.binary(max_size=20), max_size=4))
@settings(max_examples=20)
def test_a_folder_travels_whole(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("folder")
    write_files(folder, files)
    assert files_in(folder) == files


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ""])
def test_a_returned_name_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside its folder"):
        write_files(tmp_path / "run", {name: b"!"})
    assert not (tmp_path / "x").exists()


def test_over_ray_the_same_files(cells: list[BenchmarkCell], one_after_another: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the ray extra is not installed")
    (tmp_path / "b.toml").write_text(TOML)
    command = [sys.executable, "-m", "unseen", "bench", tmp_path / "b.toml", "--out", tmp_path / "o", "--engine", "ray", "--row", "FedSB"]
    ended = subprocess.run(command, capture_output=True, text=True)  # in a process of its own: Ray leaves things behind
    assert ended.returncode == 0, ended.stderr
    same(cells[2:], one_after_another, tmp_path / "o")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere", ":", "127.0.0.1:99999999"])
def test_a_cluster_that_does_not_answer(address: str, cells: list[BenchmarkCell], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the ray extra is not installed")
    from unseen.bench.cluster import on_ray

    with pytest.raises(BadInput, match=r"no answer .*; expected HOST:PORT"):
        on_ray(cells, tmp_path, address, Silent())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--address", "10.0.0.1:6379"], "--address is for --engine ray"),
        (["--engine", "ray", "--jobs", "2"], "leave --jobs and --workers out"),
        (["--jobs", "2", "--workers", "2"], "choose one of them"),
        (["--engine", "rya"], "did you mean 'ray'"),
        (["--row", "FedSBB"], "did you mean 'FedSB'"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('data = "styled-digits"\ntargets = ["plain"]\nrounds = 1\nmethods = ["fedavg", "fedsb"]\n')
    answer = CliRunner().invoke(app, ["bench", str(tmp_path / "b.toml"), "--out", str(tmp_path / "o"), *options])
    assert answer.exit_code == 2 and said in answer.output.replace("\n", " ")
    assert not (tmp_path / "o").exists()


def test_one_row_alone(tmp_path: Path) -> None:
    assert {cell.experiment.name for cell in read_benchmark(PLAN, rows=["FedSB"])} == {"FedSB"}
