"""The API reference names what there is, and the documentation builds as a site without a broken link."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", re.findall(r"^::: (\S+)", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE))
def test_what_the_reference_names_exists_and_has_a_docstring(name: str) -> None:
    found = pkgutil.resolve_name(name)
    assert (found.__doc__ or "").strip()


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra docs is not installed")
def test_the_site_builds(tmp_path: Path) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Student" in (tmp_path / "site/api/index.html").read_text()
