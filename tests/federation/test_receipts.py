"""Receipts: what the server signed for holds a site to its ledger, wherever copies of it come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from unseen.cli.ledger import ledger_app
from unseen.errors import BadInput, RefusedReply
from unseen.federation.countersigning import check_receipt, sign_receipt
from unseen.federation.keys import public_hex
from unseen.federation.kits import Federation, Kit, init, open_kit, read_federation
from unseen.federation.messages import SignedMessage, open_message
from unseen.federation.server.receipts import Receipts
from unseen.federation.site.ledger import Ledger, verify
from unseen.federation.site.policy import Rejected


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init(tmp_path_factory.mktemp("made") / "server", "localhost", ["north", "south"]).path


@pytest.fixture
def federation(made: Path, tmp_path: Path) -> Federation:
    shutil.copytree(made, tmp_path / "server")
    return read_federation(tmp_path / "server")


@pytest.fixture
def kit(federation: Federation, tmp_path: Path) -> Kit:
    return open_kit(federation.path / "kits/north.kit", tmp_path / "north")


def ledger_of(kit: Kit, name: str = "ledger.jsonl") -> Ledger:
    return Ledger(kit.path / name, kit.signing, kit.server_key, kit.client, federation=kit.federation)


def lines_added(ledger: Ledger, count: int, size: int = 12) -> Ledger:
    for n in range(count):
        ledger.append([{"study": "ab" * 32, "round": n, "task": "train", "field": "model", "kind": "model", "bytes": size}])
    return ledger


def parts(ledger: Ledger) -> dict[Path, bytes]:
    """Ledger, head and receipts as they stand."""
    return {file: file.read_bytes() for file in ledger.file.parent.glob("ledger.jsonl*")}


def put(files: dict[Path, bytes]) -> None:
    for file, data in files.items():
        file.write_bytes(data)


def command(*words: object) -> Any:
    return CliRunner().invoke(ledger_app, [*map(str, words)])


def test_a_receipt_is_kept_at_both_ends(federation: Federation, kit: Kit) -> None:
    receipts, ledger = Receipts(federation), lines_added(ledger_of(kit), 2)
    assert receipts.last("north") is None
    receipts.sign("north", "study", ledger.head)
    given = Receipts(federation).last("north")
    assert given is not None and (given["number"], given["hash"], given["study"]) == (*ledger.head, "study")
    file = federation.path / "receipts/north.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    ledger.take_receipt(given)
    ledger.take_receipt(given)
    assert [json.loads(line) for line in (kit.path / "ledger.jsonl.receipts").read_text().splitlines()] == [given]
    receipts.sign("north", "study", ledger.head)  # nothing left since then: nothing to sign
    receipts.sign("north", "study", lines_added(ledger, 1).head)
    assert len(file.read_text().splitlines()) == 2 and receipts.last("south") is None
    assert verify(ledger.file, federation.public_key("north"), kit.server_key, file) == 4


def test_a_receipt_passes_for_nothing_else(federation: Federation) -> None:
    receipt = sign_receipt(federation.signing, federation.id, "north", "s", (3, "a" * 64))
    body = {name: value for name, value in receipt.items() if name != "signature"}
    signature = bytes.fromhex(receipt["signature"])
    public = federation.signing.public_key()
    public.verify(signature, b"unseen ledger receipt 1 " + json.dumps(body, separators=(",", ":"), sort_keys=True).encode())
    with pytest.raises(InvalidSignature):
        public.verify(signature, json.dumps(body).encode())
    with pytest.raises(RefusedReply):
        open_message(SignedMessage(json.dumps(body), b"", signature), public, "question", 1000)


@given(st.dictionaries(st.text(max_size=10), st.one_of(st.none(), st.integers(), st.text(max_size=70), st.floats()), max_size=8))
def test_no_mapping_but_a_receipt_is_one(odd: dict[str, Any]) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    good = sign_receipt(key, "f", "north", "s", (3, "a" * 64))
    assert check_receipt(good, key.public_key(), "north") == (3, "a" * 64)
    for receipt in (
        odd,
        {**good, **odd} if odd else None,
        [good],
        {**good, "number": True},
        {**good, "signature": good["signature"].upper()},
    ):
        with pytest.raises(RefusedReply):
            check_receipt(receipt, key.public_key(), "north")


@pytest.mark.parametrize("name", ["federation", "site", "study", "number", "hash", "time", "signature"])
def test_a_changed_receipt_is_refused(name: str, federation: Federation, kit: Kit) -> None:
    ledger = lines_added(ledger_of(kit), 3)
    receipt = sign_receipt(federation.signing, federation.id, "north", "s", ledger.head)
    other = {"number": 3, "hash": "b" * 64, "signature": "0" * 128}.get(name, "south")
    with pytest.raises(Rejected, match="receipt: "):
        ledger.take_receipt({**receipt, name: other})
    with pytest.raises(Rejected, match="signature is not the server's"):
        ledger.take_receipt(sign_receipt(kit.signing, federation.id, "north", "s", ledger.head))
    with pytest.raises(Rejected, match="it is of 'south', not of 'north'"):
        ledger.take_receipt(sign_receipt(federation.signing, federation.id, "south", "s", ledger.head))
    ledger.take_receipt(receipt)


@pytest.mark.parametrize(
    "head", [(0, "a" * 64), (1, "0" * 64), (1, "A" * 64), (-1, "a" * 64), (True, "a" * 64), (2**60, "a" * 64), "ab", 7, None, (1,)]
)
def test_the_server_signs_only_what_can_be_a_head(head: Any, federation: Federation) -> None:
    with pytest.raises(RefusedReply):
        Receipts(federation).sign("north", "s", head)
    assert Receipts(federation).last("north") is None


def test_the_server_refuses_a_ledger_that_went_back(federation: Federation, kit: Kit) -> None:
    receipts, ledger = Receipts(federation), lines_added(ledger_of(kit), 3)
    receipts.sign("north", "s", ledger.head)
    with pytest.raises(RefusedReply, match=r"has 3 lines, but .* line 4"):
        receipts.sign("north", "s", (3, "a" * 64))
    with pytest.raises(RefusedReply, match="line 4 of its ledger is not the one"):
        receipts.sign("north", "s", (4, "a" * 64))
    with pytest.raises(KeyError):
        receipts.sign("../../north", "s", ledger.head)


@pytest.mark.parametrize("how", ["an old copy of ledger and head", "all begun anew", "the end written anew"])
def test_who_has_the_sites_key_is_found_by_the_receipts(how: str, federation: Federation, kit: Kit) -> None:
    """Everything at the site is rewritten, consistently. Its own receipts find it, the server's file does, and its next question does."""
    receipts, ledger = Receipts(federation), lines_added(ledger_of(kit), 2)
    old = parts(ledger)
    receipts.sign("north", "s", lines_added(ledger, 3).head)
    last = receipts.last("north")
    assert last is not None
    ledger.take_receipt(last)
    kept = (kit.path / "ledger.jsonl.receipts").read_bytes()
    for file in kit.path.glob("ledger.jsonl*"):
        file.unlink()
    if how != "all begun anew":
        put(old)
    forged = lines_added(ledger_of(kit), 9 if how == "the end written anew" else 0, size=4)
    keys = federation.public_key("north"), kit.server_key
    assert verify(forged.file, *keys) == {"an old copy of ledger and head": 3, "all begun anew": 1, "the end written anew": 12}[how]
    file = federation.path / "receipts/north.jsonl"
    with pytest.raises(BadInput, match="receipt for line 6"):
        verify(forged.file, *keys, file)
    assert command("verify", kit.path).exit_code == 0 and command("verify", kit.path, "--receipts", file).exit_code == 2
    with pytest.raises(Rejected, match="for line 6 of this site's ledger, and there is no such line here"):
        forged.take_receipt(last)
    if how != "the end written anew":
        with pytest.raises(RefusedReply, match="it was cut, or begun anew"):
            receipts.sign("north", "s", forged.head)
    (kit.path / "ledger.jsonl.receipts").write_bytes(kept)
    with pytest.raises(BadInput, match=r"receipt for line 6 .*unseen ledger anew"):
        ledger_of(kit)
    with pytest.raises(BadInput, match="receipt for line 6"):
        verify(forged.file, *keys)


