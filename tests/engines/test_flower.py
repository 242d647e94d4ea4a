"""A real federation on this machine: SuperLink, SuperNodes and TLS; the bits of the in-process engine, kills included."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unseen.cli import app
from unseen.federation.ledger import read_ledger

pytest.importorskip("flwr")

DOMAINS = ("plain", "textured", "inverted", "outline")
TARGET = "outline"
EVERYTHING = 'kinds = ["model", "spectrum", "score", "statistic", "count"]\nfields_that_grow = true\n'
COMMON = ["--data", "styled-digits", "--target", TARGET, "--network", "small_cnn:width=2", "--device", "cpu"]
RUNS = {
    "fedsb": ["--set", "budget=2", "--set", "batch=16"],
    "elcfs": ["--set", "batch=32"],
    "feddag": ["--set", "batch=32", "--set", "width=4", "--set", "warmup=1"],
}
PATIENCE = 150.0  # seconds, for a machine that has other things to do


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "unseen", *map(str, arguments)]


def unseen(*arguments: object) -> None:
    """A command that needs no process of its own."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output


def between_sites(*arguments: object) -> None:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


class Federation:
    """The processes of a federation, each with its log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.path = folder / "federation"
        unseen("federation", "init", self.path, "--server", "localhost", "--clients", ",".join(DOMAINS), "--port", port)
        (folder / "policy.toml").write_text(EVERYTHING)

    def start(self, name: str, *arguments: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command(*arguments), stdout=log, stderr=log, cwd=self.folder)

    def serve(self) -> None:
        self.start("serve", "serve", "--dir", self.path, "--host", "127.0.0.1")

    def join(self, name: str) -> None:
        role = ["--evaluate-only"] if name == TARGET else ["--policy", "policy.toml"]
        own = ["--data", "styled-digits", "--domain", name, "--dir", f"site-{name}", "--device", "cpu"]
        self.start(name, "join", self.path / "kits" / f"{name}.kit", *own, *role)

    def until(self, name: str, text: str) -> None:
        """Wait until a log says something."""
        log, end = self.folder / f"{name}.log", time.monotonic() + PATIENCE
        while text not in log.read_text(errors="replace"):
            assert time.monotonic() < end, f"{name} did not say {text!r}: {log.read_text(errors='replace')[-2000:]}"
            time.sleep(0.1)

    def child(self, name: str, what: str) -> int:
        """The process that another one started, such as its SuperNode."""
        parent = self.processes[name].pid
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                stat, words = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent and what.encode() in words:
                return int(entry.name)
        raise AssertionError(f"{name} has no {what}")

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    made.serve()
    for name in DOMAINS:
        made.join(name)
    try:
        yield made
    finally:
        made.stop()


def same(here: Path, there: Path) -> bool:
    files = ("records.jsonl", "model.safetensors", "best.safetensors")
    return all((here / file).read_bytes() == (there / file).read_bytes() for file in files)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
def test_the_bits_of_the_in_process_engine_and_kills(federation: Federation, tmp_path: Path) -> None:
    between: list[Any] = ["--engine", "flower", "--federation", federation.path, "--deadline", PATIENCE, "--minimum-clients", 3]
    for name, own in RUNS.items():
        unseen("run", "--method", name, *COMMON, *own, "--rounds", 2, "--workers", 1, "-q", "--out", tmp_path / f"here-{name}")
        between_sites("run", "--method", name, *COMMON, *own, "--rounds", 2, "--out", tmp_path / f"there-{name}", *between)
        assert same(tmp_path / f"here-{name}", tmp_path / f"there-{name}"), name

    broken = ["run", "--method", "feddag", *COMMON, *RUNS["feddag"], "--rounds", 4]
    unseen(*broken, "--workers", 1, "-q", "--out", tmp_path / "whole")
    federation.start("driver", *broken, "--out", tmp_path / "broken", *between)
    federation.until("driver", "round 1/4")
    os.kill(federation.child("serve", "superlink"), signal.SIGKILL)  # in the middle of round 2
    os.kill(federation.child("textured", "federation.worker"), signal.SIGKILL)
    federation.until("driver", "round 2/4")
    os.kill(federation.processes["driver"].pid, signal.SIGKILL)
    os.kill(federation.child("plain", "supernode"), signal.SIGKILL)
    between_sites(*broken, "--out", tmp_path / "broken", *between, "--resume")
    assert same(tmp_path / "whole", tmp_path / "broken")

    for name in DOMAINS:
        unseen("ledger", "verify", tmp_path / f"site-{name}")
        secret = [p for p in (tmp_path / f"site-{name}").rglob("*") if p.is_file() and p.stat().st_mode & 0o077]
        assert not secret, f"others can read {secret}"
    left = {entry["task"] for entry in read_ledger(tmp_path / f"site-{TARGET}" / "ledger.jsonl")}
    assert left == {"hello", "scoring.score"}
