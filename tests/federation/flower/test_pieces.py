"""Pieces in files: through the gate in and out, what a site cannot do with them, and that none stays behind."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectRequest, PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from one_piece import BODY, HEAD, NAME, files
from unseen.errors import BadInput
from unseen.federation.flower import pieces as pieces_module
from unseen.federation.flower.node import Node as SiteNode
from unseen.federation.flower.passage import Passage
from unseen.federation.flower.pieces import MOST_PIECES, Pieces, forget_ended_runs, head_of, keep_in_files

ANNOUNCE, GIVE, TAKE = b"/v1/fleet/push-messages", b"/v1/fleet/push-object", b"/v1/fleet/pull-object"


class Flower:
    """The application behind: what it was asked, and what it says."""

    def __init__(self, says: Any, status: int = 200) -> None:
        self.asked: list[bytes] = []
        self._says, self._status = says.SerializeToString(), status

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        assert dict(scope["headers"])[b"content-length"] == str(len(body)).encode()
        self.asked.append(body)
        await send({"type": "http.response.start", "status": self._status, "headers": [(b"content-length", str(len(self._says)).encode())]})
        await send({"type": "http.response.body", "body": self._says})


def asked(app: Any, call: bytes, body: bytes, step: int = 10_000) -> tuple[int, bytes]:
    """The status and the body of the answer, to a body that comes in parts of this size."""
    parts = [{"type": "http.request", "body": body[at : at + step], "more_body": at + step < len(body)} for at in range(0, len(body), step)]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(part: Any) -> None:
        sent.append(part)

    scope = {"type": "http", "raw_path": call, "headers": [(b"content-length", str(len(body)).encode())]}
    asyncio.run(app(scope, receive, send))
    if not sent:
        return 0, b""
    whole = b"".join(part["body"] for part in sent[1:])
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(whole)).encode()
    return sent[0]["status"], whole


def given(name: str = NAME, content: bytes = HEAD + BODY, session: str = "s") -> bytes:
    return bytes(
        PushObjectRequest(node=Node(node_id=7), run_id=5, object_id=name, object_content=content, session_id=session).SerializeToString()
    )


@pytest.mark.parametrize("step", [7, 100, 10_000, 10**6])
def test_a_piece_goes_into_a_file_and_flower_sees_its_head(pieces: Pieces, step: int) -> None:
    flower = Flower(PushObjectResponse(stored=True))
    status, said = asked(
        Passage(flower, pieces, lambda name: True), GIVE, given() if step > 1 else given()[:3000] + given()[3000:], max(step, 7)
    )
    assert status == 200 and PushObjectResponse.FromString(said).stored
    request = PushObjectRequest.FromString(flower.asked[0])
    assert (request.object_content, request.object_id, request.run_id, request.session_id) == (HEAD, NAME, 5, "s")
    assert files(pieces) == [NAME] and pieces.path(NAME).read_bytes() == BODY


def test_what_is_no_piece_or_a_small_one_goes_on_as_it_is(pieces: Pieces) -> None:
    for content in (b"ConfigRecord  5\0hello", head_of(5) + b"hello", b"ConfigRecord  200000\0" + bytes(200000), HEAD + BODY[1:], b""):
        flower = Flower(PushObjectResponse(stored=True))
        asked(Passage(flower, pieces, lambda name: True), GIVE, given(content=content))
        assert flower.asked == [given(content=content)] and not files(pieces)


def test_what_is_large_and_no_piece_does_not_reach_flower(pieces: Pieces) -> None:
    flower = Flower(PushObjectResponse(stored=True))
    assert asked(Passage(flower, pieces, lambda name: True), GIVE, given(content=bytes(10 * 2**20)), 2**20)[0] == 413
    assert not flower.asked and not files(pieces)


def test_bytes_under_another_name_get_no_file_and_do_not_reach_flower(pieces: Pieces) -> None:
    flower = Flower(PushObjectResponse(stored=True))
    tail = PushObjectRequest(object_id="0" * 64).SerializeToString()  # the last one counts
    path = PushObjectRequest(object_id="../../escaped").SerializeToString()
    for body in (given("1" * 64), given("../escaped"), given() + tail, given() + path, given() + b"\xff", given() + bytes(9000)):
        assert asked(Passage(flower, pieces, lambda name: True), GIVE, body)[0] == 400
    assert not flower.asked and not files(pieces)


def test_an_object_without_a_session_does_not_reach_flower(pieces: Pieces) -> None:
    """Flower would take it for part of a question that the server is giving, and refuse the server's own."""
    flower = Flower(PushObjectResponse(stored=True))
    passage = Passage(flower, pieces, lambda name: True)
    for content in (HEAD + BODY, b"ConfigRecord  5\0hello", b"ConfigRecord  200000\0" + bytes(200000), b""):
        assert asked(passage, GIVE, given(content=content, session=""))[0] == 400
    assert asked(passage, GIVE, b"\xff")[0] == 400
    assert not flower.asked and not files(pieces)


