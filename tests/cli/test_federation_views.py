"""What a person sees of a federation at work: the live views at 80 columns, lines in a log, and `unseen federation status`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from conftest import tiny_classification
from federation_in_memory import FederationInMemory
from unseen import Experiment
from unseen.cli import app
from unseen.cli.between import steps_of_sums
from unseen.cli.live import LiveView
from unseen.cli.server_view import ServerView
from unseen.cli.site_view import SiteView
from unseen.federation.activity import Event
from unseen.federation.kits import init
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import begin, propose
from unseen.federation.server.standing import StudyFile
from unseen.federation.site.by_hand import at_work
from unseen.methods import METHODS
from unseen.parts import PARTS
from unseen.runs.watch import Silent, Within
from unseen.settings import build
from unseen.training import train

STUDY = "15db82c1" + "0" * 56
EVIL = "\x1b]0;owned\x07[red]x[/red]\nunseen: all is well"


def terminal(height: int = 24) -> Console:
    return Console(record=True, file=StringIO(), force_terminal=True, width=80, height=height, color_system=None)


def shown(view: LiveView, console: Console) -> list[str]:
    """The view as it would stand on the screen."""
    beside = terminal(console.height)  # the view itself is drawn by a thread of its own
    beside.print(view.render())
    return beside.export_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> tuple[SiteView, Console]:
    console = terminal()
    return SiteView(console, "north", "3e6c", tmp_path), console


def test_a_site_says_what_is_asked_what_left_and_what_comes_next(site: tuple[SiteView, Console], tmp_path: Path) -> None:
    view, console = site
    assert "not connected yet" in "\n".join(shown(view, console))
    with view:
        view(Event("connected", "to localhost:8000"))
        view(Event("asked", study=STUDY, round=3, rounds=20, task="train", bytes=45_000_000))
        lines = shown(view, console)
        assert lines[0].startswith("north  federation 3e6c, here for ") and lines[1].startswith("connected: to localhost:8000, for ")
        assert re.match(r"15db82c1  3 of 20  train, for 0\.\d s +0 bytes in 0 answers", lines[4]), lines[4]
        told = Event("answered", "model", "", STUDY, 3, 20, "train", 45_000_000, 12.3, "the score after round 3")
        view(told)
        lines = shown(view, console)
        assert "next: the score after round 3" in lines[4] and "45 MB in 1 answers" in lines[4]
        assert "15db, round 3, train: answered, 45 MB in 12.3 s: model" in [line[9:] for line in lines]
        view(Event("refused", "kinds: 'spectrum' may not leave", study=STUDY))
        assert "refused: kinds: 'spectrum' may not leave" in shown(view, console)[4]
        view(Event("ended", study=STUDY))
        assert "ended" in shown(view, console)[4]
    assert "round 3 of 20, train: answered, 45 MB in 12.3 s: model" in (tmp_path / "site.log").read_text()


def test_a_study_that_waits_comes_with_the_commands_that_approve_it(site: tuple[SiteView, Console], tmp_path: Path) -> None:
    view, console = site
    with view:
        view(Event("waits", "studies: nobody here has approved study 15db", study=STUDY))
        text = "\n".join(shown(view, console))
        assert "unseen study approve 15db82c1 --site" in text and "waits for approval" in text
        view(Event("approved", "by a person here", study=STUDY))
        text = "\n".join(shown(view, console))
        assert "unseen study approve" not in text and "approved, not begun" in text
    log = Console(file=StringIO(), width=80)
    with SiteView(log, "north", "3e6c", tmp_path) as plain:
        for _ in range(2):
            plain(Event("waits", "nobody has approved it", study=STUDY))
    written = log.file.getvalue()  # type: ignore[attr-defined]
    assert written.count("waits for approval") == 2 and written.count("unseen study approve 15db82c1") == 1


def test_the_view_fits_the_screen_and_leaves_nothing_there(site: tuple[SiteView, Console]) -> None:
    view, console = site
    with view:
        for number in range(100):
            view(Event("answered", "model " * 50, "", f"{number % 9:064x}", number, 100, "train", 9, 1.0, "train"))
        lines = shown(view, console)
        assert len(lines) <= 23 and all(len(line) <= 80 for line in lines) and any(line.startswith("Ctrl-C leaves") for line in lines)
        small = terminal(height=12)
        view._console = small
        assert len(shown(view, small)) <= 13
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert written.endswith("\x1b[?25h\x1b[2K") or written.rstrip("\n").endswith("\x1b[2K")  # the cursor is back, the lines are erased


def test_nothing_from_the_other_side_moves_the_cursor_or_colours_the_screen(tmp_path: Path) -> None:
    for lines_only in (False, True):
        out = StringIO()
        console = Console(file=out, force_terminal=not lines_only, width=80, height=30, color_system=None)
        with SiteView(console, "north", "3e6c", tmp_path) as view:
            for kind in ("note", "lost", "asked", "answered", "refused", "failed", "waits"):
                view(Event(kind, EVIL, EVIL, STUDY, 1, 2, EVIL, 1, 1.0, EVIL))  # type: ignore[arg-type]
            console.print(view.render()) if not lines_only else None
        assert "\x1b]0" not in out.getvalue() and "\x07" not in out.getvalue() and "[red]x[/red]" in out.getvalue()
        assert not any(line.startswith("unseen: all is well") for line in out.getvalue().splitlines())
    assert "\x1b" not in (tmp_path / "site.log").read_text()
    assert not any(line.startswith("unseen: ") for line in (tmp_path / "site.log").read_text().splitlines())


TINY = tiny_classification((24, 20, 16))
FEDAVG = Experiment(build(METHODS["fedavg"], {"batch": 8, "optimizer": "sgd"}, PARTS), TINY.name, "c", rounds=1)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> FederationInMemory:
    """A federation that has run a study, and has another that was only proposed."""
    folder = tmp_path_factory.mktemp("federation")
    federation = FederationInMemory(folder / "sites", TINY, "c")
    study = propose(FEDAVG, federation.server, federation.carrier, Terms(), lambda text: None)
    with StudyFile(federation.server.path, study, folder / "run") as standing:
        run = begin(FEDAVG, study, federation.server, federation.carrier, Terms(), lambda text: None, standing)
        train(FEDAVG, folder / "run", watch=Silent(), elsewhere=run)
        standing(Event("refused", EVIL, "a", study.digest, 1))
        standing(Event("ended", study=study.digest))
    StudyFile(federation.server.path, propose(FEDAVG, federation.server, federation.carrier, Terms(), lambda text: None))
    return federation


def test_the_server_says_who_is_there_and_what_each_study_waits_for(ran: FederationInMemory) -> None:
    console = terminal()
    with ServerView(console, ran.server, "127.0.0.1:8000") as view:
        view(Event("connected", site="a"))
        lines = shown(view, console)
        assert lines[0].startswith(f"server of federation {ran.server.id}  127.0.0.1:8000, up ")
        assert re.match(r"a +connected, for \d\.\d s", lines[3]) and re.match(r"b +not connected, for ", lines[4])
        text = "\n".join(lines)
        assert re.search(r"fedavg  1 of 1 .*nothing: it has ended", text) and "the sites' approval, then" in text
        view(Event("lost", site="a"))
        assert re.match(r"a +not connected", shown(view, console)[3])
        assert all(len(line) <= 80 for line in lines)


@pytest.fixture
def unseen() -> Callable[..., tuple[int, str]]:
    def run(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return run


def test_status_at_the_server(ran: FederationInMemory, unseen: Any) -> None:
    code, said = unseen("federation", "status", ran.server.path)
    assert code == 0 and "`unseen serve` is not running" in said and "nothing: it has ended" in said and "\x1b" not in said
    assert re.search(r"last refusals\nwhen +why *\n.* study [0-9a-f]{8}, a: \?\]0;owned", said)
    code, said = unseen("federation", "status", ran.server.path, "--json")
    told = json.loads(said)
    assert code == 0 and [one["name"] for one in told["members"]] == ["a", "b", "c"] and told["studies"][0]["state"] == "ended"
    assert told["members"][0]["receipts"] > 0 and told["members"][0]["keys"] == "trial"
    secrets = [file.read_bytes() for file in (ran.server.path / "secrets").iterdir()]
    assert secrets and not any(secret.hex() in said or secret.decode(errors="replace") in said for secret in secrets)


def test_status_at_a_site(ran: FederationInMemory, unseen: Any) -> None:
    home = ran.folder / "a"
    code, said = unseen("federation", "status", home)
    assert code == 0 and re.search(r"fedavg +1 of 1 .* by rule +ended", said) and "`unseen join` is not running" in said
    assert re.search(r"ledger: \d+ lines, as this site wrote them; head [0-9a-f]{16}", said) and "2 answers without noise" in said
    with at_work(home):
        (home / "flower").mkdir(exist_ok=True)
        (home / "flower/connected").touch()
        code, said = unseen("federation", "status", home, "--json")
    told = json.loads(said)
    assert told["at_work"] and told["connected_since"] > 0 and told["studies"][0]["left"] > 0
    keys = [(home / f"{name}.key").read_bytes() for name in ("signing", "box", "node")]
    assert not any(key.hex() in said or key.decode(errors="replace") in said for key in keys)
    ledger = home / "ledger.jsonl"
    before = ledger.read_bytes()
    ledger.write_bytes(before.replace(b'"round": 1', b'"round": 2').replace(b'"round":1', b'"round":2'))
    code, said = unseen("federation", "status", home)
    ledger.write_bytes(before)
    assert code == 0 and "was changed" in said and "What to do when" in said


def test_status_of_what_is_half_there(tmp_path: Path, unseen: Any) -> None:
    init(tmp_path / "new", "localhost")
    code, said = unseen("federation", "status", tmp_path / "new")
    assert code == 0 and "no member yet" in said and "no study yet" in said
    for folder, why in ((tmp_path, "neither a federation's folder nor a site's"), (tmp_path / "none", "neither")):
        code, said = unseen("federation", "status", folder)
        assert code == 2 and said.count("unseen: ") == 1 and why in " ".join(said.split())
    (tmp_path / "new/federation.json").write_text("{")
    code, said = unseen("federation", "status", tmp_path / "new")
    assert code == 2 and said.count("unseen: ") == 1 and "cannot be read" in said
    (tmp_path / "kit.toml").write_text("x = [")
    code, said = unseen("federation", "status", tmp_path)
    assert code == 2 and said.count("unseen: ") == 1


def test_a_run_shows_the_steps_of_a_sum() -> None:
    told: list[Within] = []
    take = steps_of_sums(told.append)
    for step in (1, 2):
        for kind in ("asked", "answered"):
            for site in ("a", "b"):
                take(Event(kind, site=site, study=STUDY, round=3, task=f"train, step {step}", step=step))  # type: ignore[arg-type]
    take(Event("asked", site="a", study=STUDY, round=3, task="score"))  # a plain question: the engine tells of it
    one = [Within(3, "train, step 1", *numbers) for numbers in ((0, 1), (0, 2), (1, 2), (2, 2))]
    assert told == [*one, *(replace(where, task="train, step 2") for where in one)]