@pytest.mark.parametrize(
    "left", [["ledger.jsonl.receipts"], ["ledger.jsonl.receipts", "ledger.jsonl.head"], ["ledger.jsonl.receipts", "ledger.jsonl"]]
)
def test_receipts_alone_are_enough_to_miss_a_ledger(left: list[str], federation: Federation, kit: Kit) -> None:
    ledger = lines_added(ledger_of(kit), 2)
    ledger.take_receipt(sign_receipt(federation.signing, federation.id, "north", "s", ledger.head))
    for file in parts(ledger):
        if file.name not in left:
            file.unlink()
    with pytest.raises(BadInput, match="changed"):
        ledger_of(kit)
    assert sorted(file.name for file in kit.path.glob("ledger.jsonl*")) == sorted(left)


def test_changed_receipts_are_found_and_one_cut_short_by_a_kill_is_not_missed(federation: Federation, kit: Kit) -> None:
    ledger = lines_added(ledger_of(kit), 2)
    first = sign_receipt(federation.signing, federation.id, "north", "s", ledger.head)
    ledger.take_receipt(first)
    file = kit.path / "ledger.jsonl.receipts"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:50])
    ledger = lines_added(ledger_of(kit), 1)
    ledger.take_receipt(sign_receipt(federation.signing, federation.id, "north", "s", ledger.head))
    assert file.read_bytes().startswith(whole) and len(file.read_bytes().splitlines()) == 2
    file.write_bytes(whole.replace(b'"number":3', b'"number":2'))
    with pytest.raises(BadInput, match="line 1 is not a receipt"):
        ledger_of(kit)
    server = federation.path / "receipts/north.jsonl"
    receipts = Receipts(federation)
    receipts.sign("north", "s", ledger.head)
    server.write_bytes(server.read_bytes() + b'{"federa')
    receipts.sign("north", "s", lines_added(ledger, 1).head)
    last = receipts.last("north")
    assert last is not None and last["number"] == 5 and len(server.read_bytes().splitlines()) == 2


