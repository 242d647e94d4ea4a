"""The ledger: one changed byte, a missing half and a new start are found; a kill while writing is not mistaken for either."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unseen.errors import BadInput
from unseen.federation.keys import public_hex
from unseen.federation.site import ledger as ledger_module
from unseen.federation.site.ledger import Ledger, read_ledger, verify

KEY, SERVER, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n] * 32)) for n in (1, 2, 3))


def opened(file: Path, key: Ed25519PrivateKey = KEY, **more: Any) -> Ledger:
    return Ledger(file, key, SERVER.public_key(), "north", **more)


def filled(folder: Path, lines: int = 3) -> Path:
    """A start, and `lines` entries."""
    ledger = opened(folder / "ledger.jsonl", federation="f")
    for n in range(lines):
        ledger.append([{"study": "r", "round": n, "field": "model", "bytes": 10 * n}])
    return ledger.file


def head_of(file: Path) -> Path:
    return file.with_name("ledger.jsonl.head")


def verified(file: Path, key: Ed25519PrivateKey = KEY, **more: Any) -> int:
    return verify(file, key.public_key(), SERVER.public_key(), **more)


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def test_lines_are_chained_signed_and_readable_by_the_owner_alone(tmp_path: Path) -> None:
    file = filled(tmp_path)
    assert verified(file) == 4
    before = "0" * 64
    for number, line in enumerate(lines_of(file), 1):  # checked here without the module's own functions
        entry = json.loads(line)
        assert entry["number"] == number and entry["previous"] == before
        body = line[: line.rindex(b',"hash":')] + b"}"
        before = entry["hash"]
        assert before == hashlib.sha256(body).hexdigest()
        KEY.public_key().verify(bytes.fromhex(entry["signature"]), b"unseen ledger entry 1 " + body)
        with pytest.raises(InvalidSignature):
            KEY.public_key().verify(bytes.fromhex(entry["signature"]), body)
    assert head_of(file).read_text().split()[:2] == ["4", before]
    assert file.stat().st_mode & 0o777 == 0o600
    again = opened(file)
    assert again.head == (4, before) and [e["kind"] for e in again.entries() if "kind" in e] == ["start"]
    again.append([{"study": "later"}])
    assert verified(file) == 5


def test_the_start_says_whose_ledger_it_is(tmp_path: Path) -> None:
    start = next(read_ledger(filled(tmp_path, 0)))
    mine, servers = public_hex(KEY.public_key()), public_hex(SERVER.public_key())
    assert (start["kind"], start["federation"], start["site"], start["key"], start["server"]) == ("start", "f", "north", mine, servers)
    with pytest.raises(BadInput, match="ledger of 'north', not of 'south'"):
        Ledger(tmp_path / "ledger.jsonl", KEY, SERVER.public_key(), "south")


def test_an_entry_cannot_begin_anew_nor_bring_its_own_number(tmp_path: Path) -> None:
    ledger = opened(filled(tmp_path))
    for entry in ({"kind": "start"}, {"number": 9}, {"hash": "x"}, {"time": "yesterday"}):
        with pytest.raises(ValueError, match="an entry cannot bring"):
            ledger.append([{"study": "s"}, entry])
    with pytest.raises(TypeError):
        ledger.append([{"shape": object()}])
    ledger.append([])
    assert verified(ledger.file) == 4


def test_a_number_that_is_no_json_is_written_as_text(tmp_path: Path) -> None:
    ledger = opened(filled(tmp_path, 0))
    ledger.append([{"epsilon": math.inf, "shape": (1, [2, -math.inf])}])
    assert list(ledger.entries())[1]["epsilon"] == "inf" and list(ledger.entries())[1]["shape"] == [1, [2, "-inf"]]
    assert b"Infinity" not in ledger.file.read_bytes() and opened(ledger.file).head[0] == 2


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), flip=st.integers(1, 255), part=st.sampled_from(["ledger.jsonl", "ledger.jsonl.head"]))
def test_one_changed_byte_is_found(position: int, flip: int, part: str, tmp_path: Path) -> None:
    if not (tmp_path / "ledger.jsonl").exists():
        filled(tmp_path, 2)
    file = tmp_path / part
    whole = file.read_bytes()
    data = bytearray(whole)
    data[position % len(data)] ^= flip
    file.write_bytes(bytes(data))
    for look in (verified, opened):
        with pytest.raises(BadInput, match="changed"):
            look(tmp_path / "ledger.jsonl")
    file.write_bytes(whole)
    assert verified(tmp_path / "ledger.jsonl") == 3


Damage = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize("head", ["kept", "deleted"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda n: n[:-1],
        lambda n: n[1:],
        lambda n: [n[0], n[2], n[1], n[3]],
        lambda n: [*n[:2], n[1], *n[2:]],
        lambda n: n[:1],
        lambda n: [],
    ],
    ids=["end cut", "start removed", "moved", "doubled", "all but the start cut", "emptied"],
)
def test_a_missing_or_moved_line_is_found_and_never_mended(damage: Damage, head: str, tmp_path: Path) -> None:
    file = filled(tmp_path)
    assert verified(file) == 4
    file.write_bytes(b"".join(damage(lines_of(file))))
    if head == "deleted":
        head_of(file).unlink()
    left = file.read_bytes()
    for look in (verified, opened, opened, verified):
        with pytest.raises(BadInput, match="changed"):
            look(file)
    assert file.read_bytes() == left


@pytest.mark.parametrize("left", ["ledger.jsonl", "ledger.jsonl.head"])
def test_one_half_alone_is_a_changed_ledger(left: str, tmp_path: Path) -> None:
    file = filled(tmp_path)
    ({file, head_of(file)} - {tmp_path / left}).pop().unlink()
    for look in (verified, opened):
        with pytest.raises(BadInput, match=r"missing.*changed"):
            look(file)
    assert [one.name for one in tmp_path.iterdir()] == [left]


def test_entries_of_another_key_are_found(tmp_path: Path) -> None:
    """Somebody without the site's key who writes the whole ledger anew, head and all, or goes on with it."""
    file = filled(tmp_path)
    for look in (verified, opened):
        with pytest.raises(BadInput, match="not signed by this site"):
            look(file, OTHER)
    forged = tmp_path / "forged"
    forged.mkdir()
    other = opened(forged / "ledger.jsonl", OTHER)
    other.append([{"study": "r"}] * 3)
    file.write_bytes(b"".join([*lines_of(file)[:1], *lines_of(other.file)[1:]]))
    with pytest.raises(BadInput, match="line 2 is not as it was written"):
        verified(file)


