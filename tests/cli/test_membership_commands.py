"""`unseen federation`: the life of a member, and every mistake on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from own_keys import everything
from unseen.cli import app
from unseen.federation.kits import read_federation
from unseen.federation.requests import read_invitation, read_request


@pytest.fixture
def unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, line.split())
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, " ".join(result.output.split())

    return run


Run = Callable[[str], tuple[int, str]]


def test_the_whole_life_of_a_member(unseen: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = unseen("federation init c --server localhost")
    servers = read_invitation(Path("c/invitation.json")).fingerprint
    assert code == 0 and servers in said and "Kits" not in said
    code, said = unseen("federation request c/invitation.json --name north")
    fingerprint = read_request(Path("north.request")).fingerprint
    assert code == 0 and servers in said and fingerprint in said
    code, said = unseen("federation admit c north.request")
    assert code == 0 and fingerprint in said and "north is a member" in said
    code, said = unseen("federation list c")
    assert code == 0 and f"north {fingerprint}" in said and "own" in said and servers in said
    from unseen.federation.site import join

    homes: list[Any] = []
    monkeypatch.setattr(join, "join", lambda site, *_: homes.append((site.kit, site.folder)))
    assert unseen("join site-north --data x")[0] == 0 and homes == [("site-north", "site-north")]
    code, said = unseen("federation rotate site-north")
    fresh = read_request(Path("north.request")).fingerprint
    assert code == 0 and fresh in said and fresh != fingerprint
    code, said = unseen("federation admit c north.request")
    assert code == 0 and "has its new keys" in said
    code, said = unseen("federation rotate site-north --admitted")
    assert code == 0 and "Start `unseen join` again" in said
    code, said = unseen("federation list c")
    assert f"north {fresh}" in said and f"north {fingerprint}" in said and "rotated" in said
    assert unseen("federation renew c --days 10")[0] == 0
    assert unseen("federation remove c north") == (0, "north is no member any more")
    shutil.rmtree("site-north")
    Path("north.request").unlink()
    assert unseen("federation request c/invitation.json --name north --dir here")[0] == 0
    assert unseen("federation admit c north.request")[0] == 0
    Path("north.request").unlink()
    assert unseen("federation request c/invitation.json --name north --dir there")[0] == 0
    code, said = unseen("federation admit c north.request --replace")
    assert code == 0 and "only your comparison says" in said and "its old ones end here" in said


def test_a_trial_says_what_it_is(unseen: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = unseen("federation init c --server localhost --clients a,b --port 9000")
    assert code == 0 and "for a trial on one machine" in said and "c/kits/b.kit" in said
    assert "trial" in unseen("federation list c")[1]
    from unseen.federation.site import join

    homes: list[str] = []
    monkeypatch.setattr(join, "join", lambda site, *_: homes.append(site.folder))
    for line in ("join c/kits/a.kit --data x", "join c/kits/b.kit --data x --dir b", "join site-a --data x"):
        assert unseen(line)[0] == 0
    assert homes == ["site-a", "b", "site-a"]


def test_at_a_terminal_the_server_is_asked(unseen: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    unseen("federation init c --server localhost")
    unseen("federation request c/invitation.json --name north")
    from unseen.cli import membership as commands

    terminal = type("terminal", (), {"isatty": staticmethod(lambda: True)})
    monkeypatch.setattr(commands, "sys", type("sys", (), {"stdin": terminal}))
    for answer, code in ((False, 1), (True, 0)):
        monkeypatch.setattr(commands.typer, "confirm", lambda question, answer=answer: answer)
        assert unseen("federation admit c north.request")[0] == code
        assert ("north" in read_federation(Path("c")).clients) == answer


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("federation request none.json --name north", "no file none.json"),
        ("federation request c/federation.json --name north", "is not an invitation"),
        ("federation request c/invitation.json --name a/b", "client 'a/b'"),
        ("federation request c/invitation.json --name north --dir site-south", "never overwritten"),
        ("federation request c/invitation.json --name south --dir new", "exists already"),
        ("federation admit c none.request", "no file none.request"),
        ("federation admit c c/invitation.json", "is not a request"),
        ("federation admit c south.request", "these very keys"),
        ("federation admit d south.request", "no federation in d"),
        ("federation remove c north", "'north' is no member; there are: south"),
        ("federation remove d north", "no federation in d"),
        ("federation rotate d", "no kit"),
        ("federation rotate site-south --admitted", "no new keys wait"),
        ("federation renew c --days 0", "0 days"),
        ("federation renew d", "no federation in d"),
        ("federation list d", "no federation in d"),
        ("join site-south --data x --dir elsewhere", "leave --dir away"),
        ("join c --data x", "no kit"),
    ],
)
def test_each_mistake_has_one_message_and_leaves_nothing(line: str, why: str, unseen: Run, tmp_path: Path) -> None:
    for setup in ("init c --server localhost", "request c/invitation.json --name south", "admit c south.request"):
        assert unseen(f"federation {setup}")[0] == 0
    before = everything(tmp_path)
    code, said = unseen(line)
    assert code == 2 and said.count("unseen: ") == 1 and why in said, said
    assert everything(tmp_path) == before
