"""Messages through Flower, in pieces: each piece is hashed once, and goes through a file.

Flower names every object by its hash and sends what the other end has not got. Its own way lays a piece out anew, and hashes it anew, each
time it looks at its name; and it holds all pieces of a message beside the message, on either end.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from flwr.app import Array, ArrayRecord, Message
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from unseen.engines.frames import room_for
from unseen.federation.flower.pieces import MOST_PIECES, PIECE, Pieces, head_of, size_told

__all__ = ["forget", "pull", "push", "record_of"]

_PUSHED, _PULLED = 2, 4  # pieces under way
_RECORDS = 2  # so deep in a message lie its records; below them arrays, and then pieces
_MOST_BYTES = 2**31 - 1
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, DecodeError)
Get = Callable[[Iterable[str]], dict[str, bytes]]


class _Piece(ArrayChunk):  # type: ignore[misc]
    """A piece of an array."""

    @property
    def head(self) -> bytes:
        return head_of(len(self.data))

    @cached_property
    def object_id(self) -> str:
        digest = hashlib.sha256(self.head)
        digest.update(self.data)
        return digest.hexdigest()

    def deflate(self) -> bytes:
        return b"".join((self.head, self.data))


def record_of(name: str, parts: Sequence[bytes | memoryview], cut: dict[int, list[_Piece]]) -> ArrayRecord:
    """Bytes as the only array in a record. Each part begins a new piece: parts that are the same in several messages are sent once.

    `cut` has the pieces of parts that were cut before, by identity, while the parts are kept.
    """
    array = Array(dtype="uint8", shape=(sum(map(len, parts)),), stype="unseen", data=b"")
    array.data = parts[0] if len(parts) == 1 else b""  # what is sent are the pieces
    for part in parts:
        if id(part) not in cut:
            view = memoryview(part)
            cut[id(part)] = [_Piece(view[at : at + PIECE]) for at in range(0, len(view), PIECE)]
    array.__dict__["_chunks"] = [(piece.object_id, piece) for part in parts for piece in cut[id(part)]]
    record = ArrayRecord()
    record[name] = array
    return record


def push(client: Any, messages: Sequence[Message], node: Node, run: int, pieces: Pieces) -> list[str]:
    """Give messages to Flower, with those of their objects that are missing there; their names.

    All of them together: Flower forgets an object with the last message that holds it.
    """
    objects: dict[str, Any] = {}
    request = PushAppMessagesRequest()
    with no_object_id_recompute():
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            request.messages_list.append(message_to_proto(remove_content_from_message(message)))
            request.message_object_trees.append(get_object_tree(message))
            objects |= get_all_nested_objects(message)
    given = client.PushMessages(request)
    put = make_push_object_fn_protobuf(client.PushObject, node, run_id=run, session_id=given.session_id)
    missing = set(given.objects_to_push)

    def give(name: str) -> None:
        one = objects[name]
        if not isinstance(one, _Piece):
            put(name, one.deflate())
            return
        try:
            pieces.lay(name, one.data)
        except OSError:  # no room: then as Flower carries it. A SuperNode that was promised a piece waits for it for ever
            put(name, one.deflate())
        else:
            put(name, one.head)

    with ThreadPoolExecutor(_PUSHED) as threads:
        for _ in threads.map(give, [name for name in objects if name in missing]):
            pass
    return [str(message.metadata.message_id) for message in messages]


def pull(client: Any, tree: Any, node: Node, run: int, pieces: Pieces, seconds: float, **patience: Any) -> Message:
    """The message with this tree of objects, once all of it is there. Its arrays hold views of the bytes, not bytes.

    ObjectPullError where it is not there in time; ValueError where it is no message, whatever was written in its place.
    """
    fetch = make_pull_object_fn_protobuf(client.PullObject, node, run)
    until = time.monotonic() + seconds

    def get(names: Iterable[str]) -> dict[str, bytes]:
        left = max(0.0, until - time.monotonic())
        wanted = list(dict.fromkeys(names))
        return dict(pull_objects(wanted, fetch, max_time=left, initial_backoff=0.05, backoff_cap=0.5, **patience))

    levels = list(_levels(tree))
    contents = get(one.object_id for level in levels[: _RECORDS + 2] for one in level)
    message, why = None, None
    try:
        filled = [one for level in levels[_RECORDS : _RECORDS + 1] for one in level if one.children]
        records = {one.object_id: _arrays(contents, one, get, pieces) for one in filled}
        message = inflate_object_from_contents(tree.object_id, contents, objects=dict(records))
    except _UNREADABLE as error:
        why = error
    forget(client, tree.object_id, node, run)
    if not isinstance(message, Message):
        raise ValueError("an object that is no message") from why
    return message


def forget(client: Any, name: str, node: Node, run: int) -> None:
    """Tell Flower that nobody fetches this message any more."""
    make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run)(name)


def _levels(tree: Any) -> Iterator[list[Any]]:
    level = [tree]
    while level:
        yield level
        level = [child for one in level for child in one.children]


def _arrays(contents: Mapping[str, bytes], tree: Any, get: Get, pieces: Pieces) -> ArrayRecord:
    """A record of arrays; made from a table, Flower would copy each of them."""
    record = ArrayRecord()
    for name, array in json.loads(get_object_body(contents[tree.object_id], ArrayRecord)).items():
        record[name] = _filled(contents[array], get, pieces)
    return record


def _filled(content: bytes, get: Get, pieces: Pieces) -> Array:
    """An array, its pieces put where they belong as they come."""
    names, told = get_object_children_ids_from_object_content(content), json.loads(get_object_body(content, Array))
    (size,), order = told["shape"], [names[number] for number in told["arraychunk_ids"]]
    if type(size) is not int or not 0 <= size <= _MOST_BYTES:
        raise ValueError("an array of no size that is taken")
    if len(order) > MOST_PIECES:
        raise ValueError("an array of more pieces than are taken")
    whole, at = room_for(size), 0
    for begin in range(0, len(order), _PULLED):
        given = get(some := order[begin : begin + _PULLED])
        for name in some:
            length = size_told(given[name])
            if length is None:
                body = memoryview(given[name])[given[name].index(HEAD_BODY_DIVIDER) + 1 :]
                length = len(body)
                whole[at : at + length] = body  # ValueError for more than there is room for
            elif at + length > size:
                raise ValueError("an array of another size than it says")
            else:
                try:
                    pieces.read(name, whole[at : at + length])
                except LookupError as error:
                    raise ObjectPullError(name, str(error)) from error
            at += length
    if at != size:
        raise ValueError("an array of another size than it says")
    array = Array(dtype=told["dtype"], shape=(size,), stype=told["stype"], data=b"")
    array.data = whole
    return array
