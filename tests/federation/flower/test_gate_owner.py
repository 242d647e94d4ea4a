"""Looks of the owner's processes: each is held on its own, and little is remembered of those that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

from unseen.federation.flower import gate as gate_module
from unseen.federation.flower.gate import Bell, Held


def token(word: str) -> list[tuple[bytes, bytes]]:
    """What Flower's own client sends with each call of a run."""
    import httpx
    from flwr.supercore.protobuf.client import ProtobufRequestContext

    request = httpx.Request("POST", "http://x")
    context = ProtobufRequestContext(rpc_method="", message=None, request=request)
    RuntimeTokenHttpInterceptor(word).intercept(context, lambda context: httpx.Response(200, request=context.request))
    return [(name.lower(), value) for name, value in request.headers.raw]


async def status(held: Held, headers: list[tuple[bytes, bytes]], call: bytes = b"/v1/runtime/pull-messages") -> int:
    sent, parts = list[Any](), [{"type": "http.request", "body": b"?", "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(part: Any) -> None:
        sent.append(part)

    await held({"type": "http", "raw_path": call, "headers": headers}, receive, send)
    return int(sent[0]["status"])


async def behind(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def test_two_processes_of_the_owner_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that is turned away costs its process the run, and its questions are asked again. One that looks twice is still told so."""
    monkeypatch.setattr(gate_module, "_HELD", 60.0)

    async def scenario() -> None:
        held, runs = Held(behind, Bell()), [token("of one run"), token("of another")]
        assert [await status(held, run) for run in runs] == [200, 200]  # the first of each is not held
        looks = [asyncio.create_task(status(held, run)) for run in runs]
        await asyncio.sleep(0.01)
        assert not looks[0].done() and not looks[1].done()
        looks.append(asyncio.create_task(status(held, runs[1])))
        await asyncio.sleep(0.01)
        assert [look.done() for look in looks] == [False, True, False] and await looks[1] == 503
        await status(held, [], b"/v1/fleet/push-messages")
        assert await looks[0] == await looks[2] == 200

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_of_runs_that_are_gone_little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_LISTENERS", 3)

    async def scenario() -> None:
        bell = Bell()
        held = Held(behind, bell)
        for number in range(10):
            assert await status(held, token(str(number))) == 200
        assert len(bell._heard) == 3

    asyncio.run(scenario())
