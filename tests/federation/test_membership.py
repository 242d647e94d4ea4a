"""Who belongs to a federation: sites make their own keys, the server admits, removes, rotates and renews."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from filelock import FileLock

from own_keys import admitted, ask, everything, open_to_others
from unseen.errors import BadInput
from unseen.federation import membership, rotation
from unseen.federation.keys import Authority, SiteKeys, private_bytes
from unseen.federation.kits import Federation, init, open_kit, read_federation
from unseen.federation.membership import admit, members, remove, renew
from unseen.federation.requests import MembershipRequest, make_site, read_invitation, read_request, request_rotation


@pytest.fixture
def server(tmp_path: Path) -> Federation:
    return init(tmp_path / "fed", "localhost", port=9000)


def test_a_site_makes_its_keys_and_the_server_admits_it(server: Federation) -> None:
    kit, file = admitted(server)
    now = read_federation(server.path)
    assert (kit.client, kit.federation, kit.server) == ("north", server.id, "localhost:9000")
    assert not kit.trial and kit.members == {} and kit.earlier == ()
    assert sorted(now.clients["north"]) == ["box", "node", "signing"]
    now.public_key("north").verify(kit.signing.sign(b"x"), b"x")
    kit.server_key.verify(now.signing.sign(b"y"), b"y")
    assert now.box.exchange(now.box_key("north")) == kit.box.exchange(kit.server_box)
    assert (kit.path / "ca.pem").read_bytes() == now.ca.read_bytes()
    node = serialization.load_ssh_private_key((kit.path / "node.key").read_bytes(), None)
    assert isinstance(node, ec.EllipticCurvePrivateKey) and node.curve.name == "secp384r1"
    assert not open_to_others(kit.path) and not open_to_others(server.path) and file.stat().st_mode & 0o077 == 0


def test_neither_file_that_travels_holds_a_secret(server: Federation) -> None:
    kit, file = ask(server)
    _, again = request_rotation(kit.path)
    for public, folders in ((file, [kit.path]), (again, [kit.path, kit.path / "next"]), (server.path / "invitation.json", [server.path])):
        text = public.read_text()
        assert "PRIVATE" not in text
        for folder in folders:
            for name in ("signing", "box"):
                secret = folder / f"{name}.key" if folder != server.path else folder / f"secrets/{name}.key"
                key: Any = serialization.load_pem_private_key(secret.read_bytes(), None)
                assert key.private_bytes_raw().hex() not in text


def test_fingerprints_of_a_site_are_the_same_on_both_sides_and_change_with_every_key_and_name(server: Federation) -> None:
    _, file = admitted(server)
    request = read_request(file)
    (member,) = members(server.path)
    told = json.dumps({"name": "north", **request.keys}, sort_keys=True, separators=(",", ":"))
    digits = hashlib.sha256(told.encode()).hexdigest()
    assert member.fingerprint == request.fingerprint == " ".join(digits[i : i + 4] for i in (0, 4, 8, 12, 16, 20, 24, 28))
    others = {MembershipRequest(server.id, "north", {**request.keys, kind: "x"}).fingerprint for kind in request.keys}
    assert len({*others, MembershipRequest(server.id, "south", request.keys).fingerprint, request.fingerprint}) == 5


def test_a_request_is_refused_where_it_does_not_belong(server: Federation, tmp_path: Path) -> None:
    _, file = admitted(server)
    _, stranger = ask(server, folder="elsewhere")  # the same name, other keys
    other = init(tmp_path / "other", "localhost", ["trial"])
    trial = other.clients["trial"]
    thief = SiteKeys.make()
    stolen = MembershipRequest(other.id, "thief", {**thief.public, "node": trial["node"]})
    (tmp_path / "stolen").write_text(stolen.signed_by(thief.signing))
    for folder, request, why in (
        (server.path, file, "these very keys"),
        (server.path, stranger, "north is a member, with other keys.*--replace"),
        (other.path, file, "is for federation"),
        (other.path, tmp_path / "stolen", "keys in the request are those of trial"),
    ):
        before = everything(folder)
        with pytest.raises(BadInput, match=why):
            admit(folder, read_request(request))
        assert everything(folder) == before
    with pytest.raises(BadInput, match="no federation in"):
        admit(tmp_path / "site-north", read_request(file))
    assert not (tmp_path / "site-north/.federation.lock").exists()


def test_removal_is_at_once_and_for_good(server: Federation) -> None:
    _, file = admitted(server)
    admitted(server, "south")
    remove(server.path, "north")
    assert list(read_federation(server.path).clients) == ["south"]
    for replace in (False, True):
        with pytest.raises(BadInput, match="were those of north until"):
            admit(server.path, read_request(file), replace)
    with pytest.raises(BadInput, match="'north' is no member; there are: south"):
        remove(server.path, "north")
    _, fresh = ask(server, folder="fresh")
    assert admit(server.path, read_request(fresh)) == "admitted"
    assert [(m.name, m.why) for m in members(server.path)] == [("north", ""), ("south", ""), ("north", "removed")]


def test_a_removed_site_cannot_come_back_with_some_of_its_keys(server: Federation, tmp_path: Path) -> None:
    kit, _ = admitted(server)
    old = SiteKeys.read(kit.path)
    remove(server.path, "north")
    for kind in ("node", "box", "signing"):
        mixed = SiteKeys(**{**SiteKeys.make().__dict__, kind: getattr(old, kind)})
        (tmp_path / "mixed").write_text(MembershipRequest(server.id, "other", mixed.public).signed_by(mixed.signing))
        with pytest.raises(BadInput, match="were those of north"):
            admit(server.path, read_request(tmp_path / "mixed"))


def test_a_trial_site_is_removed_with_its_kit(tmp_path: Path) -> None:
    made = init(tmp_path / "fed", "localhost", ["a", "b"])
    remove(made.path, "a")
    assert [p.name for p in (made.path / "kits").iterdir()] == ["b.kit"]
    assert [(m.name, m.trial) for m in members(made.path)] == [("b", True), ("a", False)]


def test_new_keys_take_the_place_of_the_old_ones(server: Federation) -> None:
    kit, first = admitted(server)
    one = first.read_text()
    old = read_federation(server.path).clients["north"]
    request, file = request_rotation(kit.path)
    assert request_rotation(kit.path)[0] == request  # asked again, nothing changes
    assert open_kit(kit.path, kit.path) == kit and not open_to_others(kit.path)
    assert admit(server.path, read_request(file)) == "rotated"
    two = file.read_text()
    assert read_federation(server.path).clients["north"] == request.keys
    rotation.take_next_keys(kit.path)
    now = open_kit(kit.path, kit.path)
    assert now.earlier == (old["signing"],) and SiteKeys.read(kit.path).public == request.keys and not open_to_others(kit.path)
    with pytest.raises(BadInput, match="no new keys wait"):
        rotation.take_next_keys(kit.path)
    # A second time; then every earlier request again.
    second, file = request_rotation(kit.path)
    assert admit(server.path, read_request(file)) == "rotated"
    rotation.take_next_keys(kit.path)
    assert open_kit(kit.path, kit.path).earlier == (old["signing"], request.keys["signing"])
    for text, why in ((one, "were those of north"), (two, "were those of north"), (file.read_text(), "these very keys")):
        file.write_text(text)
        with pytest.raises(BadInput, match=why):
            admit(server.path, read_request(file), replace=True)
    assert read_federation(server.path).clients["north"] == second.keys


def test_new_keys_that_the_old_ones_did_not_sign(server: Federation, tmp_path: Path) -> None:
    admitted(server)
    known = read_federation(server.path).clients["north"]["signing"]
    thief, own = SiteKeys.make(), SiteKeys.make()
    request = MembershipRequest(server.id, "north", thief.public, known)
    (tmp_path / "a").write_text(request.signed_by(thief.signing, thief.signing))  # names the old key, and has it not
    with pytest.raises(BadInput, match="not signed with the keys that it names"):
        read_request(tmp_path / "a")
    told = json.loads((tmp_path / "a").read_text())
    del told["old_signature"]
    (tmp_path / "a").write_text(json.dumps(told))
    with pytest.raises(BadInput, match="not signed"):
        read_request(tmp_path / "a")
    request = MembershipRequest(server.id, "north", thief.public, own.public["signing"])  # an old key of his own
    (tmp_path / "b").write_text(request.signed_by(thief.signing, own.signing))
    with pytest.raises(BadInput, match="replaces other keys than those of north"):
        admit(server.path, read_request(tmp_path / "b"))
    stranger = MembershipRequest(server.id, "nobody", thief.public, own.public["signing"])
    (tmp_path / "c").write_text(stranger.signed_by(thief.signing, own.signing))
    with pytest.raises(BadInput, match="nobody is no member, so it has no keys to replace"):
        admit(server.path, read_request(tmp_path / "c"))
    assert read_federation(server.path).clients["north"]["signing"] == known


def test_half_new_keys_are_refused(server: Federation, tmp_path: Path) -> None:
    kit, _ = admitted(server)
    old = SiteKeys.read(kit.path)
    half = SiteKeys(old.node, SiteKeys.make().signing, SiteKeys.make().box)
    (tmp_path / "half").write_text(
        MembershipRequest(server.id, "north", half.public, old.public["signing"]).signed_by(half.signing, old.signing)
    )
    with pytest.raises(BadInput, match="are those of north"):
        admit(server.path, read_request(tmp_path / "half"))


def test_lost_keys_are_replaced_on_the_servers_word(server: Federation) -> None:
    admitted(server)
    _, file = ask(server, folder="anew")
    assert admit(server.path, read_request(file), replace=True) == "replaced"
    assert read_federation(server.path).clients["north"] == read_request(file).keys
    assert [m.why for m in members(server.path)] == ["", "replaced"]


@pytest.mark.parametrize("step", range(5))
def test_a_kill_while_new_keys_are_taken(step: int, server: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    kit, _ = admitted(server)
    request, _ = request_rotation(kit.path)
    old = SiteKeys.read(kit.path).public
    calls = 0

    def killed(do: Callable[..., None]) -> Callable[..., None]:
        def perhaps(*arguments: Any) -> None:
            nonlocal calls
            calls += 1
            if calls > step:
                raise KeyboardInterrupt
            do(*arguments)

        return perhaps

    with monkeypatch.context() as dying:
        dying.setattr(os, "replace", killed(os.replace))
        with pytest.raises(KeyboardInterrupt):
            rotation.take_next_keys(kit.path)
    taken = step > 0  # from the first step on there is no way back
    now = open_kit(kit.path, kit.path)
    assert SiteKeys.read(kit.path).public == (request.keys if taken else old)
    assert now.earlier == ((old["signing"],) if taken else ()) and (kit.path / "next").exists() != taken
    assert not (kit.path / "taking").exists()


def test_a_kill_while_new_keys_are_made(server: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    kit, _ = admitted(server)
    with monkeypatch.context() as dying:
        dying.setattr(os, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            request_rotation(kit.path)
    assert not (kit.path / "next").exists() and open_kit(kit.path, kit.path) == kit
    assert request_rotation(kit.path)[0].replaces == read_federation(server.path).clients["north"]["signing"]
    assert not (kit.path / ".next.tmp").exists()


def test_a_trials_keys_and_an_own_folder_stay_what_they_are(server: Federation, tmp_path: Path) -> None:
    made = init(tmp_path / "other", "localhost", ["a"])
    trial = open_kit(made.path / "kits/a.kit", tmp_path / "site")
    with pytest.raises(BadInput, match="is of a trial"):
        request_rotation(trial.path)
    assert not (trial.path / "next").exists()
    kit, _ = ask(server)
    with pytest.raises(BadInput, match="leave --dir away"):
        open_kit(kit.path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_keys_are_never_overwritten(server: Federation, tmp_path: Path) -> None:
    kit, _ = ask(server)
    invitation = read_invitation(server.path / "invitation.json")
    before = everything(tmp_path)
    for name, folder, why in (
        ("north", kit.path, "is not empty, and keys are never overwritten"),
        ("north", kit.path.parent / "beside", "exists already"),
        ("../x", tmp_path / "x", "client '../x'"),
    ):
        with pytest.raises(BadInput, match=why):
            make_site(invitation, name, folder)
    assert everything(tmp_path) == before and not (kit.path.parent / "beside").exists()


def test_a_new_certificate_of_the_same_authority(server: Federation) -> None:
    ca = x509.load_pem_x509_certificate(server.ca.read_bytes())
    old = x509.load_pem_x509_certificate((server.path / "server.pem").read_bytes())
    before = everything(server.path)
    until = renew(server.path, 700)
    new = x509.load_pem_x509_certificate((server.path / "server.pem").read_bytes())
    new.verify_directly_issued_by(ca)
    assert new.serial_number != old.serial_number and new.public_key() == old.public_key()
    assert new.extensions.get_extension_for_class(x509.SubjectAlternativeName) == old.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert abs(until - datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=700)) < datetime.timedelta(minutes=5)
    after = everything(server.path)
    assert {name for name in after if after[name] != before[name]} == {"server.pem"} and not open_to_others(server.path)
    for days in (0, -1, 7301, 7300):  # the last: the authority is older than its certificate would be
        with pytest.raises(BadInput, match=f"{days} days"):
            renew(server.path, days)
    assert everything(server.path) == after


def test_an_expired_certificate_can_be_renewed(server: Federation) -> None:
    stale, _ = Authority.make("x", 1).certify("localhost", 0)
    (server.path / "server.pem").write_bytes(stale)
    with pytest.raises(BadInput, match="renew"):
        read_federation(server.path)
    admitted_meanwhile, file = ask(server)
    admit(server.path, read_request(file))
    renew(server.path, 365)
    assert list(read_federation(server.path).clients) == [admitted_meanwhile.client]


def test_many_commands_at_once_lose_nobody(server: Federation) -> None:
    names = [f"site{number}" for number in range(8)]
    requests = [read_request(ask(server, name)[1]) for name in names]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda request: admit(server.path, request), requests))
    assert sorted(read_federation(server.path).clients) == names


def test_a_lock_that_is_held_is_told(server: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    _, file = ask(server)
    monkeypatch.setattr(membership, "_PATIENCE", 0.05)
    with FileLock(server.path / ".federation.lock"), pytest.raises(BadInput, match="another command"):
        admit(server.path, read_request(file))


def test_keys_that_were_damaged_are_told(server: Federation) -> None:
    kit, _ = admitted(server)
    (kit.path / "earlier-keys.json").write_text("[1]")
    with pytest.raises(BadInput, match=r"earlier-keys.json cannot be read"):
        open_kit(kit.path, kit.path)
    (kit.path / "earlier-keys.json").unlink()
    for name, content in (("node.key", b"x"), ("node.key", private_bytes(SiteKeys.make().signing)), ("signing.key", b"x")):
        whole = (kit.path / name).read_bytes()
        (kit.path / name).write_bytes(content)
        with pytest.raises(BadInput, match=name):
            SiteKeys.read(kit.path)
        (kit.path / name).write_bytes(whole)
    (kit.path / "box.key").write_bytes((kit.path / "signing.key").read_bytes())
    with pytest.raises(BadInput, match="another kind; expected X25519"):
        _ = kit.box
