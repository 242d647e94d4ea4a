"""A SuperNode's way with pieces: between a file and the line, and what a server cannot do to it."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node

from unseen.federation.flower import fleet as fleet_module
from unseen.federation.flower import pieces as pieces_module
from unseen.federation.flower.fleet import fleet_client
from unseen.federation.flower.pieces import Pieces, head_of

BODY = random.Random(0).randbytes(640_001)  # several steps, and not a whole number of them
HEAD = head_of(len(BODY))
NAME = hashlib.sha256(HEAD + BODY).hexdigest()


@pytest.fixture
def pieces(tmp_path: Path) -> Pieces:
    return Pieces(tmp_path / "pieces")


def given(content: bytes) -> bytes:
    return bytes(
        PushObjectRequest(node=Node(node_id=7), run_id=5, object_id=NAME, object_content=content, session_id="s").SerializeToString()
    )


def files(pieces: Pieces) -> list[str]:
    return sorted(file.name for file in pieces._folder.iterdir())


@pytest.fixture
def server() -> Iterator[Any]:
    """Answers calls of a SuperNode in plain HTTP: `server.says` to each, and `server.asked` has what came."""

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            kept.asked.append(self.rfile.read(int(self.headers["content-length"])))
            status, body = kept.says
            self.send_response(status)
            if kept.packed:
                self.send_header("content-encoding", "gzip")
            if kept.endless:
                self.close_connection = True
            else:
                self.send_header("content-length", str(len(body) + kept.lies))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the other end has heard enough
                self.wfile.write(body)
            if kept.lies:
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: Any) -> None:
            pass

    kept: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    kept.handle_error = lambda *_: None  # the other end may hang up
    kept.asked, kept.says, kept.lies, kept.endless, kept.packed = [], (200, b""), 0, False, False
    thread = threading.Thread(target=kept.serve_forever, daemon=True)
    thread.start()
    yield kept
    kept.shutdown()
    kept.server_close()


def client(pieces: Pieces, server: Any) -> Any:
    return fleet_client(pieces).from_server_address(f"127.0.0.1:{server.server_port}", True, None, [])


def test_a_supernode_gives_a_piece_out_of_its_file(pieces: Pieces, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces.lay(NAME, BODY)
    server.says = 200, PushObjectResponse(stored=True).SerializeToString()
    with client(pieces, server) as fleet:
        for direct in (True, False):  # without a proxy and with one
            monkeypatch.setattr(fleet._lines, "direct", direct)
            assert fleet.PushObject(PushObjectRequest.FromString(given(content=HEAD))).stored
            assert server.asked.pop() == given(content=HEAD + BODY)
        small = given(content=b"small")
        assert fleet.PushObject(PushObjectRequest.FromString(small)).stored and server.asked.pop() == small
        server.says = 503, b""
        monkeypatch.setattr(fleet._lines, "direct", True)
        with pytest.raises(httpx.HTTPStatusError):
            fleet.PushObject(PushObjectRequest.FromString(given(content=HEAD)))


def test_a_supernode_takes_a_piece_into_a_file(pieces: Pieces, server: Any) -> None:
    asks, says = PullObjectRequest(node=Node(node_id=7), object_id=NAME), PullObjectResponse(object_found=True, object_available=True)
    with client(pieces, server) as fleet:
        server.says = 200, says.SerializeToString()
        assert fleet.PullObject(asks) == says and not files(pieces)
        says.object_content = HEAD + BODY
        server.says = 200, says.SerializeToString(deterministic=True)
        taken = fleet.PullObject(asks)
        assert taken.object_content == HEAD and taken.object_available and pieces.path(NAME).read_bytes() == BODY
        assert server.asked == [asks.SerializeToString()] * 2
        pieces.sweep()
        says.object_content = b"ConfigRecord  200000\0" + bytes(200000)
        server.says = 200, says.SerializeToString()
        assert fleet.PullObject(asks) == says and not files(pieces)


def test_a_supernode_throws_away_half_a_piece(pieces: Pieces, server: Any) -> None:
    asks, says = PullObjectRequest(object_id=NAME), PullObjectResponse(object_found=True, object_available=True, object_content=HEAD + BODY)
    server.says, server.lies = (200, says.SerializeToString()[:-1000]), 1000
    with client(pieces, server) as fleet, pytest.raises(httpx.TransportError):
        fleet.PullObject(asks)
    server.lies = 0
    server.says = 200, says.SerializeToString()
    with client(pieces, server) as fleet, pytest.raises(ValueError, match="name"):
        fleet.PullObject(PullObjectRequest(object_id="../escaped"))
    assert not files(pieces)


def test_a_supernode_takes_no_endless_answer(pieces: Pieces, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_MOST", 100_000)
    says = PullObjectResponse(object_found=True, object_content=b"ConfigRecord  200000\0" + bytes(200_000))
    server.says = 200, says.SerializeToString()
    for server.endless in (True, False):  # of a length that is not told, and of one that is
        with client(pieces, server) as fleet, pytest.raises(httpx.TransportError, match="too large"):
            fleet.PullObject(PullObjectRequest(object_id=NAME))
    says.object_content, server.endless = b"small", True
    server.says = 200, says.SerializeToString()
    with client(pieces, server) as fleet:
        assert fleet.PullObject(PullObjectRequest(object_id=NAME)) == says


def test_a_supernode_unpacks_nothing(pieces: Pieces, server: Any) -> None:
    """A small answer could unpack to more than the memory holds."""
    says = PullObjectResponse(object_found=True, object_content=b"small")
    server.says, server.packed = (200, says.SerializeToString()), True
    with client(pieces, server) as fleet:
        assert fleet.PullObject(PullObjectRequest(object_id=NAME)) == says


def test_a_supernode_whose_disk_is_full_takes_a_piece_as_flower_does(pieces: Pieces, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is not to blame. The site then says itself that its disk is full."""
    says = PullObjectResponse(object_found=True, object_available=True, object_content=HEAD + BODY)
    server.says = 200, says.SerializeToString()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    nearly = SimpleNamespace(free=pieces_module._ROOM + len(BODY) - 1)
    for kind, what, instead in (
        (pieces_module.Arriving, "write", full),
        (pieces_module.Arriving, "name", full),
        (pieces_module.Arriving, "__init__", full),
        (shutil, "disk_usage", lambda folder: nearly),
    ):
        with monkeypatch.context() as patched, client(pieces, server) as fleet:
            patched.setattr(kind, what, instead)
            assert fleet.PullObject(PullObjectRequest(object_id=NAME)) == says
        assert not files(pieces)
