"""Messages in pieces: what is sent is what Flower itself would send, once, and what comes is put together or refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.task_identity import TaskIdentity

from unseen.federation.flower import objects, records
from unseen.federation.flower.objects import pull, push, record_of
from unseen.federation.flower.pieces import Pieces, size_told
from unseen.federation.flower.records import MESSAGE_TYPE, from_records, to_records
from unseen.federation.messages import SignedMessage

NODE = Node(node_id=7)


class Store:
    """As much of Flower's end as a message goes through: it asks for what it has not got, and counts what came."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.trees: list[Any] = []
        self.came: list[str] = []
        self.confirmed: list[str] = []

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        self.trees += request.message_object_trees
        levels = (level for tree in request.message_object_trees for level in objects._levels(tree))
        wanted = {one.object_id for level in levels for one in level} - self.contents.keys()
        return SimpleNamespace(objects_to_push=sorted(wanted), session_id="s")

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        self.contents[request.object_id] = request.object_content
        self.came.append(request.object_id)
        return SimpleNamespace(stored=True)

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        there = request.object_id in self.contents
        return SimpleNamespace(object_found=there, object_available=there, object_content=self.contents.get(request.object_id, b""))

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PIECE", 10)
    monkeypatch.setattr(records, "_SMALL", 7)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 7


@pytest.fixture
def pieces(tmp_path: Path) -> Pieces:
    return Pieces(tmp_path / "pieces")


def sent(store: Store, signed: SignedMessage, pieces: Pieces) -> Any:
    push(store, [Message(to_records(signed), 7, MESSAGE_TYPE)], NODE, 2, pieces)
    return store.trees[-1]


@pytest.mark.parametrize("size", [0, 1, 10, 25, 70])
def test_a_message_comes_as_it_was_sent(size: int, pieces: Pieces) -> None:
    store, signed = Store(), SignedMessage("{}", bytes(range(size)), b"signature")
    message = pull(store, sent(store, signed, pieces), NODE, 2, pieces, 1.0)
    assert from_records(message.content) == signed


def test_a_piece_comes_whole_where_flower_carried_it_whole(pieces: Pieces) -> None:
    """Small ones, and those of a site that reaches its server by a proxy."""
    store, signed = Store(), SignedMessage("{}", bytes(range(25)), b"signature")
    tree = sent(store, signed, pieces)
    for name, content in store.contents.items():
        if size := size_told(content):
            room = memoryview(bytearray(size))
            pieces.read(name, room)
            store.contents[name] = content + bytes(room)
    pieces.sweep()
    assert from_records(pull(store, tree, NODE, 2, pieces, 1.0).content) == signed


def test_a_piece_whose_file_is_gone_is_lost_on_the_way(pieces: Pieces) -> None:
    store = Store()
    tree = sent(store, SignedMessage("{}", bytes(range(25)), b"signature"), pieces)
    pieces.sweep()
    with pytest.raises(ObjectPullError, match="not there"):
        pull(store, tree, NODE, 2, pieces, 1.0)


