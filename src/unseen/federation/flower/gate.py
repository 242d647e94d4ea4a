"""The gate of a server: what the public port lets through to Flower, which listens behind it in the same process.

Flower serves sites, its command line and its workers on one port, and asks only sites who they are. Here the public port knows the calls
of a SuperNode and no others, and takes them from the federation's sites alone: everybody else finds nothing there. All other calls
answer on a Unix socket in the federation's folder, which only the folder's owner can open.

Both ends look for messages again and again. Here such a call is held until the other end gave something, so that a message is found at once
and looking costs little.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hashlib
import logging
import os
import socket
import ssl
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TASK_TOKEN_HEADER
from flwr.supercore.primitives.asymmetric import verify_signature
from uvicorn.protocols.http.h11_impl import H11Protocol

from unseen.errors import BadInput
from unseen.federation.flower.members import Members, NodeMember
from unseen.federation.flower.owner import bind_for_owner
from unseen.federation.flower.passage import Passage
from unseen.federation.flower.pieces import PIECE, Pieces, forget_ended_runs

__all__ = ["CALLS", "Gate", "Listener", "listen", "signed_by"]

_SMALL, _PIECE = 2**20, PIECE + 2**20  # bytes
# What a SuperNode calls (flwr.supernode.fleet_http_connection), and the most bytes that it may bring along. It could also register and
# unregister itself; here the server does that.
CALLS = {
    b"/v1/fleet/activate-node": _SMALL,
    b"/v1/fleet/deactivate-node": _SMALL,
    b"/v1/fleet/send-node-heartbeat": _SMALL,
    b"/v1/fleet/pull-messages": _SMALL,
    b"/v1/fleet/push-messages": _SMALL,
    b"/v1/fleet/get-run": _SMALL,
    b"/v1/fleet/get-fab": _SMALL,
    b"/v1/fleet/pull-object": _SMALL,
    b"/v1/fleet/push-object": _PIECE,
    b"/v1/fleet/confirm-message-received": _SMALL,
}
_IDENTITY = tuple(header.encode() for header in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER))
_MOST_HEADER = 2000  # bytes of a key, a signature or a time
_CALLS_AT_ONCE = 16  # of one site; its SuperNode makes two or three
_CONNECTIONS, _FROM_ONE_ADDRESS = 800, 250  # several sites may share an address
_HEAD_SECONDS, _SILENCE, _LONGEST = 10.0, 60.0, 1800.0  # until a question is asked, without a byte of it, until it is answered
_LOOK, _TIDY = 1.0, 60.0  # seconds between two looks at the certificate, and for what is left of runs that ended
_LISTENERS = 2000  # sites, and processes of the owner, of which is known when they looked last
_HELD = 1.0  # seconds for which a look for messages is held; one whose caller vanished without a word must not take what comes later
_LOOKS = {b"/v1/fleet/pull-messages": "sites", b"/v1/runtime/pull-messages": "server"}
_GIVES = {b"/v1/runtime/push-messages": "sites", b"/v1/fleet/push-messages": "server"}  # and for whom
_LOG = logging.getLogger("unseen.gate")
_LOG.setLevel(logging.ERROR)  # a stranger must not fill a log

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Bell:
    """Tells those who look for messages that there may be some."""

    def __init__(self) -> None:
        self._rung = Counter[str]()  # for sites, for the server
        self._heard: dict[str, int] = {}  # by who looks: how often it had rung at the last look
        self._waiting: dict[str, asyncio.Future[bool]] = {}

    def ring(self, whom: str) -> None:
        self._rung[whom] += 1
        for who, waiting in self._waiting.items():
            if who.startswith("server") == (whom == "server") and not waiting.done():
                waiting.set_result(True)

    async def listen(self, whom: str, who: str, gone: Awaitable[Any]) -> bool:
        """Until it rings, at most for a while; at once if it rang since the last look. False for a caller that is gone, or looks twice."""
        if (before := self._waiting.get(who)) is not None and not before.done():
            before.set_result(False)
        waiting = self._waiting[who] = asyncio.get_running_loop().create_future()
        leaves = asyncio.ensure_future(gone)
        try:
            if self._heard.get(who, -1) == self._rung[whom]:
                await asyncio.wait((waiting, leaves), timeout=_HELD, return_when=asyncio.FIRST_COMPLETED)
            self._heard.pop(who, None)
            self._heard[who] = self._rung[whom]  # at the end: those that have not looked for longest are forgotten
            while len(self._heard) > _LISTENERS:
                del self._heard[next(iter(self._heard))]
            return not leaves.done() and (not waiting.done() or waiting.result())
        finally:
            leaves.cancel()
            if self._waiting.get(who) is waiting:
                del self._waiting[who]


class Held:
    """Stands before Flower's application: holds looks for messages until there may be some."""

    def __init__(self, app: App, bell: Bell) -> None:
        self._app, self._bell = app, bell

    async def __call__(self, scope: Scope, receive: Receive, send: Send, who: str = "") -> None:
        call = scope.get("raw_path", b"")
        if call in _LOOKS:
            parts = [await receive()]
            while parts[-1].get("more_body"):
                parts.append(await receive())
            if parts[-1]["type"] == "http.disconnect":
                return None
            if not await self._bell.listen(_LOOKS[call], who or _process_of_owner(scope["headers"]), receive()):
                return await _turn_away(send, 503)
            await self._app(scope, _again(parts, receive), send)
        else:
            await self._app(scope, receive, send)
        if call in _GIVES:
            self._bell.ring(_GIVES[call])
        return None


