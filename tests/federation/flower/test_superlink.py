"""How a server keeps its SuperLink: members registered and unregistered, and a state that cannot be used put aside."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
import httpx
from filelock import FileLock

from site_keys import SiteKey
from unseen.errors import BadInput
from unseen.federation.activity import Event
from unseen.federation.flower import owner, superlink
from unseen.federation.flower.members import Members
from unseen.federation.flower.superlink import UnusableState, _is_whole, _Keeper, put_aside, reconcile, serve
from unseen.federation.kits import Federation, init


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return init(tmp_path / "federation", "localhost", ["north", "south"], free_port())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Nodes:
    """As much of Flower's control interface as counts here: it takes no key twice, not even one that it forgot."""

    def __init__(self) -> None:
        self.known: dict[bytes, Any] = {}

    def ListNodes(self, request: Any) -> Any:  # noqa: N802
        return SimpleNamespace(nodes_info=list(self.known.values()))

    def RegisterNode(self, request: Any) -> None:  # noqa: N802
        assert request.public_key not in self.known
        node = SimpleNamespace(public_key=request.public_key, name=request.name, node_id=len(self.known), status="registered")
        self.known[request.public_key] = node

    def UnregisterNode(self, request: Any) -> None:  # noqa: N802
        list(self.known.values())[request.node_id].status = "unregistered"

    def close(self) -> None:
        pass

    def names(self) -> list[str]:
        return sorted(node.name for node in self.known.values() if node.status != "unregistered")


