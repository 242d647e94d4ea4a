"""Every example of docs/extend.md runs: its Python as it stands, its command in a folder that holds the page's file."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unseen.cli import app

PAGE = Path(__file__).parents[1] / "docs/extend.md"
TEXT = PAGE.read_text()
FILE = "".join(re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL))
SECTIONS = [section for section in TEXT.split("\n## ")[1:] if "```" in section]


def title(section: str) -> str:
    return section.splitlines()[0]


def test_the_page_has_every_kind_in_a_short_example() -> None:
    assert len(SECTIONS) == 7 and "[add a method](add-a-method.md)" in TEXT  # the eighth has a page of its own
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        assert len([line for line in block.splitlines() if line.strip()]) <= 15, block


@pytest.mark.parametrize("section", SECTIONS, ids=title)
def test_the_python_runs(section: str) -> None:
    names: dict[str, Any] = {"__name__": "extend"}
    (run,) = re.findall(r"```python run\n(.*?)```", section, flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(FILE + run, str(PAGE), "exec", dont_inherit=True), names)
    assert not names.get("result") or "net.fc.weight" in names["result"].state or "Sure and right" in str(names["result"].table())


@pytest.mark.parametrize("section", SECTIONS, ids=title)
def test_the_command_runs(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    (command,) = re.findall(r"```\n(unseen run .*?)\n```", section, flags=re.DOTALL)
    told = CliRunner().invoke(app, [*command.split()[1:], "--out", "run", "--workers", "1"])
    assert told.exit_code == 0, told.output
    assert f"{tmp_path.resolve()}/mine.py:" in json.dumps(json.loads((tmp_path / "run/run.json").read_text())["experiment"])
