"""A federation's folder and its kits: everything to join and nothing else, secrets for their owner alone."""

from __future__ import annotations

import datetime
import zipfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from unseen.cli import app
from unseen.errors import BadInput
from unseen.federation import keys
from unseen.federation.kits import init, open_kit, read_federation


def test_init_makes_a_federation_and_its_kits(tmp_path: Path) -> None:
    made = init(tmp_path / "fed", "fl.example.org", ["north", "south"], port=9000)
    assert read_federation(tmp_path / "fed") == made and made.address == "fl.example.org:9000"
    assert not [p for p in (tmp_path / "fed").rglob("*") if p.stat().st_mode & 0o077]
    with zipfile.ZipFile(tmp_path / "fed/kits/north.kit") as archive:
        assert sorted(archive.namelist()) == ["ca.pem", "kit.toml", "node.key", "signing.key"]
    kit = open_kit(tmp_path / "fed/kits/north.kit", tmp_path / "site")
    assert (kit.client, kit.federation, kit.server) == ("north", made.id, "fl.example.org:9000")
    kit.server_key.verify(made.signing.sign(b"x"), b"x")
    made.public_key("north").verify(kit.signing.sign(b"y"), b"y")
    assert not [p for p in (tmp_path / "site").rglob("*") if p.stat().st_mode & 0o077]
    assert open_kit(tmp_path / "fed/kits/north.kit", tmp_path / "site").client == "north"  # again
    with pytest.raises(BadInput, match="another kit"):
        open_kit(tmp_path / "fed/kits/south.kit", tmp_path / "site")


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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["garbage.kit", "other.kit", "site"]
    assert not list((tmp_path / "site").iterdir())


@pytest.mark.parametrize("line", ['client = "../a"', 'client = "a/b"', "client = 3", "server = []"])
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


def test_an_expired_certificate_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = init(tmp_path / "fed", "localhost", ["a"], days=2)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime.now(tz) + datetime.timedelta(days=3)

    fake = type("later", (), {"datetime": Later, "UTC": datetime.UTC, "timedelta": datetime.timedelta})
    monkeypatch.setattr(keys, "datetime", fake)
    with pytest.raises(BadInput, match="valid until"):
        open_kit(made.path / "kits/a.kit", tmp_path / "site")
    with pytest.raises(BadInput, match="valid until"):
        read_federation(made.path)
    for arguments in (["serve", "--dir", made.path], ["join", made.path / "kits/a.kit", "--data", "x", "--dir", tmp_path / "s"]):
        result = CliRunner().invoke(app, [str(word) for word in arguments])
        assert result.exit_code == 2 and "valid until" in " ".join(result.output.split())


def test_mistakes_on_the_command_line(tmp_path: Path) -> None:
    run = ["run", "--method", "fedsb", "--data", "x", "--engine"]
    for arguments, text in (
        ([*run, "flower"], "--federation DIR"),
        ([*run, "flowr"], "did you mean 'flower'"),
        ([*run, "local", "--deadline", "5"], "add --engine flower"),
        (["serve", "--dir", str(tmp_path)], "no federation in"),
        (["join", str(tmp_path / "x.kit"), "--data", "styled-digits", "--dir", str(tmp_path / "s")], "no kit"),
        (["federation", "init", str(tmp_path / "f"), "--server", "a b", "--clients", "x"], "server 'a b'"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2 and text in result.output.replace("\n", " "), (arguments, result.output)