def test_a_piece_that_stops_in_the_middle_leaves_nothing(pieces: Pieces) -> None:
    flower = Flower(PushObjectResponse(stored=True))
    passage = Passage(flower, pieces, lambda name: True)
    parts = [{"type": "http.request", "body": given()[:50_000], "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return parts.pop(0)

    async def send(part: Any) -> None:
        raise AssertionError(part)

    asyncio.run(passage({"type": "http", "raw_path": GIVE, "headers": []}, receive, send))
    assert not flower.asked and not files(pieces)
    assert asked(passage, GIVE, given()[:100_000])[0] == 400 and not files(pieces)


@pytest.mark.parametrize(("status", "stored"), [(200, False), (401, True), (500, True)])
def test_a_piece_that_flower_does_not_take_is_removed_unless_somebody_else_gives_it(pieces: Pieces, status: int, stored: bool) -> None:
    """Or a site could fill the disk."""
    flower = Flower(PushObjectResponse(stored=stored), status)
    assert asked(Passage(flower, pieces, lambda name: False), GIVE, given())[0] == status and not files(pieces)
    assert asked(Passage(flower, pieces, lambda name: True), GIVE, given())[0] == status and files(pieces) == [NAME]


def test_a_piece_over_which_flower_fails_is_removed(pieces: Pieces) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("no response")

    for known in (False, True):
        with pytest.raises(RuntimeError, match="no response"):
            asked(Passage(fails, pieces, {NAME: known}.__getitem__), GIVE, given())
        assert files(pieces) == [NAME] * known


def test_a_site_cannot_fill_the_disk_to_its_last_byte(pieces: Pieces, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The server's own files need some of it; and the log says what it was."""
    flower = Flower(PushObjectResponse(stored=True))
    passage = Passage(flower, pieces, lambda name: True)
    free = pieces_module._ROOM + len(given()) - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with caplog.at_level(logging.ERROR):
        assert asked(passage, GIVE, given())[0] == 503
        assert asked(passage, GIVE, given(content=b"ConfigRecord  300000\0" + bytes(300000)))[0] == 503  # Flower's database is there too
    assert not flower.asked and not files(pieces) and caplog.text.count("No space left") == 1
    assert asked(passage, GIVE, given(content=b"small"))[0] == 200
    free += 1
    assert asked(passage, GIVE, given())[0] == 200


def test_what_is_on_its_way_counts_where_the_disk_is_nearly_full(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free space is looked at when a piece begins to come, and several come at once."""
    whole, statuses = given(), list[int]()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=pieces_module._ROOM + 2 * len(whole)))
    passage = Passage(Flower(PushObjectResponse(stored=True)), pieces, lambda name: True)
    scope = {"type": "http", "raw_path": GIVE, "headers": [(b"content-length", str(len(whole)).encode())]}

    async def one() -> None:
        parts = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]

        async def receive() -> Any:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(part: Any) -> None:
            if part["type"] == "http.response.start":
                statuses.append(part["status"])

        await passage(scope, receive, send)

    async def three() -> None:
        await asyncio.gather(one(), one(), one())

    asyncio.run(three())
    assert sorted(statuses) == [200, 200, 503]
    asyncio.run(three())  # what has come, or was turned away, counts no more
    assert sorted(statuses) == [200, 200, 200, 200, 503, 503]


def announced(root: str, pieces: int, *names: str, answers: str = "question", source: int = 7) -> bytes:
    tree = ObjectTree(object_id=root, children=[ObjectTree(object_id=str(number)) for number in range(pieces)])
    told = [Metadata(message_id=name, reply_to_message_id=answers, src_node_id=source) for name in names]
    request = PushMessagesRequest(node=Node(node_id=7), message_object_trees=[tree])
    request.messages_list.extend(MessageProto(metadata=each) for each in told)
    return bytes(request.SerializeToString())


def test_an_answer_that_flower_would_not_find_again_is_turned_away(pieces: Pieces) -> None:
    """Nobody would look at how much it is, and its pieces would stay until the run ends."""
    flower = Flower(PushObjectResponse())
    passage = Passage(flower, pieces, lambda name: True)
    hostile = [announced("b", 3, "a"), announced("a", MOST_PIECES, "a"), announced("a", 3, "a", "c"), announced("a", 3), b"\xff"]
    for body in hostile:
        assert asked(passage, ANNOUNCE, body)[0] == 400
    assert not flower.asked
    hostile = [announced("a", 3, "a", answers=""), announced("a", 3, "a", source=8), announced("a", 3, "a", source=0)]
    for body in hostile:  # a question of the site's own, which would be handed to the server; an answer in the name of another site
        assert asked(passage, ANNOUNCE, body)[0] == 400
    assert not flower.asked
    honest = announced("a", MOST_PIECES - 1, "a")
    assert asked(passage, ANNOUNCE, honest, 100)[0] == 200 and flower.asked == [honest]


def test_others_of_the_machine_cannot_enter_the_folder(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        Pieces(tmp_path / "flower/pieces").lay(NAME, BODY)
        (tmp_path / "old").mkdir(mode=0o777)
        Pieces(tmp_path / "old")
    finally:
        os.umask(before)
    found = (tmp_path / "flower", tmp_path / "flower/pieces", tmp_path / "old", tmp_path / "flower/pieces" / NAME)
    assert [stat.S_IMODE(one.stat().st_mode) for one in found] == [0o700, 0o700, 0o700, 0o600]
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="no folder"):
        Pieces(tmp_path / "file")


def test_a_link_in_place_of_a_piece_is_not_followed(pieces: Pieces, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(BODY)
    pieces.path(NAME).symlink_to(secret)
    with pytest.raises(LookupError):
        pieces.open(NAME, len(BODY))
    assert not pieces.holds(NAME, HEAD)
    pieces.lay(NAME, BODY[::-1])
    assert secret.read_bytes() == BODY and not pieces.path(NAME).is_symlink()


def test_a_piece_goes_out_of_its_file_as_flower_would_write_it(pieces: Pieces) -> None:
    says = PullObjectResponse(object_found=True, object_available=True, object_content=HEAD)
    asks = PullObjectRequest(node=Node(node_id=7), run_id=5, object_id=NAME).SerializeToString()
    passage = Passage(Flower(says), pieces, lambda name: True)
    assert not PullObjectResponse.FromString(asked(passage, TAKE, asks)[1]).object_found  # it is not there
    pieces.lay(NAME, BODY[1:])
    assert not PullObjectResponse.FromString(asked(passage, TAKE, asks)[1]).object_found  # not whole
    pieces.lay(NAME, BODY)
    says.object_content = HEAD + BODY
    assert asked(passage, TAKE, asks) == (200, says.SerializeToString(deterministic=True))


def test_what_flower_says_otherwise_goes_out_as_it_is(pieces: Pieces) -> None:
    asks = PullObjectRequest(object_id="../x").SerializeToString()
    for says, status in (
        (PullObjectResponse(object_found=True), 200),
        (PullObjectResponse(object_content=b"small"), 200),
        (PullObjectResponse(), 401),
    ):
        assert asked(Passage(Flower(says, status), pieces, lambda name: True), TAKE, asks) == (status, says.SerializeToString())


def test_a_store_takes_a_head_for_a_piece_that_lies_here_and_nothing_else(pieces: Pieces) -> None:
    class Store(InMemoryObjectStore):  # type: ignore[misc]
        pass

    keep_in_files(Store, pieces)
    store = Store()
    store.preregister(5, ObjectTree(object_id=NAME))
    with pytest.raises(ValueError, match="does not match"):
        store.put(NAME, HEAD)
    pieces.lay(NAME, BODY[1:])
    with pytest.raises(ValueError, match="does not match"):
        store.put(NAME, HEAD)
    with pytest.raises(ValueError, match="does not match"):
        store.put(NAME, b"another content")
    pieces.lay(NAME, BODY)
    store.put(NAME, HEAD)
    assert store.get(NAME) == HEAD
    store.delete("../no name")
    store.delete(NAME)
    assert store.get(NAME) is None and not files(pieces)


def test_a_sweep_leaves_what_is_wanted(pieces: Pieces) -> None:
    pieces.lay(NAME, BODY)
    (pieces._folder / "a folder").mkdir()
    pieces.sweep([NAME])
    (pieces._folder / "a folder").rmdir()
    with pieces.arriving() as begun:
        begun.write(b"half of")
        assert len(files(pieces)) == 2
        pieces.sweep([NAME])
        assert files(pieces) == [NAME]
    pieces.sweep()
    assert not files(pieces)


def test_what_was_left_behind_goes_while_a_store_works(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process that was killed, or by a call that came too late for its message. What is wanted, or new, stays."""

    class Store(InMemoryObjectStore):  # type: ignore[misc]
        pass

    keep_in_files(Store, pieces)
    store, new = Store(), "1" * 64
    store.preregister(5, ObjectTree(object_id=NAME))
    for name in (NAME, "0" * 64, new, "arriving-x"):
        (pieces._folder / name).write_bytes(BODY)
        if name != new:
            os.utime(pieces._folder / name, (time.time() - 2 * pieces_module._OLD,) * 2)
    store.delete("2" * 64)
    assert files(pieces) == sorted([NAME, new])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_what_is_left_of_a_run_goes_when_it_has_ended(pieces: Pieces, tmp_path: Path) -> None:
    """A late answer is fetched by nobody."""

    class Store(SqlObjectStore):  # type: ignore[misc]
        pass

    keep_in_files(Store, pieces)
    store, other = Store(str(tmp_path / "state.db")), "1" * 64
    store.initialize()
    for run, name in ((2**64 - 5, NAME), (6, other)):
        store.preregister(run, ObjectTree(object_id="f" * 63 + str(run % 10), children=[ObjectTree(object_id=name)]))
        pieces.lay(name, BODY)
    told = {2**64 - 5: SimpleNamespace(status="finished"), 6: SimpleNamespace(status="running")}
    state = SimpleNamespace(object_store=store, get_run_status=lambda runs: {run: told[run] for run in runs})
    state.cleanup_run = store.delete_objects_in_run
    forget_ended_runs(state)
    assert files(pieces) == [other] and NAME not in store and other in store


def test_a_site_that_ends_leaves_nothing_of_what_it_was_asked(tmp_path: Path) -> None:
    kit: Any = SimpleNamespace(path=tmp_path, server="localhost:1")
    site = SiteNode(kit, None, lambda event: None)
    site._pieces.lay(NAME, BODY)
    site.close()
    assert not files(site._pieces)