def test_with_a_full_disk_a_message_goes_as_flower_carries_it(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode that was promised a piece waits for it for ever, and gives no other answer meanwhile."""

    def full(*_: Any) -> None:
        raise OSError(28, "no room")

    monkeypatch.setattr(pieces, "lay", full)
    store, signed = Store(), SignedMessage("{}", bytes(range(25)), b"signature")
    assert from_records(pull(store, sent(store, signed, pieces), NODE, 2, pieces, 1.0).content) == signed
    monkeypatch.setattr(store, "PushObject", lambda request: SimpleNamespace(stored=False))
    with pytest.raises(ObjectPushError):
        sent(store, SignedMessage("{}", bytes(range(30)), b"signature"), pieces)


def test_what_two_messages_have_in_common_is_sent_once(pieces: Pieces) -> None:
    store, shared = Store(), bytes(range(35))
    one, other = (SignedMessage("{}", shared, b"signature", prefix=prefix) for prefix in (b"a", b"other"))
    cut: dict[int, Any] = {}
    names = push(store, [Message(to_records(signed, cut), 7, MESSAGE_TYPE) for signed in (one, other)], NODE, 2, pieces)
    assert len(store.came) == len(set(store.came)) == 4 + 1 + 2 * 5  # pieces and header are shared
    assert names == [tree.object_id for tree in store.trees]
    for tree, signed in zip(store.trees, (one, other), strict=True):
        assert from_records(pull(store, tree, NODE, 2, pieces, 1.0).content) == signed.whole()


def test_pieces_have_the_names_and_the_content_that_flower_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a SuperLink, which checks them, takes them."""
    import flwr.app.message.array as arrays

    monkeypatch.setattr(arrays, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 10)
    data = bytes(range(33))
    both = [
        RecordDict({"payload": payload, "message": ConfigRecord({"header": "{}"})})
        for payload in (
            record_of("bytes", [data], {}),
            ArrayRecord({"bytes": Array(dtype="uint8", shape=(33,), stype="unseen", data=data)}),
        )
    ]
    ours, flowers = ({name: one.deflate() for name, one in get_all_nested_objects(each).items()} for each in both)
    assert ours == flowers and get_object_tree(both[0]) == get_object_tree(both[1])


def test_a_small_message_is_three_objects(pieces: Pieces) -> None:
    """Each object is several calls; four of the five steps of a secure sum are small."""
    store = Store()
    for size, number in ((0, 3), (7, 3), (8, 6)):
        store.came.clear()
        sent(store, SignedMessage("{}", bytes([size] * size), b"signature"), pieces)
        assert len(store.came) == number


def changed(store: Store, kind: bytes, body: bytes) -> None:
    (name,) = (name for name, content in store.contents.items() if content.startswith(kind + b" "))
    store.contents[name] = store.contents[name].partition(b"\0")[0] + b"\0" + body


@pytest.mark.parametrize(
    "entries",
    [{"shape": [3]}, {"shape": [99]}, {"shape": [-1]}, {"shape": [2**40]}, {"shape": [2, 2]}, {"shape": ["2"]}, {"arraychunk_ids": [0, 9]}],
)
def test_an_array_that_is_not_as_it_says_is_no_message(entries: dict[str, Any], pieces: Pieces) -> None:
    store = Store()
    tree = sent(store, SignedMessage("{}", bytes(range(25)), b"signature"), pieces)
    told = next(content for content in store.contents.values() if content.startswith(b"Array ")).partition(b"\0")[2]
    changed(store, b"Array", json.dumps(json.loads(told) | entries).encode())
    with pytest.raises(ValueError, match="no message"):
        pull(store, tree, NODE, 2, pieces, 1.0)
    assert store.confirmed == [tree.object_id]


def test_an_array_of_endless_pieces_is_no_message(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name one piece over and over, and each time the server would ask for it."""
    store = Store()
    tree = sent(store, SignedMessage("{}", bytes(range(25)), b"signature"), pieces)
    monkeypatch.setattr(objects, "MOST_PIECES", 2)
    with pytest.raises(ValueError, match="no message"):
        pull(store, tree, NODE, 2, pieces, 1.0)
    assert store.confirmed == [tree.object_id]


@pytest.mark.parametrize("kind", [b"Message", b"RecordDict", b"ArrayRecord", b"Array", b"ConfigRecord"])
@pytest.mark.parametrize("body", [b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff\xff", b'{"payload": 5}', b'{"shape": [1e999]}'])
def test_what_a_hostile_site_writes_is_no_message_and_does_not_stay(kind: bytes, body: bytes, pieces: Pieces) -> None:
    """And ends no run: whoever pulls it is told so in one way. Its pieces need not wait for the end of the run."""
    store = Store()
    tree = sent(store, SignedMessage("{}", bytes(range(25)), b"signature"), pieces)
    changed(store, kind, body)
    with pytest.raises(ValueError, match="no message"):
        pull(store, tree, NODE, 2, pieces, 1.0)
    assert store.confirmed == [tree.object_id]


def test_a_piece_that_does_not_come_is_waited_for_so_long_and_no_longer(pieces: Pieces) -> None:
    store = Store()
    tree = sent(store, SignedMessage("{}", bytes(range(25)), b"signature"), pieces)
    late = Store()
    late.contents = store.contents
    late.PullObject = lambda request: SimpleNamespace(object_found=True, object_available=False)  # type: ignore[method-assign]
    with pytest.raises(ObjectPullError, match="timeout"):
        pull(late, tree, NODE, 2, pieces, 0.1)
