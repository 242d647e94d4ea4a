"""What the README and the guides show is what happens: their Python runs, their links lead somewhere, their tables are true."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import unseen
from unseen.bench.plan import read_benchmark
from unseen.cli import app
from unseen.data.domain import DomainDataset
from unseen.data.sets.registry import DATASETS
from unseen.deploy.card import ModelCard
from unseen.experiment_options import options
from unseen.federation.site.policy import Policy, Privacy, read_policy
from unseen.federation.study.study import Leaving, Participant, Study
from unseen.methods import CLASSES, METHODS
from unseen.parts import PARTS, parts_of
from unseen.payload import bases
from unseen.runs.record import Record, Timing
from unseen.settings import settings_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])


def blocks(file: Path, language: str) -> list[str]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", file.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind == language]


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


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda path: path.name)
def test_a_table_or_a_list_has_a_line_of_its_own_before_it(file: Path) -> None:
    """Behind a block of code, or a list behind a sentence, the site would show it as plain text."""
    inside, before, clinging = False, "", list[str]()
    for line in file.read_text().splitlines():
        if line.startswith("- ") and not inside and not re.match(r"$|- |#|\s", before):
            clinging.append(line)
        if line.startswith("|") and before.startswith("```"):
            clinging.append(line)
        inside ^= line.startswith("```")
        before = line
    assert not clinging


def test_the_list_of_methods_names_every_method_and_its_file() -> None:
    text, nav = (ROOT / "docs/methods/index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for name, cls in METHODS.items():
        file = Path(sys.modules[cls.__module__].__file__ or "").relative_to(ROOT)
        assert f"| [{cls.title}]({name}.md) | {cls.paper} | [{file.name}](../../{file}) |" in text, "run: make format"
        assert f"- methods/{name}.md\n" in nav, f"mkdocs.yml has no line for docs/methods/{name}.md"


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


def test_every_command_in_the_documents_exists() -> None:
    """Each command with the options that it is shown with."""
    shown = [line for file in DOCUMENTS for block in blocks(file, "") for line in re.findall(r"^unseen .+", block, flags=re.MULTILINE)]
    whole: Any = typer.main.get_command(app)
    for words in {tuple(shlex.split(line, comments=True)[1:]) for line in shown}:
        command = whole
        for word in words:
            if word not in getattr(command, "commands", {}):
                break
            command = command.commands[word]
        assert words[0].startswith("-") or not hasattr(command, "commands") or command.invoke_without_command, f"no command: {words}"
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        wrong = {word for word in words if re.match(r"--?[a-z]", word)} - known - {"--help", "--install-completion", "--show-completion"}
        assert not wrong, f"unseen {' '.join(words)}: {wrong}"
    assert len(shown) > 80


@pytest.mark.parametrize("file", [ROOT / "docs/formats/bench.md", ROOT / "docs/start-researcher.md"], ids=lambda file: file.stem)
def test_the_benchmark_files_shown_can_be_read(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(next(iter(blocks(ROOT / "docs/start-researcher.md", "python"))))
    texts = blocks(file, "toml")
    cells = [read_benchmark(tomllib.loads(text)) for text in texts]
    assert len(texts) == 2 and len(cells[0]) == (48 if file.stem == "bench" else 12) and len(cells[1]) in (1, 18)


def test_the_pages_of_formats_name_every_field(tiny: DomainDataset, tmp_path: Path) -> None:
    unseen.run(unseen.FedAvg(lr=0.02, batch=8), tiny, "c", rounds=1, out=tmp_path / "run", device="cpu")
    about = json.loads((tmp_path / "run/run.json").read_text())
    fields = {
        "run": [*about, *about["model"], *Record.__annotations__, *Timing.__annotations__, "train", "validation", "classes", "domain"],
        "card": [field.name for field in dataclasses.fields(ModelCard) if field.name != "signer"],
        "study": ["version", *(field.name for kind in (Study, Participant, Leaving) for field in dataclasses.fields(kind))],
        "bench": [setting.name for setting in options()],
    }
    for page, names in fields.items():
        text = (ROOT / f"docs/formats/{page}.md").read_text()
        assert not [name for name in names if f"`{name}`" not in text], page
    assert {file.name for file in (tmp_path / "run").iterdir() if not file.name.startswith(".")} <= set(
        re.findall(r"`([\w.]+)/?`", (ROOT / "docs/formats/run.md").read_text())
    )


def test_the_policy_shown_can_be_read(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs/formats/policy.md", "toml")
    (tmp_path / "policy.toml").write_text(text)
    assert read_policy(tmp_path / "policy.toml").minimum_clients == 3


def test_experiments_name_commands_that_there_are() -> None:
    for file in sorted((ROOT / "experiments").glob("*.toml")):
        for name in re.findall(r"unseen data prepare (\S+) --from", file.read_text()):
            assert name in DATASETS, file.name
        assert not re.search(r"unseen data (?!prepare)", file.read_text()), file.name


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