def test_nodes_become_those_of_the_federation(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, members = Nodes(), Members(federation.path)
    monkeypatch.setattr(superlink, "control_client", lambda folder: nodes)
    nodes.RegisterNode(SimpleNamespace(public_key=b"somebody's", name="evil"))
    reconcile(federation.path, members.present())
    assert nodes.names() == ["north", "south"]
    reconcile(federation.path, members.present())  # which changes nothing
    old = members.keys()["north"]
    SiteKey.hand_out(federation.path, "north")
    reconcile(federation.path, members.present())
    assert nodes.names() == ["north", "south"] and nodes.known[old].status == "unregistered"
    nodes.known[members.keys()["south"]].status = "unregistered"
    with pytest.raises(UnusableState, match="south was unregistered"):
        reconcile(federation.path, members.present())


def database(file: Path) -> Path:
    with sqlite3.connect(file) as connection:
        connection.execute("create table if not exists t (x)")
        connection.executemany("insert into t values (?)", [("y" * 500,) for _ in range(100)])
    connection.close()
    return file


def test_a_broken_database_is_told_from_a_whole_one(tmp_path: Path) -> None:
    whole = database(tmp_path / "whole.db")
    data = whole.read_bytes()
    broken = {"text": b"not a database, " * 500, "cut": data[: len(data) // 2], "overwritten": data[:4096] + b"\xff" * (len(data) - 4096)}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
    assert _is_whole(whole) and _is_whole(tmp_path / "absent.db") and not (tmp_path / "absent.db").exists()
    assert not any(_is_whole(tmp_path / name) for name in broken)


def test_a_database_is_put_aside_with_what_belongs_to_it(tmp_path: Path) -> None:
    said = list[str]()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"state.db{suffix}").write_text(f"content{suffix}")
    put_aside(tmp_path / "state.db", said.append)
    found = {file.name.partition("broken-")[2][15:]: file.read_text() for file in tmp_path.iterdir()}
    assert found == {"": "content", "-wal": "content-wal", "-shm": "content-shm"} and len(said) == 1
    put_aside(tmp_path / "state.db", said.append)  # there is none
    assert len(said) == 1


class Process:
    """Stands in for the SuperLink's process."""

    def __init__(self, may_start: Callable[[], bool]) -> None:
        self.may_start, self.log, self.closed, self.started = may_start, Path("log"), 0, 0
        self.ended: str | None = None

    def keep_alive(self) -> str | None:
        self.started += self.may_start()
        return self.ended

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def kept(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> tuple[_Keeper, Any, list[str]]:
    """A keeper without pauses, its process, and what it says."""
    said = list[str]()
    monkeypatch.setattr(superlink, "FlowerProcess", lambda what, arguments, home, may_start: Process(may_start))
    monkeypatch.setattr(superlink, "_AFTER_FAILURE", 0.0)
    monkeypatch.setattr(superlink, "_LOOK_AROUND", 0.0)
    keeper = _Keeper(federation, "127.0.0.1", federation.port, said.append)
    database(federation.path / "state.db")
    return keeper, keeper._process, said


def fails_with(error: Exception) -> Callable[..., None]:
    def failing(*_: object) -> None:
        raise error

    return failing


FAILED_INSIDE = httpx.HTTPStatusError("500", request=httpx.Request("POST", "http://x"), response=httpx.Response(500))


def test_a_state_that_fails_again_and_again_is_put_aside_but_not_for_ever(
    kept: tuple[_Keeper, Any, list[str]], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, process, said = kept
    monkeypatch.setattr(superlink, "reconcile", fails_with(FAILED_INSIDE))
    for _ in range(4):
        keeper.look()
    assert not said and process.closed == 0
    keeper.look()
    assert process.closed == 1 and len(list(federation.path.glob("state.db.broken-*"))) == 1 and "begins with a new one" in said[0]
    database(federation.path / "state.db")
    for _ in range(20):
        keeper.look()
    assert process.closed == 1 and (federation.path / "state.db").exists() and "fails with a new state too" in said[-1]


def test_a_superlink_that_ends_at_once_again_and_again_gets_a_new_state(
    kept: tuple[_Keeper, Any, list[str]], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, process, said = kept
    monkeypatch.setattr(superlink, "reconcile", fails_with(httpx.ConnectError("not up")))
    for _ in range(50):  # to start slowly is no failure
        keeper.look()
    assert not said
    process.ended = "because"
    for _ in range(5):
        keeper.look()
    assert said[:5] == ["the SuperLink ended and is started again because"] * 5 and "begins with a new one" in said[5]


def test_members_are_told_when_they_change_and_a_lost_registration_ends_the_state(
    kept: tuple[_Keeper, Any, list[str]], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, process, said = kept
    asked, there, seen = list[Any](), {"north"}, list[Event]()
    keeper._observer = seen.append
    monkeypatch.setattr(superlink, "reconcile", lambda folder, members: asked.append(sorted(m.name for m in members.values())) or {*there})
    keeper.look()
    keeper.look()
    assert len(said) == 1 and said[0].endswith("for north, south")
    assert [event.line for event in seen] == ["north: connected"]
    there.clear()
    keeper.look()
    assert seen[-1].line == "north: not connected" and len(seen) == 2
    SiteKey.hand_out(federation.path, "west")
    whole = (federation.path / "federation.json").read_text()
    (federation.path / "federation.json").write_text(whole[:50])
    keeper.look()
    keeper.look()
    assert len(said) == 2 and "cannot be read" in said[1]
    assert asked[-1] == ["north", "south"]
    (federation.path / "federation.json").write_text(whole)
    keeper.look()
    assert asked[-1] == ["north", "south", "west"] and said[2].endswith("for north, south, west")
    monkeypatch.setattr(superlink, "reconcile", fails_with(UnusableState("west was unregistered in it")))
    for number in (1, 2):  # a new state mends that each time
        database(federation.path / "state.db")
        keeper.look()
        assert process.closed == number and not (federation.path / "state.db").exists()


def test_a_superlink_waits_for_its_port_and_does_not_start_over_a_broken_state(
    kept: tuple[_Keeper, Any, list[str]], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, process, said = kept
    monkeypatch.setattr(superlink, "reconcile", fails_with(httpx.ConnectError("not up")))
    (federation.path / "state.db").write_bytes(b"broken " * 1000)
    with socket.create_server(("127.0.0.1", federation.port)):
        keeper.look()
        keeper.look()
    assert process.started == 0 and len(said) == 1 and "waiting until it can" in said[0]
    assert (federation.path / "state.db").exists()  # it may be in use by whoever has the port
    keeper.look()
    assert process.started == 1 and not (federation.path / "state.db").exists() and "is broken" in said[1]


def test_a_federation_is_served_once_and_anew_if_wanted(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[Event]()
    monkeypatch.setattr(_Keeper, "look", fails_with(KeyboardInterrupt()))
    database(federation.path / "state.db")
    with pytest.raises(KeyboardInterrupt):
        serve(federation, "127.0.0.1", federation.port, said.append)
    assert (federation.path / "state.db").exists() and not said
    with pytest.raises(KeyboardInterrupt):
        serve(federation, "127.0.0.1", federation.port, said.append, fresh=True)
    assert not (federation.path / "state.db").exists() and len(said) == 1
    with FileLock(federation.path / "flower/serve.lock"), pytest.raises(BadInput, match="being served already"):
        serve(federation, "127.0.0.1", federation.port, said.append)


def test_the_owners_socket_is_for_the_owner_and_its_link_is_made_where_any_user_may(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere; a server has a user of its own."""
    modes: list[int] = []
    shortened = owner._shortened

    def looking(path: Path, links: str) -> str:
        modes.append(Path(links).stat().st_mode & 0o777)
        return shortened(path, links)

    monkeypatch.setattr(owner, "_shortened", looking)
    (federation.path / "flower").mkdir()
    owner.bind_for_owner(federation.path).close()
    assert modes == [0o700] and (federation.path / "flower/superlink.sock").stat().st_mode & 0o777 == 0o600
