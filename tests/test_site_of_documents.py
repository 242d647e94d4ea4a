"""What the hooks of the documents' site do: a notebook becomes a page, files outside docs/ become part of the site."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'unseen[docs]'")
ROOT = Path(__file__).parents[1]


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"making_{name}", ROOT / f"docs/making/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


site = program("site")


@pytest.mark.parametrize(
    ("link", "page", "inside"),
    [
        ("parts.md", "extend.md", "parts.md"),
        ("../evidence.md", "methods/fedgca.md", "../evidence.md"),
        ("tutorial.ipynb", "index.md", "tutorial.md"),
        ("../SECURITY.md", "security.md", "repository/SECURITY.md"),
        ("../../CHANGELOG.md", "methods/fedsb.md", "../repository/CHANGELOG.md"),
        ("../experiments/demo.toml", "results.md", "repository/experiments/demo.toml.md"),
        ("docs/evidence.md", "repository/README.md", "../evidence.md"),
        ("https://example.org/x.md", "index.md", "https://example.org/x.md"),
        ("nowhere.md", "index.md", "nowhere.md"),
        ("../../../etc/passwd", "index.md", "../../../etc/passwd"),
    ],
)
def test_a_link_leads_to_the_same_file_inside_the_site(link: str, page: str, inside: str) -> None:
    assert site.in_site(link, page) == inside


def cell(kind: str, source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": kind, "source": source.splitlines(keepends=True), "outputs": list(outputs)}


def test_a_notebook_is_shown_with_its_outputs() -> None:
    drawn = {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": "<Figure & axes>"}}
    framed = {"output_type": "execute_result", "data": {"text/html": ["<table>", "</table>"], "text/plain": "a frame"}}
    told = {"output_type": "stream", "name": "stdout", "text": ["\x1b[1mbold\x1b[0m\n"]}
    noise = {"output_type": "stream", "name": "stderr", "text": "a bar"}
    page = site.notebook_page(
        {"cells": [cell("markdown", "# Title"), cell("code", "f()", told, noise), cell("code", "g()", drawn, framed)]}
    )
    assert page.startswith("# Title\n\n```python\nf()\n```\n\n```text\nbold\n```\n\n```python\ng()\n```")
    assert '<img alt="&lt;Figure &amp; axes&gt;" src="data:image/png;base64,aGk=">' in page
    assert '<div class="output"><table></table></div>' in page and "a bar" not in page and "a frame" not in page


def test_text_cannot_end_its_own_box() -> None:
    assert site.fenced("a\n```\nb\n", "text") == "````text\na\n```\nb\n````"
