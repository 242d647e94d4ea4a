"""What the README and the guides show is what happens: their Python runs, their links lead somewhere, their tables are true."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unseen.cli import app
from unseen.federation.site.policy import Policy, Privacy, read_policy
from unseen.methods import CLASSES, METHODS
from unseen.parts import PARTS, parts_of
from unseen.payload import bases
from unseen.settings import settings_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])


def blocks(file: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", file.read_text(), flags=re.DOTALL)


def test_the_readmes_example_runs() -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert "| FedSB |" in out.getvalue() and "'direction': 'sent'" in out.getvalue()


def test_the_guides_method_is_complete(tmp_path: Path) -> None:
    source, with_groups = blocks(ROOT / "docs/add-a-method.md", "python")
    (tmp_path / "lossweighted.py").write_text(source)
    text = (ROOT / "docs/add-a-method.md").read_text()
    command = next(line for line in text.splitlines() if line.startswith("unseen run"))
    words = command.replace("lossweighted.py", str(tmp_path / "lossweighted.py")).split()[1:]
    result = CliRunner().invoke(app, [*words, "--rounds", "2", "--out", str(tmp_path / "run"), "--workers", "1"])
    assert result.exit_code == 0, result.output
    assert "| LossWeighted |" in result.output
    assert len([line for line in source.splitlines() if line.strip()]) <= 45
    mine = tmp_path / "mine.py"
    mine.write_text(with_groups)
    parts = "--set lr=0.01 --set aggregation=sha --set views=randconv --set server=adam --set average=ema --participation 0.5 --rounds 1"
    words = ["run", "--method", f"{mine}:Mine", "--target", "outline", *parts.split(), "--out", str(tmp_path / "mine"), "--workers", "1"]
    result = CliRunner().invoke(app, [*words, "--set", "steps=2"])
    assert result.exit_code == 0, result.output


def test_the_declarations_of_architecture_md_fit_together() -> None:
    (source,) = blocks(ROOT / "docs/architecture.md", "python")
    names: dict[str, Any] = {}
    exec(compile(f"from unseen import Payload, State, carries\n{source}", "architecture.md", "exec", dont_inherit=True), names)
    assert bases(names["Down"], names["Up"]) == {"model": "model", "student": "student", "change": "model", "losses": "candidates"}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda f: f.name)
def test_links_lead_somewhere(file: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", file.read_text()):
        assert link.startswith("http") or (file.parent / link).exists(), link


def test_the_readme_names_every_method_and_its_file() -> None:
    text = (ROOT / "README.md").read_text()
    for name, cls in METHODS.items():
        file = Path(sys.modules[cls.__module__].__file__ or "").relative_to(ROOT)
        assert f"| {cls.title} | {cls.paper} | [{file.name}]({file}) | [card](docs/methods/{name}.md) |" in text, "run: make format"


def test_a_method_is_four_files_and_a_line() -> None:
    """What add-a-method.md says: beside these nothing names a method of its own, but who compares or draws it."""
    for name, title in CLASSES.items():
        named = {
            f for folder in ("src", "tests") for f in (ROOT / folder).rglob("*.py") if re.search(rf"methods\.{name} import", f.read_text())
        }
        assert (ROOT / f"src/unseen/methods/{name}.py").exists() and (ROOT / f"docs/methods/{name}.md").exists()
        assert (ROOT / f"tests/papers/test_{name}.py").exists() and METHODS[name].__name__ == title
        assert not any(f.name in ("__init__.py", "tiny_settings.py", "test_every_method.py", "test_what_leaves.py") for f in named)


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_card_says_how_to_run_it_and_names_every_field(name: str) -> None:
    text, of_parts = (ROOT / f"docs/methods/{name}.md").read_text(), (ROOT / "docs/parts.md").read_text()
    assert f"`unseen run --method {name}`" in text
    parts = {field for field in parts_of(METHODS[name]) if f"| `{field}` |" in of_parts}
    assert not [s.name for s in settings_of(METHODS[name]) if s.name not in parts and not re.search(rf"`{s.name}[` ]", text)]


def test_the_page_of_parts_names_them_all() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", (ROOT / "docs/parts.md").read_text(), flags=re.MULTILINE))
    told = {name for row in rows.values() for name in re.findall(r"`(\w+)`", row)}
    assert told >= set(PARTS) and all(set(parts_of(cls)) <= set(rows) for cls in METHODS.values())


def test_every_command_in_the_readme_exists() -> None:
    for command in re.findall(r"^unseen (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_the_citation_names_five_papers() -> None:
    assert (ROOT / "CITATION.cff").read_text().count("- type: ") == 5


def test_the_guide_has_every_rule_of_a_policy_with_its_default(tmp_path: Path) -> None:
    guide = ROOT / "docs/between-sites.md"
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| `([^`]+)` \|", guide.read_text(), flags=re.MULTILINE))
    rules = {field.name: getattr(Policy(), field.name) for field in dataclasses.fields(Policy) if field.name != "privacy"}
    rules |= {f"privacy.{field.name}": getattr(Privacy(), field.name) for field in dataclasses.fields(Privacy)}
    told = {name: tomllib.loads(f"value = {text}")["value"] for name, text in rows.items()}
    assert told == {name: list(value) if isinstance(value, tuple) else value for name, value in rules.items()}
    strict = next(block for block in blocks(guide, "toml") if block.startswith("studies"))
    (tmp_path / "policy.toml").write_text(strict)
    assert read_policy(tmp_path / "policy.toml").secure_sums


def test_security_md_names_tests_that_are_there() -> None:
    text = (ROOT / "docs/security.md").read_text()
    named = set(re.findall(r"`(?:tests/)?((?:attacks|federation|engines|parts)/[a-z_/.]*)`", text))
    assert len(named) > 20 and not [path for path in named if not (ROOT / "tests" / path).exists()]
    assert {f"attacks/{file.name}" for file in (ROOT / "tests/attacks").glob("test_*.py")} <= named
