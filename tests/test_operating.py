"""What IT starts from: the service files, the container recipes, and every command of the two guides."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from unseen.cli import app

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SERVICES = sorted(DEPLOY.glob("*.service"))
RECIPES = sorted(DEPLOY.glob("Containerfile.*"))
HARDENED = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "CapabilityBoundingSet=",
    "User=unseen",
    "UMask=0077",
    "Restart=always",
    "RestartPreventExitStatus=2",
)


@functools.cache
def commands_there_are() -> Any:
    return get_command(app)


def refuse_unknown(words: list[str]) -> None:
    """A command of `unseen` that exists, with options that it has."""
    command, at = commands_there_are(), 0
    while hasattr(command, "commands"):
        command = command.commands[words[at]]
        at += 1
    known = {name for option in command.params for name in option.opts}
    for word in words[at:]:
        assert not word.startswith("--") or word.partition("=")[0] in known, (words, word)


def commands(text: str) -> list[list[str]]:
    """Every line of a block that calls `unseen`, whatever stands before it."""
    found, inside = [], False
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            inside = not inside
        called = re.search(r"(?:^|[ /])unseen ((?:serve|join|run|federation|study|leakage|ledger|report|export|watch)\b.*)", line)
        if inside and called:
            found.append(shlex.split(called.group(1)))
    return found


@pytest.mark.parametrize(("guide", "least"), [("between-sites.md", 25), ("operating.md", 4)])
def test_every_command_of_the_guides_exists(guide: str, least: int) -> None:
    found = commands((ROOT / "docs" / guide).read_text())
    assert len(found) >= least
    for words in found:
        refuse_unknown(words)


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.name)
def test_a_service_is_hardened_and_its_command_exists(file: Path) -> None:
    text = file.read_text()
    assert [line for line in HARDENED if line not in text.splitlines()] == []
    (start,) = re.findall(r"^ExecStart=/opt/unseen/bin/unseen (.*)$", text, re.MULTILINE)
    refuse_unknown(start.split())
    used = {name.strip("{}") for name in re.findall(r"\$(\{?[A-Z]+\}?)", start)}
    told = (DEPLOY / "site-north.env").read_text()
    assert used <= {line.partition("=")[0] for line in told.splitlines() if not line.startswith("#")}


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.name)
def test_systemd_understands_it(file: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    here = tmp_path / file.name
    here.write_text(file.read_text().replace("/opt/unseen/bin/unseen", "/bin/true"))
    looked = subprocess.run([analyze, "verify", "--man=no", str(here)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in looked.stderr.splitlines() if file.stem.strip("@") in line]
    assert not complaints, looked.stderr


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.name)
def test_a_container_is_nobodys_root_and_takes_what_there_is(file: Path) -> None:
    text = file.read_text()
    steps = [line.split(" ", 1) for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    kinds = [kind for kind, _ in steps]
    assert "USER" in kinds and kinds.index("USER") < kinds.index("ENTRYPOINT") and "ADD" not in kinds
    assert dict(steps)["USER"] == "unseen" and "VOLUME" in kinds
    for kind, what in steps:
        if kind == "COPY":
            assert all((ROOT / name).exists() for name in what.split()[:-1])
    (extras,) = re.findall(r'"/build\[([a-z,]+)\]"', text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*extras.split(",")} <= project["optional-dependencies"].keys()
    refuse_unknown([word.strip('", ') for word in dict(steps)["CMD"].strip("[]").split(",")])
