"""Messages through Flower, in pieces: each piece is hashed once, and those under way are all that lies in memory twice.

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
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
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
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

from unseen.engines.frames import room_for

__all__ = ["PIECE", "pull", "push", "record_of"]

PIECE = 2**23  # bytes
_PUSHED, _PULLED = 2, 4  # pieces under way
_RECORDS = 2  # so deep in a message lie its records; below them arrays, and then pieces
_MOST_BYTES = 2**31 - 1


class _Piece(ArrayChunk):  # type: ignore[misc]
    """A piece of an array."""

    @property
    def _head(self) -> bytes:
        return bytes(HEAD_VALUE_DIVIDER.join((ArrayChunk.__qualname__, "", str(len(self.data)))).encode() + HEAD_BODY_DIVIDER)

    @cached_property
    def object_id(self) -> str:
        digest = hashlib.sha256(self._head)
        digest.update(self.data)
        return digest.hexdigest()

    def deflate(self) -> bytes:
        return b"".join((self._head, self.data))


def record_of(name: str, parts: Sequence[bytes | memoryview]) -> ArrayRecord:
    """Bytes as the only array in a record. Each part begins a new piece: parts that are the same in several messages are sent once."""
    array = Array(dtype="uint8", shape=(sum(map(len, parts)),), stype="unseen", data=b"")
    array.data = parts[0] if len(parts) == 1 else b""  # what is sent are the pieces
    views = (memoryview(part) for part in parts)
    pieces = [_Piece(view[at : at + PIECE]) for view in views for at in range(0, len(view), PIECE)]
    array.__dict__["_chunks"] = [(piece.object_id, piece) for piece in pieces]
    record = ArrayRecord()
    record[name] = array
    return record


def push(client: Any, messages: Sequence[Message], node: Node, run: int) -> list[str]:
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
    with ThreadPoolExecutor(_PUSHED) as threads:
        for _ in threads.map(lambda name: put(name, objects[name].deflate()), [name for name in objects if name in missing]):
            pass
    return [str(message.metadata.message_id) for message in messages]


def pull(client: Any, tree: Any, node: Node, run: int, seconds: float, **patience: Any) -> Message:
    """The message with this tree of objects, once all of it is there. Its arrays hold views of the bytes, not bytes.

    ObjectPullError where it is not there in time; ValueError, LookupError or TypeError where it is no message.
    """
    fetch = make_pull_object_fn_protobuf(client.PullObject, node, run)
    until = time.monotonic() + seconds

    def get(names: Iterable[str]) -> dict[str, bytes]:
        left = max(0.0, until - time.monotonic())
        wanted = list(dict.fromkeys(names))
        return dict(pull_objects(wanted, fetch, max_time=left, initial_backoff=0.05, backoff_cap=0.5, **patience))

    levels = list(_levels(tree))
    contents = get(one.object_id for level in levels[: _RECORDS + 2] for one in level)
    records = {one.object_id: _arrays(contents, one, get) for level in levels[_RECORDS : _RECORDS + 1] for one in level if one.children}
    make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run)(tree.object_id)
    message = inflate_object_from_contents(tree.object_id, contents, objects=dict(records))
    if not isinstance(message, Message):
        raise TypeError("an object that is no message")
    return message


def _levels(tree: Any) -> Iterator[list[Any]]:
    level = [tree]
    while level:
        yield level
        level = [child for one in level for child in one.children]


def _arrays(contents: Mapping[str, bytes], tree: Any, get: Callable[[Iterable[str]], dict[str, bytes]]) -> ArrayRecord:
    """A record of arrays; made from a table, Flower would copy each of them."""
    record = ArrayRecord()
    for name, array in json.loads(get_object_body(contents[tree.object_id], ArrayRecord)).items():
        record[name] = _filled(contents[array], get)
    return record


def _filled(content: bytes, get: Callable[[Iterable[str]], dict[str, bytes]]) -> Array:
    """An array, its pieces put where they belong as they come."""
    names, told = get_object_children_ids_from_object_content(content), json.loads(get_object_body(content, Array))
    (size,), order = told["shape"], [names[number] for number in told["arraychunk_ids"]]
    if type(size) is not int or not 0 <= size <= _MOST_BYTES:
        raise ValueError("an array of no size that is taken")
    whole, at = room_for(size), 0
    for begin in range(0, len(order), _PULLED):
        pieces = get(some := order[begin : begin + _PULLED])
        for name in some:
            body = memoryview(pieces[name])[pieces[name].index(HEAD_BODY_DIVIDER) + 1 :]
            whole[at : at + len(body)] = body  # ValueError for more than there is room for
            at += len(body)
    if at != size:
        raise ValueError("an array of another size than it says")
    array = Array(dtype=told["dtype"], shape=(size,), stype=told["stype"], data=b"")
    array.data = whole
    return array