def _process_of_owner(headers: list[tuple[bytes, bytes]]) -> str:
    """Each has a run of its own, and looks for that run's messages."""
    token = b"".join(value for name, value in headers if name == TASK_TOKEN_HEADER.encode())
    return f"server {hashlib.sha256(token).hexdigest()[:16]}"


def _again(parts: list[MutableMapping[str, Any]], receive: Receive) -> Receive:
    """What came before, then what comes."""

    async def next_part() -> MutableMapping[str, Any]:
        return parts.pop(0) if parts else await receive()

    return next_part


class Gate:
    """Stands before Flower's application: a call of a site goes through, everything else gets an empty 404."""

    def __init__(self, app: App, members: Members, bell: Bell | None = None) -> None:
        self._app, self._members = Held(app, bell or Bell()), members
        self._under_way = Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = scope["raw_path"]
        if scope["method"] != "POST" or call not in CALLS or scope["path"].encode() != call or scope["query_string"]:
            return await _turn_away(send, 404)
        try:
            caller = signed_by(self._members.present(), scope["headers"])
        except BadInput:  # the federation's folder cannot be read: nobody is let in, and sites try again
            return await _turn_away(send, 503)
        if caller is None:
            return await _turn_away(send, 404)
        if _length(scope["headers"]) > CALLS[call]:
            return await _turn_away(send, 413)
        if self._under_way[caller.name] >= _CALLS_AT_ONCE:
            return await _turn_away(send, 503)
        self._under_way[caller.name] += 1
        try:
            async with asyncio.timeout(_LONGEST):
                await self._app(scope, _without_silence(receive), send, f"site {caller.name}")
        finally:
            self._under_way[caller.name] -= 1
        return None


def signed_by(members: Mapping[bytes, NodeMember], headers: list[tuple[bytes, bytes]]) -> NodeMember | None:
    """The site whose key signed the time in these headers, if it is a member and the time is now."""
    found = [[value for name, value in headers if name == wanted] for wanted in _IDENTITY]
    if any(len(values) != 1 or len(values[0]) > _MOST_HEADER for values in found):
        return None
    ((key,), (signature,), (time,)) = found
    try:
        member = members.get(base64.b64decode(key, validate=True))
        if member is None:
            return None
        age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(time.decode("ascii"))).total_seconds()
        fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        known = fresh and verify_signature(member.key, time, base64.b64decode(signature, validate=True))
    except (ValueError, TypeError, OverflowError):  # no base64, no ASCII, no time, a time without a zone
        return None
    return member if known else None


