"""A benchmark on a Slurm cluster that is made up: the same files as here, failures named, nothing left behind, only text in a job."""

from __future__ import annotations

import pickletools
import shlex
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fake_slurm
from unseen import BadInput, Experiment, FedAvg
from unseen.bench import slurm
from unseen.bench.plan import BenchmarkCell, read_benchmark
from unseen.bench.slurm import FOLDER, minutes_of, on_slurm, slurm_jobs
from unseen.cli import app
from unseen.runs.watch import Silent
from unseen.training import train

pytest.importorskip("submitit", reason="submitit is not installed: pip install 'unseen[slurm]'")

PLAN = tomllib.loads("""
data = "styled-digits"
targets = ["plain"]
seeds = [0, 1]
rounds = 2
network = "small_cnn:width=2"
device = "cpu"
methods = [{ method = "fedavg", set = { batch = 128, steps = 2 } }]
""")
WANTS = slurm_jobs(["time=10", "partition=short", "cpus=2", "memory=4"])
RESULTS = ("records.jsonl", "model.safetensors", "best.safetensors", "run.json")


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.over: dict[str, str] = {}
        self.rounds: list[tuple[int, int]] = []

    def round(self, record: Any, seconds: float) -> None:
        self.rounds.append((record["seed"], record["round"]))
        assert seconds > 0

    def say(self, message: str) -> None:
        self.lines.append(message)

    def ended(self, run: str, failed: str = "") -> None:
        self.over[run] = failed


@pytest.fixture
def cells() -> list[BenchmarkCell]:
    return read_benchmark(PLAN)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_LOOK", 0.05)
    monkeypatch.setattr(slurm, "_ASK", 0.1)


