"""The processes of a federation on this machine, each with its log.

Sites and drivers, and between them a server with SuperLink, SuperNodes and TLS, or a folder of letters.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from unseen.cli import app

PATIENCE = 150.0  # seconds, for a machine that has other things to do


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "unseen", *map(str, arguments)]


def unseen(*arguments: object) -> str:
    """A command that needs no process of its own."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output + "".join(traceback.format_exception(result.exception))
    return str(result.output)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def same(here: Path, there: Path) -> bool:
    files = ("records.jsonl", "model.safetensors", "best.safetensors")
    return all((here / file).read_bytes() == (there / file).read_bytes() for file in files)


class Loopback:
    """A federation in a folder. Commands run in that folder. With `letters`, messages go through a folder, and nothing serves."""

    def __init__(self, folder: Path, clients: Sequence[str], letters: bool = False) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        self.carrier: list[object] = []
        if letters:
            (folder / "share").mkdir()
            self.carrier = ["--carrier", f"folder:{folder / 'share'}"]
        self.path, self.port = folder / "federation", free_port()
        unseen("federation", "init", self.path, "--server", "localhost", "--clients", ",".join(clients), "--port", self.port)

    def start(self, name: str, *arguments: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command(*arguments), stdout=log, stderr=log, cwd=self.folder)

    def serve(self) -> None:
        self.start("serve", "serve", "--dir", self.path, "--host", "127.0.0.1")

    def join(self, name: str, *arguments: object) -> None:
        self.start(name, "join", self.path / "kits" / f"{name}.kit", "--dir", f"site-{name}", "--device", "cpu", *self.carrier, *arguments)

    def run(self, *arguments: object) -> None:
        """Drive a run to its end."""
        done = subprocess.run(command("run", *arguments, *self.between), capture_output=True, text=True, timeout=2 * PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def between(self) -> list[object]:
        return ["--federation", self.path, *self.carrier]

    def said(self, name: str) -> str:
        """What a process said, as one line: a log has the width of no terminal."""
        return " ".join((self.folder / f"{name}.log").read_text(errors="replace").split())

    def until(self, name: str, text: str) -> None:
        """Wait until a log says something."""
        end = time.monotonic() + PATIENCE
        while text not in self.said(name):
            assert time.monotonic() < end, f"{name} did not say {text!r}: {self.said(name)[-2000:]}"
            time.sleep(0.1)

    def ended(self, name: str, patience: float = 2 * PATIENCE) -> int:
        return self.processes[name].wait(timeout=patience)

    def child(self, name: str, what: str) -> int:
        """The process that another one started, such as its SuperNode."""
        parent = self.processes[name].pid
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                stat, words = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
                if int(stat.rpartition(")")[2].split()[1]) == parent and what.encode() in words:
                    return int(entry.name)
        raise AssertionError(f"{name} has no {what}")

    def kill(self, name: str, what: str | None = None) -> None:
        """Kill a process, or one that it started, without a word."""
        os.kill(self.child(name, what) if what else self.processes[name].pid, signal.SIGKILL)

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
