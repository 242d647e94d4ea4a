"""Cards are signed by whoever made the model; what was changed after that is refused, and so is what another key signed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("cryptography", reason="signatures need the extra: sign")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from PIL import Image

from unseen.cli import app
from unseen.data.domain import DomainDataset
from unseen.deploy import evaluate, export, load_model
from unseen.deploy.acceptance_page import render_acceptance
from unseen.deploy.card import read_card
from unseen.deploy.signing import ModelSigner, expected_keys, sign_card, signer_of
from unseen.errors import BadInput
from unseen.federation.kits import Federation, init, open_kit

P = 2**255 - 19
ORDER_EIGHT = [  # their y, from the list in libsodium
    int.from_bytes(bytes.fromhex(text), "little")
    for text in (
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    )
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return init(tmp_path_factory.mktemp("federation") / "consortium", "localhost", ["north", "south"])


@pytest.fixture(scope="module")
def signed(classes_run: Path, tiny: DomainDataset, federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(classes_run, "safetensors", tmp_path_factory.mktemp("signed") / "model", data=tiny, sign=federation.path)


def key_of(private: Ed25519PrivateKey) -> str:
    return private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()


def pem(folder: Path, private: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private.private_bytes(*form))
    return folder / "key.pem"


def test_the_servers_key_signs(signed: Path, federation: Federation) -> None:
    signer = load_model(signed).card.signer
    assert signer == ModelSigner(key_of(federation.signing), f"the server of federation {federation.id}")
    assert load_model(signed).card.origin == f"signed by {signer.fingerprint} (the server of federation {federation.id})"


def test_a_sites_key_and_one_of_anybodys_sign(classes_run: Path, tiny: DomainDataset, federation: Federation, tmp_path: Path) -> None:
    kit = open_kit(federation.path / "kits/north.kit", tmp_path / "site")
    out = export(classes_run, "safetensors", tmp_path / "one", data=tiny, sign=kit.path)
    assert load_model(out).card.signer == ModelSigner(key_of(kit.signing), f"north of federation {federation.id}")
    private = Ed25519PrivateKey.generate()
    out = export(classes_run, "safetensors", tmp_path / "two", data=tiny, sign=pem(tmp_path, private))
    assert load_model(out, signer=key_of(private)).card.signer == ModelSigner(key_of(private))


def test_how_the_json_is_laid_out_does_not_matter(signed: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(signed, tmp_path / "model"))
    card = json.loads((model / "card.json").read_text())
    (model / "card.json").write_text(json.dumps(dict(reversed(card.items())), indent=7))
    assert read_card(model).signer == read_card(signed).signer
    (model / "card.md").unlink()  # the words alone: card.json says the same
    assert read_card(model).signer == read_card(signed).signer


def places(values: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [way, *(place for key, value in inner for place in places(value, (*way, key)))]


@given(st.data())
def test_whatever_is_changed_is_refused(signed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    card = json.loads((signed / "card.json").read_text())
    *way, last = data.draw(st.sampled_from([place for place in places(card) if place and place != ("signature",)]))
    inside = card
    for key in way:
        inside = inside[key]
    simple = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
    before, after = inside[last], data.draw(simple | st.lists(simple, max_size=2))
    if json.dumps(before) == json.dumps(after):
        return
    inside[last] = after
    folder = tmp_path_factory.getbasetemp() / "changed-card"
    folder.mkdir(exist_ok=True)
    for name in ("model.safetensors", "card.md"):
        shutil.copy(signed / name, folder / name)
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(BadInput):
        load_model(folder)


@given(
    st.dictionaries(
        st.sampled_from(["key", "value", "name", "card.md", "x"]), st.none() | st.integers() | st.text(max_size=3) | st.just("0" * 64)
    )
)
def test_any_signature_is_one_or_bad_input(values: dict[str, Any]) -> None:
    for note in (values, {"key": "0" * 64, "value": "0" * 128, "card.md": "0" * 64, "name": "", **values}):
        try:
            found = signer_of({"title": "x", "signature": note}, None)
        except BadInput:
            continue
        assert found is None and not note


@pytest.mark.parametrize("y", [0, 1, P - 1, P, P + 1, *ORDER_EIGHT])
@pytest.mark.parametrize("sign", [0, 1])
def test_keys_for_which_anybody_can_sign_are_none(y: int, sign: int) -> None:
    """Points of small order: a signature of zeros fits one text in four or eight."""
    key = (y | sign << 255).to_bytes(32, "little").hex()
    for number in range(64):
        for value in ("00" * 64, "01" + "00" * 63, key + "00" * 32):
            with pytest.raises(BadInput):
                signer_of({"title": number, "signature": {"key": key, "value": value, "card.md": "0" * 64, "name": ""}}, None)


def test_words_model_and_more_keys_are_covered(signed: Path, tmp_path: Path) -> None:
    for number, (name, change, message) in enumerate(
        (
            ("card.md", lambda data: data.replace(b"No medical device", b"A medical device"), "card.md beside it was changed"),
            ("model.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "SHA-256 differs"),
            ("card.json", lambda data: data.replace(b'{\n "title"', b'{\n "approved": true,\n "title"'), "changed after it was signed"),
            ("card.json", lambda data: data.replace(b'"format": 1', b'"format": 1.0'), "changed after it was signed"),
        )
    ):
        model = Path(shutil.copytree(signed, tmp_path / str(number)))
        before = (model / name).read_bytes()
        assert change(before) != before
        (model / name).write_bytes(change(before))
        with pytest.raises(BadInput, match=message):
            load_model(model)


def test_a_signature_does_not_fit_another_card(signed: Path, classes_run: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    other = export(classes_run, "safetensors", tmp_path / "other", rule="last", data=tiny)
    card = json.loads((other / "card.json").read_text())
    card["signature"] = json.loads((signed / "card.json").read_text())["signature"]
    (other / "card.json").write_text(json.dumps(card))
    (other / "card.md").unlink()
    with pytest.raises(BadInput, match="does not fit"):
        load_model(other)


def test_who_is_asked_for(signed: Path, federation: Federation, classes_run: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    server, signer = key_of(federation.signing), load_model(signed).card.signer
    assert signer is not None
    invitation = tmp_path / "invitation.json"
    invitation.write_text(json.dumps({"federation": federation.id, "signing": server, "box": "00" * 32}))
    kit = open_kit(federation.path / "kits/north.kit", tmp_path / "site")
    for text in (server, server.upper(), signer.fingerprint, signer.fingerprint.replace(" ", ""), federation.path, invitation, kit.path):
        assert load_model(signed, signer=str(text)).card.signer == signer
    stranger = Ed25519PrivateKey.generate()
    public = tmp_path / "public.pem"
    public.write_bytes(stranger.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    for text in (key_of(stranger), ModelSigner(key_of(stranger)).fingerprint, public, pem(tmp_path / "k", stranger)):
        with pytest.raises(BadInput, match="and not by"):
            load_model(signed, signer=str(text))
    with pytest.raises(BadInput, match="is not signed: anybody may have written it"):
        load_model(export(classes_run, "safetensors", tmp_path / "plain", data=tiny), signer=server)
    sites = expected_keys(str(federation.path / "federation.json"))
    assert {federation.clients[name]["signing"] for name in ("north", "south")} <= sites
    for nonsense in ("", "nobody", "12 34", str(tmp_path / "nothing"), str(tmp_path / "plain"), str(signed / "model.safetensors")):
        with pytest.raises(BadInput, match=r"names no key|cannot be read"):
            expected_keys(nonsense)


@given(data=st.binary(max_size=200) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode()))
@pytest.mark.parametrize("name", ["federation.json", "kit.toml", "key.pem"])
def test_any_file_of_keys_is_one_or_bad_input(name: str, tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / name
    file.write_bytes((b"-----BEGIN PUBLIC KEY-----\n" if name == "key.pem" else b"") + data)
    with pytest.raises(BadInput):
        expected_keys(str(file))


def test_keys_that_cannot_sign(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no key to sign with"):
        sign_card({}, "", tmp_path)
    with pytest.raises(BadInput, match="another kind"):
        sign_card({}, "", pem(tmp_path, ec.generate_private_key(ec.SECP256R1())))
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(BadInput, match="cannot be read as a key"):
        sign_card({}, "", tmp_path / "key.pem")


def test_without_the_library_a_signed_card_is_refused(signed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BadInput, match=r"pip install 'unseen\[sign\]'"):
        load_model(signed)
    with pytest.raises(BadInput, match=r"pip install 'unseen\[sign\]'"):
        sign_card({}, "", tmp_path)


def test_commands_say_by_whom(signed: Path, classes_run: Path, federation: Federation, tiny: DomainDataset, tmp_path: Path) -> None:
    def unseen(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, [str(word) for word in words])
        return done.exit_code, " ".join(done.output.split())

    Image.fromarray(tiny["c"].images[0].transpose(1, 2, 0)).save(tmp_path / "image.png")
    code, said = unseen("export", classes_run, "--without-data", "--out", tmp_path / "signed", "--sign", federation.path)
    assert code == 0 and f"signed by {ModelSigner(key_of(federation.signing)).fingerprint} (the server of" in said
    code, said = unseen("export", classes_run, "--without-data", "--out", tmp_path / "plain")
    assert code == 0 and "not signed; --sign KEY" in said
    for model, options, expected, words in (
        ("signed", [], 0, "the model is signed by"),
        ("signed", ["--signer", federation.path], 0, "the model is signed by"),
        ("signed", ["--signer", "00" * 32], 2, "and not by"),
        ("plain", [], 0, "the model is not signed: anybody may have written it"),
        ("plain", ["--signer", federation.path], 2, "is not signed"),
    ):
        code, said = unseen("predict", tmp_path / model, tmp_path / "image.png", *options)
        assert code == expected and words in said, said
        code, said = unseen("evaluate", tmp_path / model, "--data", "styled-digits", *options)
        assert code == 2 and ("styled-digits" in said if expected == 0 else words in said)  # it has other labels
    answer = evaluate(load_model(signed), tiny, draws=2)
    assert answer.values()["origin"].startswith("signed by") and "The model is signed by" in render_acceptance(answer)
