"""Approving a study while a site is at work: a file that only the site's own key can sign."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from conftest import tiny_classification
from federation_in_memory import EVERYTHING, FederationInMemory
from unseen import Experiment
from unseen.cli import app
from unseen.federation.kits import Kit, open_kit
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import begin, propose
from unseen.federation.site import by_hand
from unseen.federation.site.by_hand import approve_by_hand, at_work, is_at_work, outcome, pending, waiting_studies
from unseen.methods import METHODS
from unseen.parts import PARTS
from unseen.settings import build

THREE = tiny_classification((24, 20, 16))
FEDAVG = Experiment(build(METHODS["fedavg"], {"batch": 8, "optimizer": "sgd"}, PARTS), THREE.name, "c", rounds=1)


class Desk:
    """A federation whose site `a` approves by hand, and a study for it."""

    def __init__(self, folder: Path, **rules: Any) -> None:
        policies = {"a": replace(EVERYTHING, studies="by-hand", **rules)}
        self.federation = FederationInMemory(folder, THREE, "c", policies, by_rule=False)
        self.site = folder / "a"
        self.study = propose(FEDAVG, self.federation.server, self.federation.carrier, Terms(), lambda text: None)
        self.signed = self.study.signed(self.federation.server.signing)

    @property
    def kit(self) -> Kit:
        return open_kit(self.federation.server.path / "kits/a.kit", self.site)

    @property
    def responder(self) -> Any:
        return self.federation.carrier.responders["a"]

    def begin(self) -> list[str]:
        said: list[str] = []
        begin(FEDAVG, self.study, self.federation.server, self.federation.carrier, Terms(), said.append)
        return said

    def write(self, name: str, **told: object) -> Path:
        file = self.site / "to-approve" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(told))
        return file


def test_an_approval_is_taken_up_by_a_site_at_work(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert "a does not take part" in " ".join(desk.begin())
    (waiting,) = waiting_studies(desk.site)  # the study that the server wants to begin lies there to be looked at
    assert waiting.read_bytes() == desk.signed and outcome(desk.site, desk.study.digest) is None
    approve_by_hand(desk.kit, waiting.read_bytes())
    assert [file.name for file in pending(desk.site)] == [f"{desk.study.digest}.json"]
    desk.responder.take_up_approvals()
    assert outcome(desk.site, desk.study.digest) == "" and not [*pending(desk.site)] and not waiting_studies(desk.site)
    assert "a does not take part" not in " ".join(desk.begin())


def forged(desk: Desk) -> Path:
    """Signed by somebody who can write to the folder and has not the site's key."""
    text = by_hand._signed_bytes(desk.kit, desk.study)
    return desk.write(f"{desk.study.digest}.json", study=desk.signed.decode(), signature=Ed25519PrivateKey.generate().sign(text).hex())


def for_another_site(desk: Desk) -> Path:
    text = by_hand._PURPOSE + f"{desk.kit.federation} b {desk.study.digest}".encode()
    return desk.write(f"{desk.study.digest}.json", study=desk.signed.decode(), signature=desk.kit.signing.sign(text).hex())


def of_another_study(desk: Desk) -> Path:
    """The site's signature under one study, and the text of another."""
    text = by_hand._PURPOSE + f"{desk.kit.federation} a {'0' * 64}".encode()
    return desk.write(f"{desk.study.digest}.json", study=desk.signed.decode(), signature=desk.kit.signing.sign(text).hex())


def under_another_name(desk: Desk) -> Path:
    approve_by_hand(desk.kit, desk.signed)
    return (desk.site / "to-approve" / f"{desk.study.digest}.json").rename(desk.site / "to-approve" / f"{'1' * 64}.json")


def not_the_servers(desk: Desk) -> Path:
    told = {"study": json.loads(desk.study.text), "signature": "00" * 64}
    text = by_hand._signed_bytes(desk.kit, desk.study)
    return desk.write(f"{desk.study.digest}.json", study=json.dumps(told), signature=desk.kit.signing.sign(text).hex())


