"""Pieces through the gate: from a site into a file and from a file to a site, as they come, and never whole in memory.

Whether a site may give or take a piece is Flower's to say, as ever. It is asked with the head of the piece alone, so that its many layers
copy a few bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse, PushObjectRequest, PushObjectResponse
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from unseen.federation.flower.pieces import MOST_PIECES, STEP, Pieces, field, size_told

__all__ = ["Passage", "content_at"]

_ANNOUNCE, _GIVE, _TAKE = b"/v1/fleet/push-messages", b"/v1/fleet/push-object", b"/v1/fleet/pull-object"
_CONTENT = 4  # the number of its field in a PushObjectRequest
_FOREWORDS = 4096  # bytes; a node, a run and a name are before the content
_MOST_HELD = 9 * 2**20  # bytes of anything else
_SMALL = 2**16  # bytes of a piece that is not worth a file
_OFTEN = 60.0  # seconds between two complaints in the log
_LOG = logging.getLogger("unseen.pieces")

Scope = MutableMapping[str, Any]
Part = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Part]]
Send = Callable[[Part], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Passage:
    """Stands before Flower's application. `knows` tells whether Flower waits for, or has, an object of this name."""

    def __init__(self, app: App, pieces: Pieces, knows: Callable[[str], bool]) -> None:
        self._app, self._pieces, self._knows = app, pieces, knows
        self._said = -_OFTEN
        self._coming = 0  # bytes that are being given, some of which are on the disk already

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = scope.get("raw_path", b"")
        if call == _ANNOUNCE:
            await self._hear(scope, receive, send)
        elif call == _GIVE:
            await self._take_in(scope, receive, send)
        elif call == _TAKE:
            await self._hand_out(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _hear(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Which objects an answer has. Flower must find them again by the answer's name, or they would stay until the run ends."""
        body, heard = await _body_of(receive)
        if heard and not _is_one_answer(body):
            return await _turn_away(send, 400)
        return await self._app(scope, _first(_whole(body, heard), receive), send)

    async def _take_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = int(dict(scope["headers"]).get(b"content-length", 0))  # the gate looked at it
        try:
            if length > _SMALL:
                self._pieces.must_leave_room(self._coming + length)
        except OSError as error:
            self._say(str(error.strerror))
            return await _turn_away(send, 503)
        self._coming += length
        try:
            await self._take_in_some(length, scope, receive, send)
        finally:
            self._coming -= length

    async def _take_in_some(self, length: int, scope: Scope, receive: Receive, send: Send) -> None:
        part = await receive()
        began = part.get("body", b"")
        while part.get("more_body") and len(began) < _FOREWORDS:
            part = await receive()
            began += part.get("body", b"")
        found = content_at(began, _CONTENT)
        head = began[found[1] : began.find(b"\x00", found[1], found[1] + 64) + 1] if found else b""
        size = size_told(head)
        if found is None or size is None or size < _SMALL or found[2] != len(head) + size:
            if length > _MOST_HELD:  # Flower would hold it in memory
                return await _turn_away(send, 413)
            rest: Part = {"type": part["type"], "body": began, "more_body": part.get("more_body", False)}
            body, heard = await _body_of(_first(rest, receive))
            if heard and not _has_session(body):
                return await _turn_away(send, 400)
            return await self._app(scope, _first(_whole(body, heard), receive), send)
        before, at, _ = found
        outcome = await self._streamed(began[:before], head, began[at + len(head) :], size, part, receive)
        if isinstance(outcome, int):
            return await _turn_away(send, outcome) if outcome else None
        taken = False
        try:
            answer = await self._answer_to(scope, outcome.SerializeToString(), receive)
            taken = answer.status == 200 and _stored(answer.body)
        finally:  # also when Flower fails, or the call takes too long
            if not taken and not await asyncio.to_thread(self._knows, outcome.object_id):
                self._pieces.remove(outcome.object_id)
        return await answer.pass_on(send)

    async def _streamed(self, before: bytes, head: bytes, chunk: bytes, size: int, part: Part, receive: Receive) -> Any:
        """The request with the head alone, once the rest is in its file; or the status of a refusal, 0 where nobody hears it."""
        digest, left, after = hashlib.sha256(head), size, b""
        try:
            with self._pieces.arriving() as file:
                while True:
                    body, after = chunk[:left], after + chunk[left:]
                    digest.update(body)
                    file.write(body)
                    left -= len(body)
                    if not part.get("more_body") or len(after) > _FOREWORDS:
                        break
                    part = await receive()
                    chunk = part.get("body", b"")
                if part["type"] == "http.disconnect":
                    return 0
                request = PushObjectRequest.FromString(before + after)
                if left or part.get("more_body") or digest.hexdigest() != request.object_id or not request.session_id:
                    return 400
                request.object_content = head
                file.name(self._pieces.path(request.object_id))
        except DecodeError:
            return 400
        except OSError as error:
            self._say(str(error))
            return 503
        return request

    def _say(self, why: str) -> None:
        if time.monotonic() - self._said >= _OFTEN:
            self._said = time.monotonic()
            _LOG.error("what a site gives is turned away, and it tries again: %s (%s)", why, self._pieces.folder)

    async def _hand_out(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, heard = await _body_of(receive)
        if not heard:
            return None
        answer = await self._answer_to(scope, body, receive)
        if answer.status != 200:
            return await answer.pass_on(send)
        content = PullObjectResponse.FromString(answer.body).object_content
        if (size := size_told(content)) is None:
            return await answer.pass_on(send)
        try:
            file = self._pieces.open(PullObjectRequest.FromString(body).object_id, size)
        except (LookupError, ValueError):
            answer.body = PullObjectResponse(object_found=False).SerializeToString()
            return await answer.pass_on(send)
        try:
            told = PullObjectResponse(object_found=True, object_available=True).SerializeToString()
            answer.body = told + field(3, len(content) + size) + content
            await answer.pass_on(send, size)
            while size:
                step = os.read(file, min(STEP, size))
                size -= len(step)
                await send({"type": "http.response.body", "body": step, "more_body": size > 0 and bool(step)})
                if not step:
                    return None
        finally:
            os.close(file)
        return None

    async def _answer_to(self, scope: Scope, body: bytes, receive: Receive) -> _Answer:
        """What Flower says to a request with this body."""
        answer = _Answer()
        length = [(b"content-length", str(len(body)).encode())]
        headers = [header for header in scope["headers"] if header[0] != b"content-length"]
        await self._app({**scope, "headers": headers + length}, _first(_whole(body), receive), answer.note)
        return answer


class _Answer:
    """An answer that is looked at before it goes out."""

    def __init__(self) -> None:
        self.start: Part = {}
        self.body = b""

    async def note(self, part: Part) -> None:
        if part["type"] == "http.response.start":
            self.start = part
        else:
            self.body += part.get("body", b"")

    @property
    def status(self) -> int:
        return int(self.start.get("status", 500))

    async def pass_on(self, send: Send, more: int = 0) -> None:
        """And so many bytes follow."""
        headers = [header for header in self.start.get("headers", []) if header[0] != b"content-length"]
        length = (b"content-length", str(len(self.body) + more).encode())
        await send({"type": "http.response.start", "status": self.status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": self.body, "more_body": more > 0})


def content_at(began: bytes, number: int) -> tuple[int, int, int] | None:
    """Where in a protobuf the field of this number begins, where its bytes do, and how many there are. None if that cannot be seen."""
    at = 0
    try:
        while at < len(began):
            before = at
            tag, at = _number(began, at)
            length, at = _number(began, at)  # or the value itself
            if tag == number << 3 | 2:
                return before, at, length
            if tag & 7 not in (0, 2):
                return None
            at += length if tag & 7 == 2 else 0
    except IndexError:
        pass
    return None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    value = shift = 0
    while data[at] & 128 and shift < 63:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | (data[at] & 127) << shift, at + 1


def _first(part: Part, receive: Receive) -> Receive:
    """This, then what comes."""
    parts = [part]

    async def next_part() -> Part:
        return parts.pop() if parts else await receive()

    return next_part


async def _body_of(receive: Receive) -> tuple[bytes, bool]:
    """A request that is small enough to be held; and whether the caller is still there."""
    parts = [await receive()]
    while parts[-1].get("more_body", False):
        parts.append(await receive())
    return b"".join(part.get("body", b"") for part in parts), parts[-1]["type"] != "http.disconnect"


def _whole(body: bytes, heard: bool = True) -> Part:
    """The only part of a request, unless its caller is gone."""
    return {"type": "http.request", "body": body, "more_body": False} if heard else {"type": "http.disconnect"}


def _has_session(body: bytes) -> bool:
    """Whether an object is given as part of an announced answer. Else Flower takes it for part of what waits for it, even a question."""
    try:
        return bool(PushObjectRequest.FromString(body).session_id)
    except DecodeError:
        return False


def _is_one_answer(body: bytes) -> bool:
    """Whether this announces one message of the caller, in answer to another, and of its objects no more than are taken, under its name.

    Flower takes one that answers nothing for a question to the server, and one from another site for that site's.
    """
    try:
        given = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    told = [message.metadata for message in given.messages_list]
    if len(told) != 1 or [tree.object_id for tree in given.message_object_trees] != [told[0].message_id]:
        return False
    if not told[0].reply_to_message_id or told[0].src_node_id != given.node.node_id:  # Flower knows whose node that is
        return False
    return _within(given.message_object_trees[0], MOST_PIECES)


def _within(tree: ObjectTree, most: int) -> bool:
    """Whether a tree has at most so many objects."""
    left = [tree]
    while left and most >= 0:
        most -= 1
        left.extend(left.pop().children)
    return most >= 0


def _stored(body: bytes) -> bool:
    try:
        return bool(PushObjectResponse.FromString(body).stored)
    except DecodeError:
        return False


async def _turn_away(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b""})