@pytest.mark.parametrize(
    "spelling", [(b'"number":2', b'"number": 2'), (b'"number":2', b'"number":1,"number":2'), (b"model", b"mod\\u0065l")]
)
def test_another_spelling_of_the_same_entry_is_found(spelling: tuple[bytes, bytes], tmp_path: Path) -> None:
    file = filled(tmp_path)
    file.write_bytes(file.read_bytes().replace(*spelling, 1))
    with pytest.raises(BadInput, match="line 2 cannot be read"):
        verified(file)


def test_the_head_of_another_ledger_of_the_same_site_is_found(tmp_path: Path) -> None:
    """It has as many lines, and the site signed it."""
    file, other = filled(tmp_path), tmp_path / "other"
    other.mkdir()
    opened(other / "ledger.jsonl").append([{"study": "another"}] * 3)
    head_of(file).write_bytes(head_of(other / "ledger.jsonl").read_bytes())
    for look in (verified, opened):
        with pytest.raises(BadInput, match="line 4 is not the one that its head names"):
            look(file)


def test_a_second_start_in_a_chain_is_found_even_if_the_site_signed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(filled(tmp_path))
    plain = ledger_module.signed_line
    key = public_hex(KEY.public_key())
    monkeypatch.setattr(ledger_module, "signed_line", lambda body, by: plain({**body, "kind": "start", "site": "north", "key": key}, by))
    ledger.append([{"study": "r"}])
    for look in (verified, opened):
        with pytest.raises(BadInput, match="begins anew at line 5"):
            look(ledger.file)


def test_keys_are_rotated_and_never_go_back(tmp_path: Path) -> None:
    file, old, new = filled(tmp_path), public_hex(KEY.public_key()), public_hex(OTHER.public_key())
    opened(file, OTHER, earlier=[old]).append([{"study": "r"}])
    assert [(e.get("kind"), e.get("key")) for e in read_ledger(file)][4] == ("key", new)
    assert verified(file, OTHER, earlier=[old]) == 6
    with pytest.raises(BadInput, match="not signed by this site"):
        verified(file, OTHER)
    with pytest.raises(BadInput, match="not signed by this site"):
        verified(file, KEY)
    third = opened(file, SERVER, earlier=[new, old])  # in whatever order they are named
    assert third.head[0] == 7 and verified(file, SERVER, earlier=[old, new]) == 7
    chain = Ledger.__new__(Ledger)
    chain.__dict__ |= {**third.__dict__, "_key": KEY}  # who stole the first key goes on with it
    for stolen in ({"study": "stolen"}, {"kind": "key", "key": old, "before": new}):
        before = {part: part.read_bytes() for part in (file, head_of(file))}
        chain.append([stolen])
        with pytest.raises(BadInput, match="line 8 was not signed"):
            verified(file, SERVER, earlier=[old, new])
        for part, data in before.items():
            part.write_bytes(data)
        chain.__dict__ |= {**third.__dict__, "_key": KEY, "_hashes": third._hashes[:7]}


