"""Requests and invitations come from outside: whatever is in such a file, it is taken as it was meant or refused with one message."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from own_keys import ask
from unseen.errors import BadInput
from unseen.federation.keys import Authority, SiteKeys
from unseen.federation.kits import Federation, init
from unseen.federation.requests import MembershipRequest, read_invitation, read_request, request_rotation


@pytest.fixture
def server(tmp_path: Path) -> Federation:
    return init(tmp_path / "fed", "localhost", port=9000)


def changed(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({k: v for k, v in {**json.loads(file.read_text()), **fields}.items() if v is not None}))


P256 = ec.generate_private_key(ec.SECP256R1()).public_key()
OTHER_CURVE = P256.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "south"}, "not signed"),
        ({"federation": "0" * 16}, "not signed"),
        ({"signature": "00" * 64}, "not signed"),
        ({"signature": ""}, "not signed"),
        ({"signature": "xyz"}, "not a request"),
        ({"name": "../north"}, "not a request"),
        ({"name": "a\x1b[2J"}, "not a request"),
        ({"name": ["north"]}, "texts"),
        ({"federation": "x"}, "not a request"),
        ({"box": "0" * 64}, "no public key for letters"),  # of low order
        ({"box": "01" + "0" * 62}, "no public key for letters"),
        ({"box": None}, "expected the fields"),
        ({"more": "x"}, "expected the fields"),
        ({"signing": "AB" * 32}, "no public key"),
        ({"signing": "ab " * 32}, "no public key"),
        ({"node": "ssh-rsa AAAA"}, "no public key of a node"),
        ({"node": OTHER_CURVE}, "no public key of a node"),
        ({"node": "\ud800"}, "no public key of a node"),
        ({"replaces": "ab" * 32}, "not signed"),
        ({"padding": "x" * 30_000}, "more than 20,000 bytes"),
    ],
)
def test_requests_that_are_none(fields: dict[str, Any], why: str, server: Federation) -> None:
    _, file = ask(server)
    changed(file, **fields)
    with pytest.raises(BadInput, match=why) as refused:
        read_request(file)
    assert "\x1b" not in str(refused.value)


def test_a_rotation_cannot_be_made_a_first_request_on_its_way(server: Federation) -> None:
    kit, _ = ask(server)
    _, file = request_rotation(kit.path)
    changed(file, replaces=None, old_signature=None)
    with pytest.raises(BadInput, match="not signed"):
        read_request(file)


def test_a_key_with_a_comment_is_another_way_to_write_it(server: Federation, tmp_path: Path) -> None:
    keys = SiteKeys.make()
    request = MembershipRequest(server.id, "north", {**keys.public, "node": keys.public["node"] + " me@here"})
    (tmp_path / "r").write_text(request.signed_by(keys.signing))
    with pytest.raises(BadInput, match="no public key of a node"):
        read_request(tmp_path / "r")


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path, tmp_path / "none", tmp_path / "fifo", Path("/dev/zero")):
        for read in (read_request, read_invitation):
            with pytest.raises(BadInput, match="no file"):
                read(file)


@pytest.fixture(scope="module")
def public_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    folder = tmp_path_factory.mktemp("public")
    made = init(folder / "fed", "localhost")
    _, file = ask(made)
    return folder, file.read_bytes(), (made.path / "invitation.json").read_bytes()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_no_bytes_end_in_anything_but_a_refusal(public_files: tuple[Path, bytes, bytes], data: st.DataObject) -> None:
    folder, request, invitation = public_files
    for genuine, read in ((request, read_request), (invitation, read_invitation)):
        told: dict[str, Any] = json.loads(genuine)
        way = data.draw(st.sampled_from(["bytes", "bit", "value", "json", "deep"]))
        if way == "bytes":
            content = data.draw(st.binary(max_size=200))
        elif way == "bit":
            content = bytearray(genuine)
            content[data.draw(st.integers(0, len(genuine) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        elif way == "value":
            told[data.draw(st.sampled_from(sorted(told)))] = data.draw(json_values)
            content = json.dumps(told).encode()
        elif way == "json":
            content = json.dumps(data.draw(json_values)).encode()
        else:
            content = data.draw(st.sampled_from([b"[" * 15_000, b"9" * 15_000, b'{"a":' * 4_000, b"\xff\xfe{", b"NaN"]))
        (folder / "x").write_bytes(bytes(content))
        try:
            found = read(folder / "x")
        except BadInput:
            continue
        if read is read_request:  # a changed one is taken only if it says the same; an invitation has no signature
            (folder / "x").write_bytes(genuine)
            assert found == read(folder / "x")


def test_an_invitation_brings_one_authority_alone(server: Federation) -> None:
    """A second certificate, behind the one that is in the fingerprint, would be trusted like it."""
    file = server.path / "invitation.json"
    genuine = read_invitation(file)
    changed(file, ca=genuine.ca + Authority.make("another", 9).pem.decode())
    assert read_invitation(file) == genuine
    changed(file, ca=Authority.make("another", 9).pem.decode())
    assert read_invitation(file).fingerprint != genuine.fingerprint
    changed(file, ca=(server.path / "server.pem").read_text())
    with pytest.raises(BadInput, match="no authority's"):
        read_invitation(file)


@pytest.mark.parametrize("fields", [{"server": "--insecure"}, {"server": "a b:1"}, {"federation": "../x"}, {"ca": "x"}, {"signing": "x"}])
def test_invitations_that_are_none(fields: dict[str, str], server: Federation) -> None:
    changed(server.path / "invitation.json", **fields)
    with pytest.raises(BadInput, match="is not an invitation"):
        read_invitation(server.path / "invitation.json")


def test_a_signature_for_a_request_is_none_for_anything_else(server: Federation) -> None:
    kit, file = ask(server)
    request = read_request(file)
    assert request.signed_text.startswith(b"unseen federation request 1 ")
    bare = json.dumps(request.keys).encode()
    changed(file, signature=kit.signing.sign(bare).hex())
    with pytest.raises(BadInput, match="not signed"):
        read_request(file)
