"""A federation's folder and a trial's kits: everything to join and nothing else, secrets for their owner alone."""

from __future__ import annotations

import contextlib
import datetime
import json
import zipfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from unseen.cli import app
from unseen.errors import BadInput
from unseen.federation import keys, kits
from unseen.federation.keys import read_public
from unseen.federation.kits import init, open_kit, read_federation


def test_init_makes_a_federation_and_its_kits(tmp_path: Path) -> None:
    made = init(tmp_path / "fed", "fl.example.org", ["north", "south"], port=9000)
    assert read_federation(tmp_path / "fed") == made and made.address == "fl.example.org:9000"
    assert not [p for p in (tmp_path / "fed").rglob("*") if p.stat().st_mode & 0o077]
    with zipfile.ZipFile(tmp_path / "fed/kits/north.kit") as archive:
        assert sorted(archive.namelist()) == ["box.key", "ca.pem", "kit.toml", "node.key", "signing.key"]
    kit = open_kit(tmp_path / "fed/kits/north.kit", tmp_path / "site")
    assert (kit.client, kit.federation, kit.server) == ("north", made.id, "fl.example.org:9000")
    kit.server_key.verify(made.signing.sign(b"x"), b"x")
    made.public_key("north").verify(kit.signing.sign(b"y"), b"y")
    assert made.box.exchange(made.box_key("north")) == kit.box.exchange(kit.server_box)
    assert kit.trial and kit.members == {name: made.clients[name]["signing"] for name in ("north", "south")} and kit.earlier == ()
    assert open_kit(kit.path, kit.path) == kit  # the site's folder is a kit too
    assert not [p for p in (tmp_path / "site").rglob("*") if p.stat().st_mode & 0o077]
    assert open_kit(tmp_path / "fed/kits/north.kit", tmp_path / "site").client == "north"  # again
    with pytest.raises(BadInput, match="another kit"):
        open_kit(tmp_path / "fed/kits/south.kit", tmp_path / "site")
    assert open_kit(tmp_path / "fed/kits/north.kit", tmp_path / "site") == kit  # nothing of the other came in


def test_a_federation_without_a_trial_has_no_kits(tmp_path: Path) -> None:
    made = init(tmp_path / "fed", "localhost")
    assert made.clients == {} and not (made.path / "kits").exists() and read_federation(made.path) == made


def test_a_folder_that_was_there_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    init(tmp_path, "localhost")
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_federation_that_cannot_be_filled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kits, "write_atomically", full)  # the last file
    (tmp_path / "empty").mkdir()
    for folder in ("new", "empty"):
        with pytest.raises(OSError, match="No space"):
            init(tmp_path / folder, "localhost", ["a"])
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")] == ["empty"]


def test_files_of_an_older_version(tmp_path: Path) -> None:
    made = init(tmp_path / "fed", "localhost", ["a"])
    about = json.loads((made.path / "federation.json").read_text())
    del about["clients"]["a"]["box"]
    (made.path / "federation.json").write_text(json.dumps(about))
    with pytest.raises(BadInput, match=r"older version.*unseen federation init"):
        read_federation(made.path)
    with zipfile.ZipFile(made.path / "kits/a.kit") as whole, zipfile.ZipFile(tmp_path / "old.kit", "w") as old:
        for name in ("ca.pem", "kit.toml", "node.key", "signing.key"):
            old.writestr(name, whole.read(name))
    with pytest.raises(BadInput, match=r"older version.*unseen federation init"):
        open_kit(tmp_path / "old.kit", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_the_certificate_is_for_the_server_and_signed_by_the_authority(tmp_path: Path) -> None:
    made = init(tmp_path, "10.0.0.7", ["a"])
    ca, server = (x509.load_pem_x509_certificate((made.path / name).read_bytes()) for name in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    key = server.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp384r1"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "a\nb", "x" * 64, "ä"])
def test_names_with_path_parts_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="client"):
        init(tmp_path / "fed", "localhost", [name])
    assert not (tmp_path / "fed").exists()


def test_every_mistake_at_once_and_no_folder_overwritten(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="4 problems"):
        init(tmp_path / "fed", "bad host", ["a", "a"], port=0, days=0)
    (tmp_path / "mine").write_text("x")
    with pytest.raises(BadInput, match="not empty"):
        init(tmp_path, "localhost", ["a"])
    with pytest.raises(BadInput, match="no federation in"):
        read_federation(tmp_path)


def test_kits_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "garbage.kit").write_bytes(b"PK garbage")
    with zipfile.ZipFile(tmp_path / "other.kit", "w") as archive:
        archive.writestr("../../evil", b"x")
    for name, match in (("garbage.kit", "not a kit"), ("other.kit", "not a kit"), ("none.kit", "no kit")):
        with pytest.raises(BadInput, match=match):
            open_kit(tmp_path / name, tmp_path / "site")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["garbage.kit", "other.kit"]


