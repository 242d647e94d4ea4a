"""The tutorial notebook: it runs from top to bottom, and its stored outputs are of the code that it has."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = json.loads((ROOT / "docs/tutorial.ipynb").read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def run(cells: list[str], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """All of them in one namespace, with fewer rounds; what they print, and what they leave."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    told, names = io.StringIO(), {"__name__": "tutorial"}
    for number, source in enumerate(cells):
        plain = re.sub(r"rounds=\d+", "rounds=2", re.sub(r"^%.*$", "", source, flags=re.MULTILINE))
        with contextlib.redirect_stdout(told):
            exec(compile(plain, f"{where} block {number}", "exec", dont_inherit=True), names)
    return told.getvalue(), names


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, names = run(["".join(cell["source"]) for cell in CODE], "tutorial.ipynb", tmp_path, monkeypatch)
    assert "has the highest accuracy on outline" in told and "is chosen" in told and "looks like" in told
    assert names["answer"].passed is not None and names["page"].stat().st_size > 10_000
    assert len(names["frame"]) == 2 * 2 * 2 and len(names["guesses"]) == 10


def test_its_outputs_are_of_its_code_and_small() -> None:
    spec = importlib.util.spec_from_file_location("making_tutorial", ROOT / "docs/making/tutorial.py")
    assert spec is not None and spec.loader is not None
    making = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(making)
    assert NOTEBOOK["metadata"]["outputs_of"] == making.hash_of_code(NOTEBOOK), "run: python docs/making/tutorial.py"
    outputs = [output for cell in CODE for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"execute_result", "display_data", "stream"}
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 2 and kinds.count("text/html") >= 7
    text = json.dumps(NOTEBOOK)
    assert len(text) < 200_000 and not re.search(r"/tmp/|/home/|/work/|Traceback", text)
    assert any("passed" in "".join(output.get("text", "")) for output in outputs)


def test_the_page_on_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), flags=re.DOTALL)
    told, names = run(blocks, "python.md", tmp_path, monkeypatch)
    assert "| FedSB |" in told and len(names["guesses"]) == 16
