"""`unseen advise` on a folder of images: the commands that it prints can be run as they are, and what it says of the target is so."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from unseen.cli import app

invoke = CliRunner().invoke
AROUND = ["--data", "folder:my sites", "--rounds", "1", "--network", "small_cnn:width=2", "--size", "16", "--device", "cpu"]
SHARES = {"north": (20, 4), "south": (5, 19), "east": (12, 12), "west": (8, 16)}  # images of each class


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four sites whose class shares differ, in the folder where commands are typed."""
    rng = np.random.default_rng(0)
    for site, counts in SHARES.items():
        for name, count in zip(("no", "yes"), counts, strict=True):
            folder = tmp_path / "my sites" / site / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 255, (16, 16, 3)).astype(np.uint8)).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "my sites"


def commands(told: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in told.splitlines() if line.startswith("  unseen ")]


@pytest.mark.parametrize("target", ["north", None])
def test_what_is_printed_can_be_run_as_it_is_and_goes_by_balanced_accuracy(sites: Path, target: str | None) -> None:
    told = invoke(app, ["advise", *AROUND, *(["--target", target] if target else []), "--seconds", "5"])
    assert told.exit_code == 0 and "go by balanced_accuracy" in " ".join(told.output.split()), told.output
    tuning, using = commands(told.stdout)
    assert [*tuning[:2], using[0]] == ["tune", "best", "run" if target else "bench"]
    for command in (tuning, using):
        done = invoke(app, [*command, "--workers", "1", "-q"])
        assert done.exit_code == 0, done.output
    values = tomllib.loads(Path(using[1]).read_text())
    assert values["metric"] == "balanced_accuracy" and values["network"] == "small_cnn:width=2" and values["size"] == 16
    runs = [json.loads(file.read_text()) for file in Path("runs").rglob("run.json")]
    assert len(runs) == (15 + 1 if target else 20 + 4)
    assert {(run["metric"], run["model"]["network"], *run["model"]["size"]) for run in runs} == {
        ("balanced_accuracy", "small_cnn:width=2", 16, 16)
    }


def test_of_two_sources_a_run_is_printed_that_goes_by_balanced_accuracy(sites: Path) -> None:
    for site in ("east", "west"):
        for file in (sites / site).rglob("*.png"):
            file.unlink()
        for folder in (*(sites / site).iterdir(), sites / site):
            folder.rmdir()
    told = invoke(app, ["advise", *AROUND, "--seconds", "0"])
    (command,) = commands(told.stdout)
    assert command[:3] == ["run", "--method", "best"] and "--target" in command, "one of the two plays the unseen one"
    assert invoke(app, [*command, "--workers", "1", "-q"]).exit_code == 0
    run = json.loads(Path("runs/best/run.json").read_text())
    assert (run["metric"], run["model"]["network"]) == ("balanced_accuracy", "small_cnn:width=2")


def test_the_target_takes_no_part_but_is_prepared_with_the_others(sites: Path) -> None:
    command = ["advise", *AROUND, "--target", "north", "--seconds", "0"]
    told = invoke(app, command)
    assert told.exit_code == 0 and "unseen: north; its images and labels take no part here" in told.output
    assert "nothing of it" not in told.output + invoke(app, ["advise", "--help"]).output
    (sites / "north" / "no" / "0.png").write_bytes(b"no image")
    refused = invoke(app, command)
    assert refused.exit_code == 2 and "north/no/0.png" in refused.output, "preparing reads every file, as it does for a run"


def test_without_seconds_the_reason_for_no_cost_is_that(sites: Path) -> None:
    told = invoke(app, ["advise", *AROUND, "--seconds", "0"])
    assert "not measured: --seconds 0" in told.output and "own way" not in told.output