def _length(headers: list[tuple[bytes, bytes]]) -> float:
    """Bytes of the body. One that is not told beforehand, as a SuperNode tells it, counts as endless."""
    told = [value for name, value in headers if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    return int(told[0]) if len(told) == 1 and not chunked and told[0].isdigit() else float("inf")


async def _turn_away(send: Send, status: int) -> None:
    """Nothing is told, and the connection ends."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b""})


def _without_silence(receive: Receive) -> Receive:
    """A caller that stops in the middle of its question counts as gone."""
    whole = False

    async def next_part() -> MutableMapping[str, Any]:
        nonlocal whole
        if whole:
            return await receive()  # this waits for the end of the connection, while the answer is made
        try:
            async with asyncio.timeout(_SILENCE):
                part = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        whole = not part.get("more_body", False)
        return part

    return next_part


class _Connection(H11Protocol):
    """HTTP as uvicorn speaks it, but a connection on which nothing sensible is asked ends without a word."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.logger = _LOG

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(_HEAD_SECONDS, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self.transport.abort()


class _Door(socket.socket):
    """A listening socket that lets in only so many connections at a time, and only so many from one address."""

    def __init__(self, bound: socket.socket) -> None:
        super().__init__(bound.family, bound.type, bound.proto, bound.detach())
        self._inside: weakref.WeakKeyDictionary[socket.socket, str] = weakref.WeakKeyDictionary()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        inside = [host for open_one, host in list(self._inside.items()) if open_one.fileno() >= 0]
        if len(inside) >= _CONNECTIONS or inside.count(address[0]) >= _FROM_ONE_ADDRESS:
            connection.close()
            raise ConnectionAbortedError("too many connections")
        self._inside[connection] = address[0]
        return connection, address


class _Certificate:
    """The server's certificate; a renewed one is shown from the next connection on."""

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (certificate, key)
        self._shown = self._version()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*self._files)

    def _version(self) -> list[tuple[int, int]]:
        return [(found.st_mtime_ns, found.st_ino) for found in map(os.stat, self._files)]

    def take_up(self) -> None:
        """Certificate and key are replaced one after the other; a pair that does not fit is looked at again."""
        with contextlib.suppress(OSError):  # also what goes wrong with a certificate
            version = self._version()
            if version != self._shown:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)
                self.context.load_cert_chain(*self._files)
                self._shown = version


def _with_files(app: Any, folder: Path) -> App:
    return Passage(app, Pieces(folder / "flower/pieces"), lambda name: name in app.state.linkstate_factory.state().object_store)


class Listener:
    """Flower's application on two sockets: through the gate on the public port, and as it is for the owner."""

    def __init__(self, folder: Path, app: App, where: tuple[str, int], certificate: tuple[str, str], log_config: Any = None) -> None:
        common: dict[str, Any] = {"log_config": log_config, "access_log": False, "ws": "none", "proxy_headers": False}
        common |= {"server_header": False, "date_header": False, "timeout_graceful_shutdown": 1}
        bell = Bell()
        outside = uvicorn.Config(Gate(_with_files(app, folder), Members(folder), bell), http=_Connection, lifespan="off", **common)
        outside.load()
        self._app: Any = app
        self._certificate = _Certificate(*certificate)
        outside.ssl = self._certificate.context
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        self._door = _Door(socket.create_server(where, family=family, backlog=outside.backlog))
        self._for_owner = bind_for_owner(folder)
        self._outside, self._inside = uvicorn.Server(outside), uvicorn.Server(uvicorn.Config(Held(app, bell), **common))

    @property
    def port(self) -> int:
        return int(self._door.getsockname()[1])

    async def serve(self) -> None:
        watching = asyncio.gather(self._watch_certificate(), self._tidy())
        # A signal ends the one that was started last, which passes it on to the other.
        await asyncio.gather(self._inside.serve([self._for_owner]), self._outside.serve([self._door]))
        watching.cancel()

    async def _watch_certificate(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            self._certificate.take_up()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY)
            try:
                await asyncio.to_thread(lambda: forget_ended_runs(self._app.state.linkstate_factory.state()))
            except Exception as error:  # the state is in use, or broken, or there is no room: it is tried again
                _LOG.error("what is left of runs that ended stays for now: %s", error)

    def stop(self) -> None:
        self._inside.should_exit = self._outside.should_exit = True


def listen(folder: Path, app: App, *, host: str, port: int, ssl_certfile: str, ssl_keyfile: str, log_config: Any, **_unused: Any) -> None:
    """Serve Flower's application until told to end; it stands in for `uvicorn.run` in the SuperLink's process."""
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = _HEAD_SECONDS  # type: ignore[attr-defined]
    asyncio.run(Listener(folder, app, (host, port), (ssl_certfile, ssl_keyfile), log_config).serve())
