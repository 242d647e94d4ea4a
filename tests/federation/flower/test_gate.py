"""The gate before the SuperLink, with an application of our own behind it: who is let in, with what, and how much of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")
import httpx
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.superlink.routers.fleet.router import router as fleet_router

from site_keys import SiteKey, members, rewrite
from unseen.federation import keys
from unseen.federation.flower import gate as gate_module
from unseen.federation.flower.gate import CALLS, Bell, Gate, Held, Listener, signed_by
from unseen.federation.flower.members import Members
from unseen.federation.kits import Federation, init

PULL = b"/v1/fleet/pull-messages"
Headers = list[tuple[bytes, bytes]]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return init(tmp_path / "federation", "localhost", ["north", "south"])


@pytest.fixture(autouse=True)
def _held_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_HELD", 0.01)


@pytest.fixture
def north(federation: Federation) -> SiteKey:
    return SiteKey.hand_out(federation.path, "north")


class Behind:
    """The application behind the gate: remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                self.reached.append((scope["path"], b"gone"))
                return
            body, more = body + part["body"], part.get("more_body", False)
        self.reached.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"told"})


async def ask(gate: Gate, headers: Headers, call: bytes = PULL, method: str = "POST", query: bytes = b"", **more: Any) -> tuple[int, bytes]:
    """Status and body of what the gate answers. The body that is asked with is `more["body"]`."""
    body, sent = more.get("body", b"?"), list[Any]()
    told = more.get("told", [(b"content-length", str(len(body)).encode())])
    scope = {"type": "http", "method": method, "raw_path": call, "path": more.get("path", call.decode()), "query_string": query}

    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await gate({**scope, "headers": [*headers, *told]}, more.get("receive", receive), send)
    return sent[0]["status"], sent[1]["body"]


def outcome(federation: Federation, headers: Headers, *arguments: Any, **more: Any) -> tuple[int, bytes, int]:
    """Status, body, and how many calls reached the application."""
    behind = Behind()
    status, body = asyncio.run(ask(Gate(behind, Members(federation.path)), headers, *arguments, **more))
    return status, body, len(behind.reached)


NOTHING = (404, b"", 0)


def test_a_sites_calls_go_through_and_are_all_that_a_supernode_makes(federation: Federation, north: SiteKey) -> None:
    of_flower = {route.path.encode() for route in fleet_router.routes}
    assert set(CALLS) == of_flower - {b"/v1/fleet/register-node", b"/v1/fleet/unregister-node"}
    assert all(outcome(federation, north.headers(), call) == (200, b"told", 1) for call in CALLS)


@pytest.mark.parametrize(
    "call",
    [
        *(b"/v1/fleet/register-node", b"/v1/fleet/unregister-node", b"/v1/control/list-nodes", b"/v1/runtime/acquire-task", b"/docs"),
        *(b"/openapi.json", b"/health", b"/", b"", b"*", b"/v1/fleet", b"/v1/fleet/", b"/v1/responses"),
        *(b"//v1/fleet/pull-messages", b"/v1/fleet//pull-messages", b"/v1/fleet/pull-messages/", b"/v1/fleet/./pull-messages"),
        *(b"/v1/fleet/../control/list-nodes", b"/v1/fleet/%2e%2e/control/list-nodes", b"/v1/fleet/pull-messages%2f..%2f..%2fcontrol"),
        *(b"/V1/fleet/pull-messages", b"/v1/Fleet/Pull-Messages", b"/v1/fleet/pull%2Dmessages", b"/v1/fleet/pull-messages;x"),
        *(b"https://localhost/v1/fleet/pull-messages", b"/v1/fleet/pull-messages%00", b"/v1/fleet/pull-messages\\..\\..", b"/v1\\fleet"),
    ],
)
def test_a_site_reaches_nothing_else(call: bytes, federation: Federation, north: SiteKey) -> None:
    assert outcome(federation, north.headers(), call) == NOTHING


def test_neither_by_another_method_a_query_or_a_path_that_means_two_things(federation: Federation, north: SiteKey) -> None:
    for method in ("GET", "PUT", "post", "OPTIONS", "CONNECT", "HEAD"):
        assert outcome(federation, north.headers(), PULL, method) == NOTHING
    assert outcome(federation, north.headers(), PULL, "POST", b"x=1") == NOTHING
    assert outcome(federation, north.headers(), path="/v1/control/list-nodes") == NOTHING
    asyncio.run(Gate(Behind(), Members(federation.path))({"type": "websocket"}, None, None))  # type: ignore[arg-type]