def test_jobs_leave_the_files_that_runs_leave_here_and_carry_text_alone(
    cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run is half done, one is finished already, one fails by itself."""
    state = fake_slurm.install(tmp_path, monkeypatch)
    for cell in cells:
        train(cell.experiment, tmp_path / "here" / cell.folder, watch=Silent())
    out, watch = tmp_path / "out", Heard()
    train(read_benchmark({**PLAN, "rounds": 1})[0].experiment, out / cells[0].folder, watch=Silent())
    train(cells[1].experiment, out / cells[1].folder, watch=Silent())
    occupied = BenchmarkCell(cells[0].experiment, "occupied")
    (out / "occupied").mkdir()
    (out / "occupied/letter.txt").write_text("kept")
    failed = on_slurm([*cells, occupied], out, WANTS, None, watch)
    assert list(failed) == ["occupied"] and "letter.txt" in failed["occupied"]
    for cell in cells:
        for name in RESULTS:
            assert (out / cell.folder / name).read_bytes() == (tmp_path / "here" / cell.folder / name).read_bytes(), name
    fake_slurm.ended(state)
    asked = [told["asked"] for told in fake_slurm.jobs(state).values()]
    assert len(asked) == 2, "the finished one needed no job"
    assert {(a["partition"], a["time"], a["cpus-per-task"], a["mem"]) for a in asked} == {("short", "10", "2", "4GB")}
    assert "gpus-per-node" not in asked[0] and watch.lines[0].startswith("2 of 3 runs are submitted") and "1 are finished" in watch.lines[0]
    assert watch.rounds == [(0, 2)], "of the run that was half done, and no round twice"
    assert watch.over == {cells[0].folder: "", cells[1].folder: "", "occupied": failed["occupied"]}
    pickles = list((out / FOLDER).glob("*_submitted.pkl"))
    assert len(pickles) == 2 and (out / FOLDER).stat().st_mode & 0o077 == 0
    for file in pickles:
        names = {str(arg).split(".")[0].split()[0] for op, arg, _ in pickletools.genops(file.read_bytes()) if op.name == "GLOBAL"}
        texts = [str(arg) for op, arg, _ in pickletools.genops(file.read_bytes()) if "UNICODE" in op.name]
        modules = {text for text in texts if text.startswith(("unseen", "torch", "numpy"))} | {n for n in names if n != "submitit"}
        assert modules == {"unseen.bench.single"}, "the command's words, and no object of ours"


def test_a_round_is_told_once_and_with_its_seconds_which_are_written_after_its_record(cells: list[BenchmarkCell], tmp_path: Path) -> None:
    train(cells[0].experiment, tmp_path, watch=Silent())
    timings = tmp_path / "timings.jsonl"
    first, second = timings.read_bytes().splitlines(keepends=True)
    watch = Heard()
    job = slurm._Submitted("1", cells[0], tmp_path / "cell.json", tmp_path, watch, 0, 0)
    for written, told in ((b"", []), (first, [1]), (first, [1]), (first + second[:-4], [1]), (first + second, [1, 2])):
        timings.write_bytes(written)
        job.tell_rounds(over=False)
        assert [number for _, number in watch.rounds] == told
    killed = slurm._Submitted("2", cells[0], tmp_path / "cell.json", tmp_path, Silent(), 0, 0)
    timings.write_bytes(first)
    killed.tell_rounds(over=True)
    assert killed.told == 2, "what a killed job recorded is told without its seconds"


def test_a_job_that_dies_is_named_with_its_state_and_log(
    cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm.install(tmp_path, monkeypatch, {"instead": "exit 1", "state": "OUT_OF_MEMORY"})
    failed = on_slurm(cells[:1], tmp_path / "out", WANTS, None, Silent())
    (reason,) = failed.values()
    assert "its job 1000 ended (OUT_OF_MEMORY) before the run did; its log is" in reason and "1000_0_log.err" in reason


def test_a_job_whose_time_ran_out_goes_on_in_another_as_long_as_it_gets_further(
    cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half, run = tmp_path / "half", tmp_path / "out" / cells[0].folder
    train(read_benchmark({**PLAN, "rounds": 1})[0].experiment, half, watch=Silent())
    copy = f"mkdir -p {shlex.quote(str(run))} && cp -r {shlex.quote(str(half))}/. {shlex.quote(str(run))}"
    out_of_time = {"state": "TIMEOUT"}
    state = fake_slurm.install(tmp_path, monkeypatch, {"instead": copy, **out_of_time}, {"instead": "true", **out_of_time})
    watch = Heard()
    failed = on_slurm(cells[:1], tmp_path / "out", WANTS, None, watch)
    assert [line for line in watch.lines if "job 1000 ended (TIMEOUT) in round 1; the run goes on in another job" in line]
    assert list(fake_slurm.jobs(state)) == ["1000", "1001"] and "its job 1001 ended (TIMEOUT)" in failed[cells[0].folder]


def test_an_interrupt_leaves_nothing_on_the_cluster(cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_slurm.install(tmp_path, monkeypatch, {"hold": True}, {"instead": "sleep 60"})
    looks = iter(range(100))

    def sleep(seconds: float) -> None:
        if next(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    with pytest.raises(KeyboardInterrupt):
        on_slurm(cells, tmp_path / "out", WANTS, None, Silent())
    assert [told["state"] for told in fake_slurm.jobs(state).values()] == ["CANCELLED", "CANCELLED"]


def test_the_scheduler_is_asked_once_for_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that every job of a large table asks for itself is asked many times a second."""
    fake_slurm.install(tmp_path, monkeypatch, *[{"hold": True}] * 4)
    now, looks, asked, real = time.monotonic(), [0], list[int](), slurm._asked

    def sleep(seconds: float) -> None:
        looks[0] += 1
        if looks[0] > 110:
            raise KeyboardInterrupt

    def counted(*words: str) -> str | None:
        asked.extend(looks if words[0] == "squeue" else [])
        return real(*words)

    monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now + looks[0]))
    monkeypatch.setattr(slurm, "_ASK", 20.0)
    monkeypatch.setattr(slurm, "_asked", counted)
    with pytest.raises(KeyboardInterrupt):
        on_slurm(read_benchmark({**PLAN, "seeds": [0, 1, 2, 3]}), tmp_path / "out", WANTS, None, Silent())
    assert asked == [20, 40, 60, 80, 100]


