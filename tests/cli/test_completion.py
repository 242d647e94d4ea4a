"""Tab completion answers with what there is, fast; every command shows an example."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from unseen.cli import app
from unseen.cli.export import _KINDS
from unseen.cli.figures import NAMES
from unseen.cli.report import _RULES
from unseen.cli.run import _TRACKERS
from unseen.deploy.exporting import KINDS
from unseen.figures import FIGURES
from unseen.report.select import RULES
from unseen.report.trackers import TRACKERS


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("unseen fi", "figure"),
        ("unseen figure re", "reliability"),
        ("unseen export x --to on", "onnx"),
        ("unseen report x --format t", "tex"),
    ],
)
def test_a_press_of_tab(words: str, expected: str) -> None:
    environment = {**os.environ, "_UNSEEN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    start = "import sys; sys.argv[0] = 'unseen'; from unseen.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", start], env=environment, capture_output=True, text=True)
    assert expected in done.stdout.split(), done.stderr


def test_the_lists_are_complete() -> None:
    """They are written out, because importing what they name takes seconds."""
    assert tuple(FIGURES) == NAMES and tuple(KINDS) == _KINDS and (*RULES, "all") == _RULES and tuple(TRACKERS) == _TRACKERS


@pytest.mark.parametrize("command", ["report", "watch", "export", "predict", "evaluate", "figure"])
def test_help_shows_an_example(command: str) -> None:
    assert "Example: unseen" in " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
