"""The command line as a user types it: files written, bad input answered with exit code 2, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import methods_for_tests as own
from unseen.cli import app

FAST = ["--set", "budget=2", "--set", "batch=16", "--network", "small_cnn:width=2", "--workers", "1", "--device", "cpu"]
FEDSB = ["run", "--method", "fedsb", "--data", "styled-digits", "--target", "outline", *FAST]


def unseen(*arguments: object, expect: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expect, result.output
    assert "Traceback" not in result.output
    return result.output


def test_a_run_from_options(tmp_path: Path) -> None:
    text = unseen(*FEDSB, "--rounds", 2, "--seed", 3, "--out", tmp_path / "run")
    assert "round 2/2" in text and "source 0." in text and "| FedSB |" in text
    assert "outline 0." not in text, "the unseen score is not shown while training"
    assert "in the best round by source validation; seed 3." in text and "one seed cannot tell" in text
    assert text.count("\n  unseen ") == 3, "three commands one would want next"
    shown = unseen(*FEDSB, "--rounds", 1, "--out", tmp_path / "shown", "--show-target")
    assert "outline 0." in shown
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {
        "run.json",
        "records.jsonl",
        "timings.jsonl",
        "model.safetensors",
        "best.safetensors",
        "checkpoint.safetensors",
    }
    assert json.loads((tmp_path / "run/run.json").read_text())["experiment"]["seed"] == 3


def test_a_run_from_a_file_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        'method = "fedsb"\ndata = "styled-digits"\ntarget = "plain"\nrounds = 9\nnetwork = "small_cnn:width=2"\nworkers = 1\n'
        "[set]\nbudget = 2\nsmoothing = 0.3\n"
    )
    unseen("run", file, "--rounds", 1, "--set", "batch=16", "--out", tmp_path / "run", "-q")
    experiment = json.loads((tmp_path / "run/run.json").read_text())["experiment"]
    assert experiment["rounds"] == 1 and experiment["target"] == "plain"
    assert experiment["set"]["smoothing"] == 0.3 and experiment["set"]["batch"] == 16


def test_quiet_prints_nothing_and_verbose_prints_everything(tmp_path: Path) -> None:
    assert unseen(*FEDSB, "--rounds", 1, "--out", tmp_path / "q", "-q") == ""
    text = unseen(*FEDSB, "--rounds", 1, "--out", tmp_path / "v", "-v")
    assert "left the clients" in text and "weighted_f1" in text


def test_a_method_of_ones_own(tmp_path: Path) -> None:
    unseen(
        "run",
        "--method",
        f"{own.__file__}:Exercise",
        "--target",
        "plain",
        "--rounds",
        1,
        "--network",
        "small_cnn:width=2",
        "--workers",
        1,
        "--out",
        tmp_path / "r",
        "-q",
    )
    assert json.loads((tmp_path / "r/run.json").read_text())["name"] == "Exercise"


def test_single_source_scores_every_target_in_one_training(tmp_path: Path) -> None:
    options = ["--protocol", "single-source", "--source", "plain", "--partition", "dirichlet:0.3", "--clients", 4]
    arguments = [a for a in FEDSB if a not in ("--target", "outline")]
    unseen(*arguments, *options, "--rounds", 1, "--out", tmp_path / "r", "-q")
    record = json.loads((tmp_path / "r/records.jsonl").read_text())
    assert set(record["target"]) == {"textured", "inverted", "outline"} and len(record["source"]) == 4


BAD = {
    "method": (["--method", "fedbs"], "did you mean 'fedsb'"),
    "data": (["--data", "stiled-digits"], "did you mean 'styled-digits'"),
    "target": (["--target", "outlin"], "did you mean 'outline'"),
    "range": (["--set", "smoothing=2"], "smoothing is 2"),
    "type": (["--set", "smoothing=abc"], "expected a number"),
    "field": (["--set", "smoothin=0.1"], "did you mean 'smoothing'"),
    "no value": (["--set", "smoothing"], "expected FIELD=VALUE"),
    "rounds": (["--rounds", "-1"], "rounds is -1"),
    "preset": (["--preset", "papre"], "did you mean 'paper'"),
    "network": (["--network", "resnet19"], "did you mean 'resnet18'"),
    "protocol": (["--protocol", "single-sauce"], "did you mean 'single-source'"),
    "partition": (["--partition", "dirichlet"], "dirichlet"),
    "device": (["--device", "tpu"], "device is 'tpu'"),
    "file method": (["--method", "nowhere.py:Mine"], "no file"),
    "segmentation": (["--data", "phantom-sites", "--target", "west", "--network", "unet"], "does classification"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_has_one_message_exit_code_2_and_writes_nothing(tmp_path: Path, case: str) -> None:
    options, says = BAD[case]
    arguments = [*FEDSB, "--rounds", "2", "--out", tmp_path / "run"]
    for flag, value in zip(options[::2], options[1::2], strict=True):
        arguments += [flag, value]
    text = unseen(*arguments, expect=2)
    assert says in " ".join(text.split()), text
    assert not (tmp_path / "run").exists()


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('method = "fedsb"\nrounds = "ten"\ndatta = 3\n[set]\nlr = -1\nbugdet = 4\n')
    text = " ".join(unseen("run", tmp_path / "x.toml", expect=2).split())
    for says in ("5 problems", "rounds is 'ten'", "did you mean 'data'", "lr is -1", "did you mean 'budget'"):
        assert says in text.replace("4 problems", "5 problems"), says


@pytest.mark.parametrize("content", [b"\x00\xff", b"method = ", b"[[["])
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "y.toml").write_bytes(content)
    assert "is not a TOML file" in unseen("run", tmp_path / "y.toml", expect=2)
    assert "no file" in unseen("run", tmp_path / "z.toml", expect=2)


def test_resume_and_occupied_folders(tmp_path: Path) -> None:
    run = [*FEDSB, "--out", tmp_path / "run", "-q"]
    unseen(*run, "--rounds", 2)
    assert "add --resume" in unseen(*run, "--rounds", 2, expect=2)
    unseen(*run, "--rounds", 3, "--resume")
    unseen(*run, "--rounds", 3, "--resume")
    assert "seed was 0 and is 5" in unseen(*run, "--rounds", 3, "--seed", 5, "--resume", expect=2)
    unseen(*FEDSB, "--out", tmp_path / "whole", "--rounds", 3, "-q")
    for name in ("records.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_bench_report_and_a_cell_that_fails(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(
        'data = "styled-digits"\ntargets = ["plain", "outline"]\nseeds = [0, 1]\nrounds = 1\nnetwork = "small_cnn:width=2"\n'
        f'methods = ["fedavg", {{ method = "fedsb", label = "FedSB, budget 2" }}, "{own.__file__}:Careless"]\n'
        "[set.fedavg]\nsteps = 2\nbatch = 16\n[set.fedsb]\nbudget = 2\nbatch = 16\n"
    )
    text = unseen("bench", file, "--out", tmp_path / "b", "--seeds", "0", "--workers", 1, expect=1)
    assert "| FedSB, budget 2 |" in text and "| FedAvg |" in text and "worst domain" in text
    assert text.count("by reference to a network") == 1 and "failed: 2 of 6 runs, first" in text, "one reason is told once"
    again = unseen("bench", file, "--out", tmp_path / "b", "--workers", 1, expect=1)
    assert again.count("finished already") == 4 and "±" in again
    for form, mark in (
        ("md", "best round by source"),
        ("tex", r"\toprule"),
        ("html", "<table>"),
        ("csv-table", "method,target,rule"),
        ("csv", "run,name,method,data"),
    ):
        assert mark in unseen("report", tmp_path / "b", "--format", form)
    unseen("report", tmp_path / "b", "--format", "csv-table", "--out", tmp_path / "t.csv")
    assert "oracle" in (tmp_path / "t.csv").read_text()


def test_report_on_nothing(tmp_path: Path) -> None:
    assert "holds no runs" in unseen("report", tmp_path, expect=2)
    assert "no folder" in unseen("report", tmp_path / "nowhere", expect=2)
    (tmp_path / "b.toml").write_text('methods = "fedavg"\nseeds = ["a"]\n')
    text = unseen("bench", tmp_path / "b.toml", "--out", tmp_path / "o", expect=2)
    assert "expected a list" in text and "expected whole numbers" in text
    (tmp_path / "c.toml").write_text('targets = ["plain"]\nmethods = ["fedavg", "fedavg"]\n')
    assert "different labels" in unseen("bench", tmp_path / "c.toml", "--out", tmp_path / "o", expect=2)


def test_an_unfinished_run_is_named_and_left_out(tmp_path: Path) -> None:
    unseen(*FEDSB, "--rounds", 2, "--out", tmp_path / "a", "-q")
    unseen(*FEDSB, "--rounds", 2, "--seed", 1, "--out", tmp_path / "b", "-q")
    lines = (tmp_path / "b/records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b/records.jsonl").write_text(lines[0])
    text = unseen("report", tmp_path, "--rule", "last")
    assert "left out: FedSB, fold outline (b) has 1 of 2 rounds" in text and "±" not in text


def test_lists_for_people_and_programs() -> None:
    methods = json.loads(unseen("methods", "--json"))
    assert {"name", "paper", "tasks", "presets", "fields"} <= methods[0].keys()
    assert {"fedavg", "fedprox", "fedsb"} <= {m["name"] for m in methods}
    data = json.loads(unseen("data", "--json"))
    digits = next(d for d in data if d["name"] == "styled-digits")
    assert digits["domains"][-1] == "outline" and len(digits["classes"]) == 10 and digits["task"] == "classification"
    assert "FedSB" in unseen("methods", "fedsb") and "leaves the client" in unseen("methods", "fedsb")
    assert "did you mean" in unseen("methods", "fedbs", expect=2)
    assert "styled-digits" in unseen("data") and "fedprox" in unseen("methods")


@pytest.mark.parametrize("command", ["run", "bench", "report", "methods", "networks", "data"])
def test_help_shows_an_example(command: str) -> None:
    assert "Example: unseen" in " ".join(unseen(command, "--help").split())


LONG = [*FEDSB, "--rounds", "40"]  # a few seconds, in which a signal comes in time on a busy machine too


def hears_ctrl_c() -> None:
    """A process that a shell starts in the background ignores the signal, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "unseen", *LONG, "--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=hears_ctrl_c)


def wait_for_round(process: subprocess.Popen[bytes], out: Path, rounds: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "records.jsonl").exists() and (out / "records.jsonl").read_bytes().count(b"\n") >= rounds:
            return
        time.sleep(0.01)


def test_kill_nine_and_ctrl_c_then_resume_give_equal_bits(tmp_path: Path) -> None:
    unseen(*LONG, "--out", tmp_path / "whole", "-q")
    killed = start(tmp_path / "run")
    wait_for_round(killed, tmp_path / "run", 2)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    done = (tmp_path / "run/records.jsonl").read_bytes().count(b"\n")
    stopped = start(tmp_path / "run", "--resume")
    wait_for_round(stopped, tmp_path / "run", done + 3)  # it trains, and is not still starting
    os.kill(stopped.pid, signal.SIGINT)
    text, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == 130 and b"--resume" in text and b"Traceback" not in text
    unseen(*LONG, "--out", tmp_path / "run", "--resume", "-q")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(bool((one[k] == two[k]).all()) for k in one)
    assert (tmp_path / "whole/records.jsonl").read_bytes() == (tmp_path / "run/records.jsonl").read_bytes()
