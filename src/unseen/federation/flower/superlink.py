"""The server of a federation: a SuperLink that survives being killed, knows the members of the moment, and repairs its own state."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from filelock import FileLock, Timeout
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.constant import NodeStatus
from flwr.supercore.error import FlowerError

from unseen.errors import BadInput
from unseen.federation.activity import Event, Observer, nobody
from unseen.federation.flower.members import Members, NodeMember
from unseen.federation.flower.owner import control_client
from unseen.federation.flower.processes import FlowerProcess
from unseen.federation.kits import Federation

__all__ = ["connections", "serve"]

_POLL, _AFTER_FAILURE, _LOOK_AROUND = 0.5, 2.0, 5.0  # seconds
_FAILURES = 5  # starts that came to nothing, or calls that failed inside the SuperLink, one after the other: its state is to blame
_AT_MOST_EVERY = 600.0  # seconds between two states that are put aside for this: what a new one does not mend has another cause


class UnusableState(Exception):
    """What Flower keeps on disk cannot serve this federation."""


def serve(federation: Federation, host: str, port: int, observer: Observer, fresh: bool = False) -> None:
    """Run the SuperLink until interrupted; one that ends is started again over the same state."""
    os.umask(0o077)

    def say(text: str) -> None:
        observer(Event("note", text))

    with _alone(federation.path):
        if fresh:
            put_aside(federation.path / "state.db", say)
        keeper = _Keeper(federation, host, port, say, observer)
        try:
            while True:
                keeper.look()
                time.sleep(_POLL)
        finally:
            keeper.close()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    (folder / "flower").mkdir(exist_ok=True, mode=0o700)
    try:
        with FileLock(folder / "flower/serve.lock", timeout=0):
            yield
    except Timeout:
        raise BadInput(f"{folder} is being served already; stop that `unseen serve` first") from None


class _Keeper:
    """Keeps the SuperLink running, and its nodes those of the federation."""

    def __init__(self, federation: Federation, host: str, port: int, say: Callable[[str], None], observer: Observer = nobody) -> None:
        self._federation, self._where, self._say, self._observer = federation, (host, port), say, observer
        self._connected: set[str] = set()
        self._database, self._members = federation.path / "state.db", Members(federation.path)
        arguments = _arguments(federation.path, host, port)
        self._process = FlowerProcess("superlink", arguments, federation.path / "flower", self._may_start)
        self._failures, self._next_look, self._gave_up_at = 0, 0.0, -_AT_MOST_EVERY
        self._told: dict[str, str | None] = {}
        self._seen: dict[bytes, NodeMember] | None = None

    def look(self) -> None:
        ended = self._process.keep_alive()
        if ended is not None:
            self._say(f"the SuperLink ended and is started again {ended}".rstrip())
            self._failures += 1
            self._next_look = 0.0
        try:
            members = self._members.present()
            self._tell("members", None)
        except BadInput as bad:  # the gate lets nobody in until it can be read again
            self._tell("members", str(bad))
            return
        if members != self._seen:
            self._seen, self._next_look = members, 0.0
        if time.monotonic() >= self._next_look:
            self._bring_up_to_date(members)

    def _bring_up_to_date(self, members: dict[bytes, NodeMember]) -> None:
        try:
            self._tell_who_is_there(reconcile(self._federation.path, members))
        except UnusableState as unusable:
            self._begin_anew(str(unusable))
        except httpx.HTTPStatusError:
            self._failures, self._next_look = self._failures + 1, time.monotonic() + _AFTER_FAILURE
        except (httpx.HTTPError, FlowerError):
            pass  # not up yet
        else:
            self._failures, self._next_look = 0, time.monotonic() + _LOOK_AROUND
            host, port = self._where
            names = ", ".join(sorted(member.name for member in members.values())) or "nobody yet"
            self._tell("serving", f"serving federation {self._federation.id} on {host}:{port} for {names}")
        if self._failures >= _FAILURES:
            self._failures = 0
            if time.monotonic() - self._gave_up_at < _AT_MOST_EVERY:
                self._say(f"the SuperLink fails with a new state too; {self._process.log} has more")
            else:
                self._gave_up_at = time.monotonic()
                self._begin_anew("it failed again and again")

    def _tell_who_is_there(self, connected: set[str]) -> None:
        for name in sorted(connected ^ self._connected):
            self._observer(Event("connected", site=name) if name in connected else Event("lost", site=name))
        self._connected = connected

    def _begin_anew(self, why: str) -> None:
        """Put the state aside: it is messages under way, which are sent again."""
        self._say(f"the SuperLink's state cannot be used ({why}); it begins with a new one")
        self._process.close()
        put_aside(self._database, self._say)

    def _may_start(self) -> bool:
        """Whether its port is free. A state that is broken is put aside first."""
        try:
            with socket.create_server(self._where, family=socket.AF_INET6 if ":" in self._where[0] else socket.AF_INET):
                self._tell("port", None)
        except OSError as error:
            self._tell("port", f"cannot listen on {self._where[0]}:{self._where[1]} ({error.strerror}); waiting until it can")
            return False
        if not _is_whole(self._database):
            self._say("the SuperLink's state is broken; it begins with a new one")
            put_aside(self._database, self._say)
        return True

    def _tell(self, about: str, text: str | None) -> None:
        """Once."""
        if text is not None and self._told.get(about) != text:
            self._say(text)
        self._told[about] = text

    def close(self) -> None:
        self._process.close()


def _arguments(folder: Path, host: str, port: int) -> list[str]:
    options = {
        "--host": host,
        "--port": port,
        "--ssl-ca-certfile": folder / "ca.pem",
        "--ssl-certfile": folder / "server.pem",
        "--ssl-keyfile": folder / "secrets/server.key",
        "--database": folder / "state.db",
        "--isolation": "process",
        "--superexec-auth-secret-file": folder / "secrets/exec.secret",
    }
    flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    return [str(folder), *(str(word) for pair in options.items() for word in pair), *flags]


def reconcile(folder: Path, members: dict[bytes, NodeMember]) -> set[str]:
    """Tell the SuperLink whose keys may connect, and whose no longer; who is connected. UnusableState if it will not take a key again.

    Flower never forgets a key that was unregistered, and never registers it again.
    """
    control = control_client(folder)
    try:
        nodes = {bytes(node.public_key): node for node in control.ListNodes(ListNodesRequest()).nodes_info}
        left = {key for key, node in nodes.items() if node.status == NodeStatus.UNREGISTERED}
        for key in nodes.keys() - members.keys() - left:
            control.UnregisterNode(UnregisterNodeRequest(node_id=nodes[key].node_id))
        for key, member in members.items():
            if key in left:
                raise UnusableState(f"{member.name} was unregistered in it")
            if key not in nodes:
                control.RegisterNode(RegisterNodeRequest(public_key=key, name=member.name))
        return {member.name for key, member in members.items() if key in nodes and nodes[key].status == NodeStatus.ONLINE}
    finally:
        control.close()


def connections(folder: Path) -> dict[str, str]:
    """The sites that are connected to the SuperLink of this folder, and since when. OSError if nobody serves it."""
    control = control_client(folder)
    try:
        nodes = {bytes(node.public_key): node for node in control.ListNodes(ListNodesRequest()).nodes_info}
    except (httpx.HTTPError, FlowerError) as error:
        raise ConnectionError(type(error).__name__) from error
    finally:
        control.close()
    there = {name: nodes[key] for name, key in Members(folder).keys().items() if key in nodes}
    return {name: str(node.last_activated_at) for name, node in there.items() if node.status == NodeStatus.ONLINE}


def _is_whole(database: Path) -> bool:
    """Whether SQLite can read it, all of it; one that is not there yet will be."""
    if not database.exists():
        return True
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
            return list(connection.execute("PRAGMA quick_check(1)")) == [("ok",)]
    except sqlite3.OperationalError:
        return True  # locked, or no room: that has another cause
    except sqlite3.DatabaseError:
        return False


def put_aside(database: Path, say: Callable[[str], None]) -> None:
    """Rename a database and what SQLite keeps beside it; Flower makes a new one."""
    mark = f"broken-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", "-wal", "-shm"):
        file = database.with_name(database.name + suffix)
        if file.exists():
            file.rename(database.with_name(f"{database.name}.{mark}{suffix}"))
            if not suffix:
                say(f"the old one is {file}.{mark}; nobody needs it")