@pytest.fixture(scope="module")
def a_kit(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (init(tmp_path_factory.mktemp("fed"), "localhost", ["a"]).path / "kits/a.kit").read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_kit_opens_or_is_refused(a_kit: bytes, tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(a_kit)
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(a_kit) - 1), st.integers(0, 255)), min_size=1, max_size=5)):
        changed[place] = byte
    (tmp_path / "a.kit").write_bytes(changed[: data.draw(st.sampled_from([len(changed), len(changed) // 2]))])
    with contextlib.suppress(BadInput):
        kits._read_card(tmp_path / "a.kit", kits._kit_contents(tmp_path / "a.kit")["kit.toml"], tmp_path / "site")


@pytest.mark.parametrize("line", ['client = "../a"', 'client = "a/b"', "client = 3", "server = []", 'server = "--insecure"', "trial = 1"])
def test_a_kit_with_names_that_no_federation_gives(line: str, tmp_path: Path) -> None:
    made = init(tmp_path / "fed", "localhost", ["a"])
    with zipfile.ZipFile(made.path / "kits/a.kit") as archive:
        archive.extractall(tmp_path / "kit")
    lines = (tmp_path / "kit/kit.toml").read_text().splitlines()
    changed = [line if old.startswith(line.split()[0] + " ") else old for old in lines]
    assert changed != lines
    (tmp_path / "kit/kit.toml").write_text("\n".join(changed))
    with pytest.raises(BadInput, match="not a kit"):
        open_kit(tmp_path / "kit", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def in_days(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let certificates be looked at on a later day."""

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.now(tz) + datetime.timedelta(days=days)

    fake = type("later", (), {"datetime": Later, "UTC": datetime.UTC, "timedelta": datetime.timedelta})
    monkeypatch.setattr(keys, "datetime", fake)


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, " ".join(result.output.split())


def test_an_expired_certificate_is_refused_with_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = init(tmp_path / "fed", "localhost", ["a"], days=2)
    with monkeypatch.context() as later:
        in_days(3, later)
        open_kit(made.path / "kits/a.kit", tmp_path / "site")  # the authority's, which lasts
        code, said = command("serve", "--dir", made.path)
        assert code == 2 and "was valid until" in said and f"unseen federation renew {made.path}" in said
    in_days(21 * 365, monkeypatch)
    code, said = command("join", made.path / "kits/a.kit", "--data", "x", "--dir", tmp_path / "site")
    assert code == 2 and "was valid until" in said and "make a new federation" in said
    assert command("federation", "renew", made.path)[0] == 2


def test_a_certificate_from_tomorrow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = init(tmp_path / "fed", "localhost")
    in_days(-1, monkeypatch)
    with pytest.raises(BadInput, match=r"valid from .* set the clock"):
        read_federation(made.path)


@pytest.mark.parametrize(("days", "warned"), [(29, True), (32, False)])
def test_a_certificate_that_ends_soon_is_told(days: int, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unseen.federation.flower import superlink
    from unseen.federation.site import join

    made = init(tmp_path / "fed", "localhost", ["a"], days=days)
    kit = open_kit(made.path / "kits/a.kit", tmp_path / "site")
    assert kit.warnings == () and bool(read_federation(made.path).warnings) == warned
    monkeypatch.setattr(superlink, "serve", lambda *_: None)
    monkeypatch.setattr(join, "join", lambda *_: None)
    code, said = command("serve", "--dir", made.path)
    assert code == 0 and (f"run: unseen federation renew {made.path}" in said) == warned
    in_days(20 * 365 - days, monkeypatch)
    code, said = command("join", kit.path, "--data", "x")
    assert code == 0 and ("make a new federation" in said) == warned


def test_mistakes_on_the_command_line(tmp_path: Path) -> None:
    run = ["run", "--method", "fedsb", "--data", "x", "--engine"]
    for arguments, text in (
        ([*run, "flower"], "--federation DIR"),
        ([*run, "flowr"], "did you mean 'flower'"),
        ([*run, "local", "--deadline", "5"], "deadline is for runs between machines"),
        (["serve", "--dir", str(tmp_path)], "no federation in"),
        (["join", str(tmp_path / "x.kit"), "--data", "styled-digits", "--dir", str(tmp_path / "s")], "no kit"),
        (["federation", "init", str(tmp_path / "f"), "--server", "a b", "--clients", "x"], "server 'a b'"),
        (["federation", "init", str(tmp_path / "f"), "--server", "a", "--days", "999999999"], "a certificate lasts 1 to 7300"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2 and text in result.output.replace("\n", " "), (arguments, result.output)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [0, 1, 2**255 - 20, 2**255 - 19])
def test_a_key_for_which_anybody_can_sign_is_no_key(number: int) -> None:
    with pytest.raises(BadInput, match="anybody can sign"):
        read_public(number.to_bytes(32, "little").hex())
