"""Tab completion answers with what there is, fast; every command shows an example."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from unseen.cli import app
from unseen.cli.export import _KINDS
from unseen.cli.figures import NAMES
from unseen.cli.options import DATA_NAMES, NETWORK_NAMES, RECIPE_NAMES, TRACKER_NAMES
from unseen.cli.report import _RULES
from unseen.data import DATASETS
from unseen.data.augment import RECIPES
from unseen.deploy.exporting import KINDS
from unseen.experiment_options import options
from unseen.figures import FIGURES
from unseen.networks import NETWORKS
from unseen.report.trackers import TRACKERS
from unseen.runs.selection import RULES


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
    assert tuple(DATASETS) == DATA_NAMES and tuple(NETWORKS) == NETWORK_NAMES and tuple(RECIPES) == RECIPE_NAMES
    assert tuple(FIGURES) == NAMES and tuple(KINDS) == _KINDS and (*RULES, "all") == _RULES and tuple(TRACKERS) == TRACKER_NAMES


def test_run_has_an_option_for_every_setting_of_an_experiment_and_says_what_it_means() -> None:
    shown = {option.name: option.help for option in typer.main.get_command(app).commands["run"].params}  # type: ignore[attr-defined]
    for setting in options():
        assert shown[setting.name].startswith(setting.meaning)


def test_help_does_not_wait_for_torch() -> None:
    look = "import sys; from unseen.cli import app; app(['run', '--help'], standalone_mode=False); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", look], check=True, capture_output=True)


def commands(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    below = getattr(found, "commands", {})
    yield from (one for name, command in below.items() for one in commands(command, (*path, name))) if below else [path]


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_help_shows_an_example(path: tuple[str, ...]) -> None:
    assert f"Example: unseen {' '.join(path)}" in " ".join(CliRunner().invoke(app, [*path, "--help"]).output.split())
