"""The tutorial notebook runs from top to bottom."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs/tutorial.ipynb"


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    told = io.StringIO()
    names: dict[str, Any] = {"__name__": "tutorial"}
    for number, cell in enumerate(cells):
        assert not cell.get("outputs"), "outputs are not kept: they would grow old"
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(told):
                exec(compile("".join(cell["source"]), f"tutorial.ipynb cell {number}", "exec"), names)
    assert "| FedSB |" in told.getvalue() and "Style(" in told.getvalue()
    assert names["answer"].passed is not None and names["page"].stat().st_size > 10_000