def test_a_new_key_without_its_entry_is_found(tmp_path: Path) -> None:
    file = filled(tmp_path)
    ledger = opened(file)
    ledger._key = OTHER
    ledger.append([{"study": "r"}])
    with pytest.raises(BadInput, match="line 5 was not signed"):
        verified(file, OTHER, earlier=[public_hex(KEY.public_key())])


def stages(folder: Path, lines: int) -> list[tuple[bytes | None, bytes | None]]:
    """What lies on the disk after each step of a new ledger and of one append: (ledger, head)."""
    file = folder / "ledger.jsonl"
    seen: list[tuple[bytes | None, bytes | None]] = []
    note = lambda: seen.append(tuple(f.read_bytes() if f.exists() else None for f in (file, head_of(file))))  # type: ignore[arg-type]  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        plain_append, plain_write = ledger_module.append_whole, ledger_module.write_atomically
        patch.setattr(ledger_module, "write_atomically", lambda path, data: (note(), plain_write(path, data), note()))
        patch.setattr(ledger_module, "append_whole", lambda *a, **k: (note(), plain_append(*a, **k), note()))
        ledger = opened(file)
        ledger.append([{"study": "r", "field": n} for n in range(lines)])
    return list(dict.fromkeys(seen))


def test_a_kill_between_any_two_steps_or_bytes_is_survived(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    states = stages(tmp_path / "plan", 3)
    assert len(states) == 6  # nothing; a head for no lines; the start; its head; three lines; their head
    file = tmp_path / "ledger.jsonl"
    for (ledger, head), (after, _) in zip(states, [*states[1:], states[-1]]):
        longer = after if after and after != ledger else (ledger or b"")
        for cut in {len(ledger or b""), len(longer), *range(len(ledger or b""), len(longer), 97), len(longer) - 1}:
            if cut < len(ledger or b""):
                continue
            for path, data in ((file, longer[:cut] if ledger is not None or cut else None), (head_of(file), head)):
                path.unlink(missing_ok=True)
                if data is not None:
                    path.write_bytes(data)
            if not file.exists() and head is None:
                continue  # nothing was written at all
            if file.exists() and head is None:
                pytest.fail("the ledger is written before its head is there")
            again = opened(file)
            again.append([{"study": "after"}])
            count = max(1, longer[:cut].count(b"\n"))
            assert verified(file) == count + 1
            assert lines_of(file)[: longer[:cut].count(b"\n")] == longer[:cut].splitlines(keepends=True)[: longer[:cut].count(b"\n")]


def test_verify_tells_a_kill_from_a_change(tmp_path: Path) -> None:
    file = filled(tmp_path)
    head = head_of(file).read_bytes()
    opened(file).append([{"study": "x"}])
    head_of(file).write_bytes(head)
    file.write_bytes(file.read_bytes() + b'{"half')
    assert verified(file) == 5  # the site may be writing at this very moment
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(BadInput, match="line 6 cannot be read"):
        verified(file)


def test_a_full_disk_leaves_the_ledger_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(filled(tmp_path))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            ledger.append([{"study": "lost"}])
    ledger.append([{"study": "kept"}])
    assert verified(ledger.file) == 5 and [e.get("study") for e in read_ledger(ledger.file)][-1] == "kept"


def test_lines_that_a_disk_takes_in_part_are_taken_back(tmp_path: Path) -> None:
    """The kernel takes what still fits and refuses the rest, as a full disk does; the limit is lifted again afterwards."""
    resource = pytest.importorskip("resource")
    ledger, before = opened(filled(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ledger.file.stat().st_size + 600, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            ledger.append([{"study": "lost", "field": n} for n in range(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    ledger.append([{"study": "kept"}])
    assert verified(ledger.file) == 5 and [e.get("study") for e in read_ledger(ledger.file)][-1] == "kept"


def test_two_processes_cannot_write_one_ledger(tmp_path: Path) -> None:
    first, second = opened(filled(tmp_path)), opened(tmp_path / "ledger.jsonl")
    first.append([{"study": "r"}])
    with pytest.raises(BadInput, match="another process"):
        second.append([{"study": "r"}])
    first.file.unlink()
    with pytest.raises(BadInput, match="changed"):
        first.append([{"study": "r"}])


def test_many_entries_cost_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, calls, plain = opened(filled(tmp_path)), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(handle), plain(handle)))
    ledger.append([{"field": n} for n in range(500)])
    assert len(calls) == 3 and verified(ledger.file) == 504  # the lines, the head, and the head's name


def test_there_must_be_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no ledger"):
        verified(tmp_path / "ledger.jsonl")
    with pytest.raises(BadInput, match="no ledger"):
        list(read_ledger(tmp_path / "ledger.jsonl"))