def test_who_did_not_sign_now_with_a_members_key_gets_nothing(federation: Federation, north: SiteKey) -> None:
    stranger, south = SiteKey(), SiteKey.hand_out(federation.path, "south")
    good = north.headers()
    forged = {
        "nothing": [],
        "a key of one's own": stranger.headers(),
        "another's key, one's own signature": stranger.headers(public=north.public),
        "one member's key, another's signature": south.headers(public=north.public),
        "a signature of another time": north.headers(signed=b"2026-01-01T00:00:00+00:00"),
        "no zone": north.headers(time=b"2126-01-01T00:00:00"),
        "no time": north.headers(time=b"now"),
        "no ASCII": north.headers(time="½".encode()),
        "no key": good[1:],
        "no signature": [good[0], good[2]],
        "no base64": [good[0], (b"flwr-signature", b"!!!"), good[2]],
        "no signature but base64": [good[0], (b"flwr-signature", base64.b64encode(b"x" * 100)), good[2]],
        "twice": [*good, stranger.headers()[0]],
        "twice the same": [*good, good[1]],
        "endless": [good[0], (b"flwr-signature", b"A" * 3000), good[2]],
    }
    let_in = {why for why, headers in forged.items() if outcome(federation, headers) != NOTHING}
    assert not let_in and outcome(federation, good) == (200, b"told", 1) == outcome(federation, south.headers())


@pytest.mark.parametrize(("age", "let_in"), [(0, True), (290, True), (320, False), (86400, False), (-3, True), (-20, False), (-1e6, False)])
def test_a_signed_time_is_good_for_five_minutes(age: float, let_in: bool, federation: Federation, north: SiteKey) -> None:
    assert outcome(federation, north.headers(age)) == ((200, b"told", 1) if let_in else NOTHING)


