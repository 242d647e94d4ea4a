"""How a SuperNode gives and takes pieces: between a file and the line, in large steps.

Flower's own way reads 16 kB at a time through several layers and lays each piece out four times. What is said on the line is the same.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpcore
import httpx
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.supercore.protobuf.client import ProtobufRequestContext, _wrap_interceptor
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient

from unseen.federation.flower.passage import content_at
from unseen.federation.flower.pieces import PIECE, STEP, Pieces, field, size_told

__all__ = ["fleet_client"]

_SECONDS = 30.0  # without a byte
_SMALL, _MOST = 2**16, PIECE + 2**20  # bytes of an answer that is kept in memory, and of one that is taken
_CONTENT = 3  # the number of its field in a PullObjectResponse
Read = Callable[[http.client.HTTPResponse], bytes]


def fleet_client(pieces: Pieces) -> type[Any]:
    """Flower's client for a SuperNode, with pieces in this folder."""

    class Fleet(FleetHttpClient):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self._lines = _Lines(self._client, self._base_url)

        def PushObject(self, request: PushObjectRequest) -> Any:  # noqa: N802 -- Flower's name
            size = size_told(request.object_content)
            if size is None:
                return super().PushObject(request)
            head, after = request.object_content, PushObjectRequest(session_id=request.session_id).SerializeToString()
            before = PushObjectRequest(node=request.node, run_id=request.run_id, object_id=request.object_id).SerializeToString()
            before += field(4, len(head) + size) + head
            file = pieces.open(request.object_id, size)
            try:
                body, length = _parts(before, file, after), len(before) + size + len(after)
                if not self._lines.direct:
                    return super().PushObject(PushObjectRequest.FromString(b"".join(map(bytes, body))))
                said = self._call("PushObject", "push-object", request, body, length, _whole)
            finally:
                os.close(file)
            return PushObjectResponse.FromString(said)

        def PullObject(self, request: PullObjectRequest) -> Any:  # noqa: N802 -- Flower's name
            if not self._lines.direct:
                return super().PullObject(request)
            asked = request.SerializeToString()

            def into_a_file(response: http.client.HTTPResponse) -> bytes:
                return _laid(response, pieces, request.object_id)

            try:
                said = self._call("PullObject", "pull-object", request, (asked,), len(asked), into_a_file)
            except _NoRoom:
                return super().PullObject(request)
            return PullObjectResponse.FromString(said)

        def _call(self, method: str, path: str, message: Any, body: Iterable[bytes | memoryview], length: int, read: Read) -> bytes:
            headers = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE, "content-length": str(length)}
            request = self._client.build_request("POST", f"{self._base_url}/v1/fleet/{path}", headers=headers)

            def call(context: ProtobufRequestContext) -> httpx.Response:
                return self._lines.call(context.request, body, read)

            for interceptor in reversed(self._interceptors):
                call = _wrap_interceptor(interceptor, call)
            response = call(ProtobufRequestContext(rpc_method=f"/flwr.proto.Fleet/{method}", message=message, request=request))
            response.raise_for_status()
            return bytes(response.content)

        def close(self) -> None:
            self._lines.close()
            super().close()

    return Fleet


class _Lines:
    """Connections to the server, as Flower's client would make them, kept for the next call."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._url = httpx.URL(url)
        pool = getattr(client._transport_for_url(self._url), "_pool", None)
        self.direct = type(pool) is httpcore.ConnectionPool  # no proxy in between
        self._security = getattr(pool, "_ssl_context", None)
        self._free: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def call(self, request: httpx.Request, body: Iterable[bytes | memoryview], read: Read) -> httpx.Response:
        line = self._line()
        try:
            line.putrequest("POST", request.url.raw_path.decode(), skip_accept_encoding=True, skip_host=True)
            for name, value in request.headers.items():
                if name != "accept-encoding":
                    line.putheader(name, value)
            line.endheaders()
            for part in body:
                line.send(part)
            answer = line.getresponse()
            content = read(answer) if answer.status == 200 else answer.read(_SMALL)
            again = answer.isclosed() and not answer.will_close
        except (OSError, http.client.HTTPException) as error:
            line.close()
            raise httpx.ReadError(str(error), request=request) from error
        except BaseException:
            line.close()
            raise
        if again:
            with self._lock:
                self._free.append(line)
        else:
            line.close()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() != "content-encoding"]  # nothing is unpacked
        return httpx.Response(answer.status, headers=headers, content=content, request=request)

    def _line(self) -> http.client.HTTPConnection:
        """One on which nothing was said since; the server ends those that are not used."""
        while True:
            with self._lock:
                line = self._free.pop() if self._free else None
            if line is None:
                break
            if line.sock is not None and not select.select([line.sock], [], [], 0)[0]:
                return line
            line.close()
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(self._url.host, self._url.port, timeout=_SECONDS, context=self._security)
        return http.client.HTTPConnection(self._url.host, self._url.port, timeout=_SECONDS)

    def close(self) -> None:
        with self._lock:
            for line in self._free:
                line.close()
            self._free.clear()


def _parts(before: bytes, file: int, after: bytes) -> Iterator[bytes | memoryview]:
    yield before
    room = memoryview(bytearray(STEP))
    while read := os.readv(file, [room]):
        yield room[:read]
    yield after


def _whole(answer: http.client.HTTPResponse) -> bytes:
    return answer.read(_SMALL)


class _NoRoom(Exception):
    """The disk does not take a piece. The line is not to blame."""


@contextlib.contextmanager
def _of_the_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _NoRoom from error


def _laid(answer: http.client.HTTPResponse, pieces: Pieces, name: str) -> bytes:
    """An answer whose piece went into its file, and whose content is the head of it. A small answer is as it came."""
    if answer.length is None:  # it is not told how much comes
        whole = answer.read(_MOST + 1)
        if len(whole) > _MOST:
            raise http.client.HTTPException("an answer that is too large")
        return whole
    length = answer.length
    if length > _MOST:
        raise http.client.HTTPException("an answer that is too large")
    if length < _SMALL:
        return answer.read()
    began = answer.read(256)
    found = content_at(began, _CONTENT)
    head = began[found[1] : began.find(b"\x00", found[1]) + 1] if found else b""
    size = size_told(head)
    if found is None or size is None or found[1] + found[2] != length or found[2] != len(head) + size:
        return began + answer.read()
    with contextlib.closing(answer), contextlib.ExitStack() as stack:
        with _of_the_disk():
            pieces.must_leave_room(length)
            file = stack.enter_context(pieces.arriving())
            file.write(began[found[1] + len(head) :])
        left, room = length - len(began), memoryview(bytearray(STEP))
        while left:
            read = answer.readinto(room[:left])
            if not read:
                raise http.client.IncompleteRead(b"", left)
            with _of_the_disk():
                file.write(room[:read])
            left -= read
        # Whether its bytes have this name shows when the message is opened: its signature is over all of them.
        with _of_the_disk():
            file.name(pieces.path(name))
    return began[: found[0]] + field(_CONTENT, len(head)) + head