def a_link(desk: Desk) -> Path:
    approve_by_hand(desk.kit, desk.signed)
    file = desk.site / "to-approve" / f"{desk.study.digest}.json"
    file.rename(desk.site / "elsewhere.json")
    file.symlink_to(desk.site / "elsewhere.json")
    return file


def garbage(desk: Desk) -> Path:
    return desk.write(f"{desk.study.digest}.json", study=[], signature=7)


def too_large(desk: Desk) -> Path:
    file = desk.write(f"{desk.study.digest}.json")
    with file.open("ab") as stream:
        stream.truncate(by_hand._MOST + 1)
    return file


ODD = [forged, for_another_site, of_another_study, under_another_name, not_the_servers, a_link, garbage, too_large]


@pytest.fixture(scope="module")
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_no_other_file_approves_anything(make: Any, shared_desk: Desk) -> None:
    desk = shared_desk
    file = make(desk)
    desk.responder.take_up_approvals()
    assert not (desk.site / "studies" / desk.study.digest).exists()
    refused = file.with_suffix(".refused")
    assert not file.is_symlink() and not file.exists() and refused.read_text()
    refused.unlink()


def test_what_is_no_approval_by_its_name_is_left_alone(shared_desk: Desk) -> None:
    for name in ("note.txt", "1234.json", f"{'g' * 64}.json"):
        shared_desk.write(name)
    assert [*pending(shared_desk.site)] == []


def test_rules_forbid_it_by_hand_too_and_say_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, most_rounds=1, methods=("fedsb",))
    approve_by_hand(desk.kit, desk.signed)
    desk.responder.take_up_approvals()
    assert "methods" in str(outcome(desk.site, desk.study.digest)) and not [*pending(desk.site)]
    approve_by_hand(desk.kit, desk.signed)  # after the rules were changed: what spoke against it is forgotten
    assert outcome(desk.site, desk.study.digest) is None


def test_a_join_that_runs_is_seen(tmp_path: Path) -> None:
    assert not is_at_work(tmp_path)
    with at_work(tmp_path):
        assert is_at_work(tmp_path)
    assert not is_at_work(tmp_path)


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["study", "approve", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path)
    desk.begin()
    digits = desk.study.digest[:6]
    code, said = command(digits, "--site", desk.site)
    assert code == 0 and "The next `unseen join" in said and "No image and no label leaves" in said
    with at_work(desk.site):
        code, said = command(digits, "--site", desk.site, "--wait", 0)
        assert code == 0 and "at work on a question" in said
        monkeypatch.setattr(by_hand, "outcome", lambda site, digest: "methods: 'fedavg' is not allowed here")
        code, said = command(digits, "--site", desk.site)
        assert code == 2 and "not approved, methods: 'fedavg'" in said
        monkeypatch.setattr(by_hand, "outcome", lambda site, digest: "")
        code, said = command(digits, "--site", desk.site)
        assert code == 0 and "approved; the running" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nothing.json", "--site", "SITE"], "no study nothing.json"),
        (["abcd1234", "--site", "SITE"], "no study abcd1234"),
        (["OTHER", "--site", "SITE"], "not signed by this federation's server"),
        (["STUDY", "--site", "elsewhere"], "no kit"),
        (["SITE", "--site", "SITE"], "no study"),
    ],
)
def test_each_mistake_has_one_message(words: list[str], why: str, shared_desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes(shared_desk.signed)
    (tmp_path / "other.json").write_bytes(shared_desk.study.signed(Ed25519PrivateKey.generate()))
    names = {"SITE": shared_desk.site, "STUDY": tmp_path / "study.json", "OTHER": tmp_path / "other.json"}
    before = {*shared_desk.site.rglob("*")}
    code, said = command(*(names.get(word, word) for word in words))
    assert code == 2 and said.count("unseen: ") == 1 and why in said, said
    assert {*shared_desk.site.rglob("*")} == before
