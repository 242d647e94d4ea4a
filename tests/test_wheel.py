"""The wheel holds the package and nothing else, and runs without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "unseen/py.typed" in names and "unseen/methods/fedsb.py" in names
    assert {name.split("/")[0] for name in names} == {"unseen", next(n for n in names if "dist-info" in n).split("/")[0]}


def test_it_installs_and_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Its own environment with our dependencies visible from this one, and the checkout out of sight."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env/bin/python"
    packages = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], check=True, capture_output=True, text=True)
    inside = Path(packages.stdout.strip())
    zipfile.ZipFile(wheel).extractall(inside)
    dependencies = next(p for p in sys.path if p.endswith("site-packages"))
    (inside / "dependencies.pth").write_text(dependencies)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ask = [python, "-c", "import unseen; print(unseen.__file__)"]
    where = subprocess.run(ask, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert str(inside) in where.stdout
    command = [python, "-m", "unseen", "run", "--method", "fedavg", "--target", "plain", "--rounds", "1", "--network", "small_cnn:width=2"]
    command += ["--set", "steps=1", "--workers", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "| FedAvg |" in done.stdout