@given(st.lists(st.tuples(st.sampled_from([b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"]), st.binary(max_size=80)), max_size=5))
def test_no_headers_make_the_gate_stumble(headers: Headers) -> None:
    key = SiteKey()
    known: Any = {key.public: type("Known", (), {"name": "north", "key": key.private.public_key()})}
    assert signed_by(known, headers) is None
    assert signed_by(known, [key.headers()[0], *headers]) is None


def test_a_removed_site_is_out_with_its_next_call(federation: Federation, north: SiteKey) -> None:
    async def scenario() -> None:
        behind, everybody = Behind(), members(federation.path)
        gate = Gate(behind, Members(federation.path))
        assert await ask(gate, north.headers()) == (200, b"told")
        rewrite(federation.path, {name: site for name, site in everybody.items() if name != "north"})
        assert await ask(gate, north.headers()) == (404, b"")
        rewrite(federation.path, everybody)
        assert await ask(gate, north.headers()) == (200, b"told")
        other = SiteKey.hand_out(federation.path, "north")  # a new key: the old one is no longer good
        assert await ask(gate, north.headers()) == (404, b"")
        assert await ask(gate, other.headers()) == (200, b"told")

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_read_lets_nobody_in_until_it_can(federation: Federation, north: SiteKey) -> None:
    async def scenario() -> None:
        file, gate = federation.path / "federation.json", Gate(Behind(), Members(federation.path))
        whole = file.read_bytes()
        assert await ask(gate, north.headers()) == (200, b"told")
        for broken in (whole[:-20], whole.replace(b"ecdsa-sha2", b"ecdsb-sha2"), b"", b"[]"):
            file.write_bytes(broken)
            assert await ask(gate, north.headers()) == (503, b"")  # which a SuperNode tries again
        file.unlink()
        assert await ask(gate, north.headers()) == (503, b"")
        file.write_bytes(whole)
        assert await ask(gate, north.headers()) == (200, b"told")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("call", "told", "let_in"),
    [
        (PULL, [(b"content-length", b"1048576")], True),
        (PULL, [(b"content-length", b"1048577")], False),
        (b"/v1/fleet/push-object", [(b"content-length", b"33600000")], True),
        (b"/v1/fleet/push-object", [(b"content-length", b"34603009")], False),
        (PULL, [], False),
        (PULL, [(b"transfer-encoding", b"chunked")], False),
        (PULL, [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")], False),
        (PULL, [(b"content-length", b"1"), (b"content-length", b"2")], False),
        (PULL, [(b"content-length", b"-1")], False),
        (PULL, [(b"content-length", "²".encode("latin-1"))], False),
    ],
)
def test_a_call_brings_only_so_much_along(call: bytes, told: Headers, let_in: bool, federation: Federation, north: SiteKey) -> None:
    assert outcome(federation, north.headers(), call, told=told) == ((200, b"told", 1) if let_in else (413, b"", 0))


def test_a_site_has_only_so_many_calls_under_way(federation: Federation, north: SiteKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_CALLS_AT_ONCE", 2)
    south = SiteKey.hand_out(federation.path, "south")

    async def scenario() -> None:
        gate, go_on = Gate(Behind(), Members(federation.path)), asyncio.Event()

        async def slowly() -> Any:
            await go_on.wait()
            return {"type": "http.request", "body": b"?"}

        waiting = [asyncio.create_task(ask(gate, north.headers(), b"/v1/fleet/pull-object", receive=slowly)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await ask(gate, north.headers()) == (503, b"")
        assert await ask(gate, south.headers()) == (200, b"told")  # nobody else has to wait for it
        go_on.set()
        assert await asyncio.gather(*waiting) == [(200, b"told")] * 2
        assert await ask(gate, north.headers()) == (200, b"told")

    asyncio.run(scenario())


def test_a_caller_that_stops_in_the_middle_counts_as_gone(federation: Federation, north: SiteKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_SILENCE", 0.01)
    behind, parts = Behind(), iter([{"type": "http.request", "body": b"a", "more_body": True}])

    async def receive() -> Any:
        return next(parts, None) or await asyncio.Event().wait()

    with pytest.raises(IndexError):  # there is no answer
        asyncio.run(ask(Gate(behind, Members(federation.path)), north.headers(), b"/v1/fleet/pull-object", receive=receive))
    assert behind.reached == [("/v1/fleet/pull-object", b"gone")]


@contextlib.asynccontextmanager
async def listening(federation: Federation, behind: Behind) -> AsyncIterator[tuple[Listener, ssl.SSLContext]]:
    certificate = str(federation.path / "server.pem"), str(federation.path / "secrets/server.key")
    (federation.path / "flower").mkdir(exist_ok=True)
    listener = Listener(federation.path, behind, ("127.0.0.1", 0), certificate)
    serving = asyncio.create_task(listener.serve())
    while not (listener._inside.started and listener._outside.started):
        await asyncio.sleep(0.01)
    try:
        yield listener, ssl.create_default_context(cafile=str(federation.path / "ca.pem"))
    finally:
        listener.stop()
        await serving


def with_listener(federation: Federation, scenario: Callable[[Listener, ssl.SSLContext, Behind], Awaitable[None]]) -> None:
    async def run() -> None:
        behind = Behind()
        async with listening(federation, behind) as (listener, context):
            await asyncio.wait_for(scenario(listener, context, behind), 60)

    asyncio.run(run())


async def raw(port: int, context: ssl.SSLContext, data: bytes) -> bytes:
    """All that comes back for these bytes, until the other side ends the connection."""
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""
    finally:
        writer.close()


def test_over_tls_a_site_gets_through_and_a_stranger_finds_nothing(federation: Federation, north: SiteKey) -> None:
    async def scenario(listener: Listener, context: ssl.SSLContext, behind: Behind) -> None:
        piece = bytes(PushObjectRequest(object_content=os.urandom(5 * 2**20), session_id="s").SerializeToString())
        async with httpx.AsyncClient(verify=context, base_url=f"https://localhost:{listener.port}") as client:
            for _ in range(2):  # over one connection
                answer = await client.post("/v1/fleet/push-object", content=piece, headers=north.headers())
                assert (answer.status_code, answer.content) == (200, b"told")
            answer = await client.post("/v1/control/list-nodes", content=b"", headers=north.headers())
            assert (answer.status_code, answer.content, dict(answer.headers)) == (404, b"", {"content-length": "0", "connection": "close"})
        assert behind.reached == [("/v1/fleet/push-object", piece)] * 2
        for line in (b"GET / HTTP/1.1", b"POST https://localhost/v1/control/list-nodes HTTP/1.1", b"PRI * HTTP/2.0"):
            assert (await raw(listener.port, context, line + b"\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        upgrade = b"GET /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert (await raw(listener.port, context, upgrade)).startswith(b"HTTP/1.1 404 ")
        for nonsense in (b"\x00\x01\x02\r\n\r\n", b"POST /\r\n\r\n", b"x" * 100_000):
            assert await raw(listener.port, context, nonsense) == b""
        assert len(behind.reached) == 2

    with_listener(federation, scenario)


def test_a_connection_on_which_nothing_is_asked_ends(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_HEAD_SECONDS", 0.05)

    async def scenario(listener: Listener, context: ssl.SSLContext, behind: Behind) -> None:
        assert await raw(listener.port, context, b"") == b""
        assert await raw(listener.port, context, b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: ") == b""

    with_listener(federation, scenario)


def test_one_address_has_only_so_many_connections(federation: Federation, north: SiteKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_FROM_ONE_ADDRESS", 3)

    async def scenario(listener: Listener, context: ssl.SSLContext, behind: Behind) -> None:
        held = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]  # not even TLS is spoken
        async with httpx.AsyncClient(verify=context, base_url=f"https://localhost:{listener.port}") as client:
            with pytest.raises(httpx.TransportError):
                await client.post(PULL.decode(), content=b"", headers=north.headers())
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            while True:
                with contextlib.suppress(httpx.TransportError):  # until the server saw them end
                    assert (await client.post(PULL.decode(), content=b"", headers=north.headers())).status_code == 200
                    break

    with_listener(federation, scenario)


def test_a_renewed_certificate_is_shown_from_the_next_connection_on(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_LOOK", 0.01)
    authority = keys.Authority.make("other", 10)
    certificate, key = authority.certify("localhost", 10)

    async def scenario(listener: Listener, context: ssl.SSLContext, behind: Behind) -> None:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        assert await raw(listener.port, context, request)
        (federation.path / "server.pem").write_bytes(certificate)
        await asyncio.sleep(0.1)
        assert await raw(listener.port, context, request)  # its key is not there yet: the old ones go on
        (federation.path / "secrets/server.key").write_bytes(key)
        renewed = ssl.create_default_context(cadata=authority.pem.decode())
        while True:
            with contextlib.suppress(ssl.SSLError):
                assert await raw(listener.port, renewed, request)
                break
            await asyncio.sleep(0.01)

    with_listener(federation, scenario)


def test_the_owner_reaches_everything_over_a_socket_that_is_the_owners_alone(tmp_path: Path) -> None:
    """In a folder whose path is longer than the name of a socket may be, too."""
    federation = init(tmp_path / ("long" * 40) / "federation", "localhost", ["north"])

    async def scenario(listener: Listener, context: ssl.SSLContext, behind: Behind) -> None:
        found = federation.path / "flower/superlink.sock"
        mode = found.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600 and stat.S_IMODE(federation.path.stat().st_mode) == 0o700
        (tmp_path / "to").symlink_to(found.parent)
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "to/superlink.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            assert (await client.post("/v1/control/list-nodes", content=b"?")).content == b"told"
        assert behind.reached == [("/v1/control/list-nodes", b"?")]

    with_listener(federation, scenario)


def looks(gate: Gate, key: SiteKey, **more: Any) -> asyncio.Task[tuple[int, bytes]]:
    return asyncio.create_task(ask(gate, key.headers(), PULL, **more))


def test_a_look_for_messages_is_held_until_there_may_be_some(
    federation: Federation, north: SiteKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "_HELD", 60.0)
    south = SiteKey.hand_out(federation.path, "south")

    async def scenario() -> None:
        behind, bell = Behind(), Bell()
        gate, owner = Gate(behind, Members(federation.path), bell), Held(behind, bell)
        assert await looks(gate, north) == (200, b"told")  # the first is not
        held = looks(gate, north)
        for call in (b"/v1/fleet/push-messages", b"/v1/fleet/pull-object", b"/v1/fleet/send-node-heartbeat"):
            assert await ask(gate, south.headers(), call) == (200, b"told")  # what sites do is nothing for sites
        await asyncio.sleep(0.01)
        assert not held.done()
        assert await ask(cast(Gate, owner), [], b"/v1/runtime/push-messages") == (200, b"told")
        assert await held == (200, b"told")
        held = looks(gate, north)
        await asyncio.sleep(0.01)
        assert not held.done()
        assert await looks(gate, south) == (200, b"told")  # it has not looked since
        held.cancel()

    asyncio.run(scenario())


def test_a_look_is_not_held_for_ever(federation: Federation, north: SiteKey) -> None:
    async def scenario() -> None:
        gate = Gate(Behind(), Members(federation.path))
        assert [await looks(gate, north) for _ in range(3)] == [(200, b"told")] * 3

    asyncio.run(scenario())


def test_a_caller_that_is_gone_or_looks_again_takes_no_message(
    federation: Federation, north: SiteKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Flower gives to a call counts as delivered, so a call that nobody waits for any more must not reach it."""
    monkeypatch.setattr(gate_module, "_HELD", 60.0)

    async def scenario() -> None:
        behind, bell = Behind(), Bell()
        gate = Gate(behind, Members(federation.path), bell)
        await looks(gate, north)
        parts = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"?", "more_body": False}]

        async def hangs_up() -> Any:
            return parts.pop()

        assert await looks(gate, north, receive=hangs_up) == (503, b"")
        first = looks(gate, north)
        await asyncio.sleep(0.01)
        second = looks(gate, north)
        assert await first == (503, b"")
        bell.ring("sites")
        assert await second == (200, b"told") and len(behind.reached) == 2

    asyncio.run(scenario())