def test_a_lost_ledger_begins_anew_with_the_servers_leave(federation: Federation, kit: Kit) -> None:
    receipts, ledger = Receipts(federation), lines_added(ledger_of(kit), 5)
    receipts.sign("north", "s", ledger.head)
    last = receipts.last("north")
    for file in parts(ledger):
        file.unlink()
    anew = Ledger(ledger.file, kit.signing, kit.server_key, "north", federation=kit.federation, receipt=last)
    assert next(anew.entries())["receipt"] == last
    with pytest.raises(RefusedReply):
        receipts.sign("north", "s", anew.head)
    assert command("anew", federation.path, "nroth").exit_code == 2
    assert command("anew", federation.path, "north").exit_code == 0
    leave = receipts.last("north")
    assert leave is not None and leave["number"] == 0
    anew.take_receipt(leave)
    receipts.sign("north", "s", anew.head)
    file = federation.path / "receipts/north.jsonl"
    assert verify(anew.file, federation.public_key("north"), kit.server_key, file) == 1
    assert [json.loads(line)["number"] for line in file.read_text().splitlines()] == [6, 0, 1]  # what was, stays


def test_show_prints_refusals_and_fits_a_narrow_screen(kit: Kit) -> None:
    ledger = lines_added(ledger_of(kit), 1)
    reason = "kinds: low is a spectrum \x1b[31m" + "and so on " * 20
    model = {"field": "model", "kind": "update", "network": "task", "part": "whole", "shape": "62 tensors", "bytes": 44_700_000}
    about = {"study": "cd" * 32, "round": 12, "ask": 1, "task": "aggregation.assess"}
    ledger.append([{**about, **model, "sha256": "ef" * 32, "noise": 1.0, "epsilon": 2.5}, {**about, "kind": "refusal", "reason": reason}])
    ledger.append(
        [{"kind": "approval", "study": "cd" * 32, "by": "rule", "split": "seed 7, validation 0.1", "train": 540, "validation": 60}]
    )
    ledger.append([{**about, **model, "masked": True}, {"kind": "approval", "by": "hand", "split": "", "train": None, "validation": None}])
    shown = command("show", kit.path).output
    assert max(map(len, shown.splitlines())) <= 80 and "\x1b" not in shown
    for words in (
        "begins",
        "round 12",
        "aggregation.assess",
        "update (task whole)",
        "44,700,000 bytes",
        "epsilon 2.5",
        "efefefefefef",
        "REFUSED: kinds: low",
        "approved by rule; seed 7, validation 0.1; told: 540 to train, 60 to validate",
        "44,700,000 bytes under a mask",
        "approved by a person",
        "told: no counts",
    ):
        assert words in " ".join(shown.split())
    assert "REFUSED" not in command("show", kit.path, "--study", "abab").output
    entries = [json.loads(line) for line in command("show", kit.path, "--json").output.splitlines()]
    assert entries == list(ledger.entries())


def test_verify_on_the_command_line(federation: Federation, kit: Kit, tmp_path: Path) -> None:
    ledger = lines_added(ledger_of(kit), 3)
    Receipts(federation).sign("north", "s", ledger.head)
    file = federation.path / "receipts/north.jsonl"
    assert "4 lines" in command("verify", kit.path, "--receipts", file).output
    copy = tmp_path / "copy"
    copy.mkdir()
    for part, data in parts(ledger).items():
        (copy / part.name).write_bytes(data)
    assert "no signing.key" in " ".join(command("verify", copy).output.split())
    key, text = public_hex(federation.public_key("north")), tmp_path / "key.txt"
    text.write_text(key + "\n")
    for given_key in (key, text, kit.path / "signing.key"):
        result = command("verify", copy / "ledger.jsonl", "--key", given_key, "--receipts", file)
        assert result.exit_code == 0 and "4 lines" in result.output
    assert command("verify", copy, "--key", public_hex(federation.public_key("south"))).exit_code == 2
    assert command("verify", copy, "--key", "x" * 64).exit_code == 2 and command("verify", copy, "--key", "nowhere").exit_code == 2
    assert command("verify", kit.path, "--receipts", tmp_path / "none.jsonl").exit_code == 2
    (copy / "ledger.jsonl.head").unlink()
    assert command("verify", copy, "--key", key).exit_code == 2
    ledger.file.write_bytes(ledger.file.read_bytes().replace(b'"bytes":12', b'"bytes":13', 1))
    result = command("verify", kit.path)
    assert result.exit_code == 2 and "line 2 is not as it was written" in " ".join(result.output.split())