def test_at_most_so_many_at_once(cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_slurm.install(tmp_path, monkeypatch, {"instead": "exit 1"}, {"instead": "exit 1"})
    most: list[int] = []
    real = slurm._Queue.looked_at

    def looked_at(queue: slurm._Queue) -> Any:
        most.append(sum(told["state"] in ("PENDING", "RUNNING") for told in fake_slurm.jobs(state).values()))
        return real(queue)

    monkeypatch.setattr(slurm._Queue, "looked_at", looked_at)
    assert len(on_slurm(cells, tmp_path / "out", WANTS, 1, Silent())) == 2
    assert len(fake_slurm.jobs(state)) == 2 and max(most) <= 1


def test_a_cluster_that_takes_no_more_for_now_gets_the_rest_later(
    cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, watch = fake_slurm.install(tmp_path, monkeypatch, {"instead": "sleep 1; exit 1"}, {"instead": "exit 1"}), Heard()
    assert len(on_slurm(cells, tmp_path / "out", slurm_jobs(["time=1", "qos=one"]), None, watch)) == 2
    assert len(fake_slurm.jobs(state)) == 2 and any("QOSMaxSubmitJobPerUserLimit" in line and "1 at a time" in line for line in watch.lines)


def test_with_gpus_a_job_trains_on_one_wherever_it_was_submitted(
    cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = fake_slurm.install(tmp_path, monkeypatch, {"instead": "exit 1"})
    on_slurm(cells[:1], tmp_path / "out", slurm_jobs(["time=1", "gpus=1"]), None, Silent())
    (file,) = (tmp_path / "out" / FOLDER).glob("*.json")
    assert '"device": "cuda"' in file.read_text() and fake_slurm.jobs(state)["1000"]["asked"]["gpus-per-node"] == "1"


def test_a_cluster_that_takes_no_job_is_said(cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_slurm.install(tmp_path, monkeypatch)
    with pytest.raises(BadInput, match=r"the cluster took no job .*invalid partition specified: nowhere"):
        on_slurm(cells, tmp_path / "out", slurm_jobs(["time=1", "partition=nowhere"]), None, Silent())


def test_where_there_is_no_slurm_it_is_said(cells: list[BenchmarkCell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="this machine has no sbatch, srun, squeue, scancel"):
        on_slurm(cells, tmp_path / "out", WANTS, None, Silent())
    with pytest.raises(BadInput, match="in this process alone; leave --engine slurm out"):
        on_slurm([BenchmarkCell(Experiment(FedAvg(), tiny, "c"), "own")], tmp_path, WANTS, None, Silent())
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(BadInput, match=r"needs submitit; install it with: pip install 'unseen\[slurm\]'"):
        on_slurm(cells, tmp_path / "out", WANTS, None, Silent())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "how long a run may take; add for example --slurm time="),
        (["time=soon"], r"time is 'soon'; expected minutes \(90\), H:MM:SS or D-H:MM:SS"),
        (["time=0"], "time is '0'"),
        (["partiton=gpu"], "did you mean 'partition'"),
        (["gpu"], "write KEY=VALUE"),
        (["time=1", "time=2"], "time is given twice"),
        (["time=1", "gpus=two"], "gpus is 'two'; expected a whole number"),
        (["time=1", "memory=16G"], "memory is '16G'; expected a whole number of gigabytes"),
        (["time=1", "partition=a b"], "expected a name without spaces"),
        (["time=1", "account=x\n#SBATCH --wrap=evil"], "expected a name without spaces"),
    ],
)
def test_other_options_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        slurm_jobs(words)


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_times_as_slurm_writes_them(days: int, hours: int, minutes: int, seconds: int) -> None:
    whole = 86400 * days + 3600 * hours + 60 * minutes + seconds
    assert minutes_of(f"{days}-{hours}:{minutes:02d}:{seconds:02d}") == (None if not whole else (whole + 59) // 60)
    assert minutes_of(f"{minutes}:{seconds:02d}") == (None if not minutes and not seconds else (60 * minutes + seconds + 59) // 60)


@given(st.text(max_size=12))
def test_no_text_breaks_the_options(text: str) -> None:
    try:
        found = slurm_jobs([f"time={text}", f"partition={text}"])
    except BadInput:
        return
    assert found.asked["time"] > 0 and "\n" not in found.asked["partition"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.toml").write_text('data = "styled-digits"\ntargets = ["plain"]\nrounds = 1\ndevice = "cpu"\nmethods = ["fedavg"]\n')
    state = fake_slurm.install(tmp_path, monkeypatch, {"instead": "exit 1", "state": "OUT_OF_MEMORY"})

    def bench(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["bench", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out"), *words])
        return done.exit_code, " ".join(done.output.split())

    for words, says in (
        (["--engine", "slurm"], "add for example --slurm time="),
        (["--slurm", "time=1"], "--slurm is for --engine slurm"),
        (["--engine", "slurm", "--slurm", "time=1", "--workers", "2"], "leave --workers out"),
        (["--engine", "slurm", "--slurm", "time=1", "--address", "here:1"], "--address is for --engine ray"),
        (["--engine", "slum"], "did you mean 'slurm'"),
    ):
        code, told = bench(*words)
        assert code == 2 and says in told, told
    assert not fake_slurm.jobs(state) and not (tmp_path / "out").exists()
    code, told = bench("--engine", "slurm", "--slurm", "time=1", "--slurm", "partition=short")
    assert code == 1 and "its job 1000 ended (OUT_OF_MEMORY)" in told, told
    assert fake_slurm.jobs(state)["1000"]["asked"]["partition"] == "short"
