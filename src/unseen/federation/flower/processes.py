"""A Flower process that ends with the process that started it: `python -m unseen.federation.flower.processes superlink|supernode ...`.

The SuperNode asks the SuperLink for work every 3 s, and looks every 0.5 s whether an answer is ready; neither can be set. A round
trip would wait for these clocks longer than for anything else, so here it looks often at first, and the more seldom the longer there was
nothing; the gate holds such a look until there may be something. The SuperLink's database has large pages. A SuperNode that was killed
is let in again only after it missed two heartbeats; here they come every 15 s instead of 30. One whose connection breaks during
the handshake would give up and live on deaf; here it tries again. The SuperLink listens through our gate.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unseen.engines.child import ChildProcess, end_with_parent
from unseen.federation.activity import BoundedLog
from unseen.federation.flower.pieces import MOST_PIECES, Pieces, ask_again_for_lost, keep_in_files
from unseen.federation.waiting import Pause

__all__ = ["FlowerProcess", "ServerLine", "main"]

_LEAST, _MOST = 0.02, 1.0  # seconds between two looks of a SuperNode
_WORKED = 0.05  # seconds awake in which a SuperNode took or gave a message; to look for one takes less
_LOOK = 1.0  # seconds; a task without a heartbeat ends after half a minute
_GIVING = 1800  # seconds that a site has for the next piece of its answer; Flower's three minutes would be too few on a slow line
_PAGE = 2**16  # bytes, the largest that SQLite has
_HEARTBEAT = 15  # seconds
_MOST_PAUSE = 5.0  # seconds between two starts
_REASONS = ("[code:", "[SSL:")  # how a line begins that says why a connection failed; other lines only say that one did
_NOT_LET_IN = (
    "the server does not know this site: it was not admitted or was removed, or its clock is ahead of the server's or minutes behind"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class FlowerProcess:
    """A SuperLink or SuperNode, started again whenever it ends, until it is closed."""

    def __init__(self, what: str, arguments: Sequence[str], home: Path, may_start: Callable[[], bool] = lambda: True) -> None:
        self._arguments = (what, *arguments)
        self._home, self._may_start = home, may_start
        self._process: ChildProcess | None = None
        self._pause, self._not_before = 1.0, 0.0
        self.log = home / f"{what}.log"

    def keep_alive(self) -> str | None:
        """Start the process if it is not running. Returns why it ended, as far as its log tells, or None if it had not."""
        ended = None
        if self._process is not None and not self._process.alive:
            ended, self._process = self.last_words(), None
            self._not_before = time.monotonic() + self._pause
            self._pause = min(_MOST_PAUSE, 2 * self._pause)
        if self._process is None and time.monotonic() >= self._not_before and self._may_start():
            self._start()
        return ended

    def _start(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A site gives one piece at a time: what it signs for a piece holds for five minutes, which a slow line needs for it alone.
        quiet = {
            "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "1",
            "FLWR_HOME": str(self._home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "NO_COLOR": "1",
        }
        BoundedLog(self.log).bound()
        module = "unseen.federation.flower.processes"
        self._process = ChildProcess(module, *self._arguments, pipes=False, environment=quiet, log=self.log)

    def last_words(self) -> str:
        """The last complaint in the log."""
        with contextlib.suppress(OSError):
            text = _COLOUR.sub("", self.log.read_text(errors="replace"))
            lines = [line.strip() for line in text.splitlines()[-40:] if "error" in line.lower() or line.startswith(_REASONS)]
            reasons = [line for line in lines if line.startswith(_REASONS)] or lines
            if reasons:
                return _NOT_LET_IN if "404 Not Found" in reasons[-1] else reasons[-1]
        return ""

    def close(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


class ServerLine:
    """Whether a SuperNode reaches its server, told to the process that started it by a file in the SuperNode's folder."""

    def __init__(self, home: Path) -> None:
        self._file, self._up = home / "connected", False

    def is_up(self, up: bool) -> None:
        """Said with every call; written only when it changes."""
        if up != self._up:
            self._up = up
            with contextlib.suppress(OSError):
                self._file.touch(mode=0o600) if up else self._file.unlink(missing_ok=True)

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    @property
    def up(self) -> bool:
        return self._file.exists()


class _QuickClock:
    """Stands in for the module `time` where only `sleep` is used."""

    def __init__(self) -> None:
        self._waits, self._woke, self._pause = 0.0, 0.0, Pause()

    def sleep(self, seconds: float) -> None:
        if seconds != self._waits or time.monotonic() - self._woke > _WORKED:  # what it waited for came, and it waits for the next
            self._waits, self._pause = seconds, Pause(_LEAST, _MOST)
        self._pause.rest(False)
        self._woke = time.monotonic()


def _persistent(make: Callable[[], Any], home: Path) -> Any:
    """Flower's way to try again, but a connection that broke during the handshake is no reason to give up: a wrong certificate is."""
    from flwr.supercore.retry import exponential

    invoker = make()
    give_up = invoker.should_giveup
    invoker.should_giveup = lambda error: ("certificate" in str(error).lower() or not _is_transport(error)) and give_up(error)
    invoker.wait_gen_factory = lambda: exponential(max_delay=_MOST_PAUSE)
    line = ServerLine(home)
    invoker.on_success = _both(invoker.on_success, lambda _: line.is_up(True))
    invoker.on_backoff = _both(invoker.on_backoff, lambda _: line.is_up(False))
    return invoker


def _both(first: Callable[[Any], None] | None, second: Callable[[Any], None]) -> Callable[[Any], None]:
    def call(state: Any) -> None:
        if first is not None:
            first(state)
        second(state)

    return call


def _relieve(state: Any) -> None:
    """Of what the SuperLink writes to its database with every call: bytes that nobody counts, and a look for tasks without a heartbeat."""
    look, looked = state._cleanup_expired_task_tokens, [0.0]

    def now_and_then(self: Any) -> None:
        if time.monotonic() - looked[0] >= _LOOK:
            looked[0] = time.monotonic()
            look(self)

    state._cleanup_expired_task_tokens = now_and_then
    state.store_traffic = lambda self, run_id, **_: None


def _hand_out_again(state: Any) -> None:
    """A question that was lost while it was handed out. Flower counts it as delivered from the moment when a SuperNode asks for one.

    A SuperNode takes one question at a time and confirms it once it is there, whole; then Flower forgets the question's objects. So of
    one whose objects are still there when its SuperNode asks for the next, nothing came: the SuperLink was killed, or the line broke.
    """
    from flwr.supercore.state.schema.linkstate_models import MessageIns
    from flwr.supercore.state.schema.objectstore_models import StoredObject
    from flwr.supercore.utils import uint64_to_int64
    from sqlalchemy import select, update

    claim = state.get_message_ins

    def lost_ones_too(self: Any, node_id: int, limit: int | None, **which: Any) -> Any:
        lost = MessageIns.delivered_at != "", MessageIns.message_id.in_(select(StoredObject.object_id))
        with self.session() as session:
            to_this_one = MessageIns.dst_node_id == uint64_to_int64(node_id)
            session.execute(update(MessageIns).where(to_this_one, *lost).values(delivered_at=""))
            return claim(self, node_id, limit, **which)

    state.get_message_ins = lost_ones_too


def _keep_pieces(store: Any, pieces: Pieces) -> None:
    """In files; those that the database does not know go when it is opened."""
    keep_in_files(store, pieces)
    initialize = store.initialize

    def and_sweep(self: Any, *args: Any, **settings: Any) -> Any:
        made = initialize(self, *args, **settings)
        pieces.sweep(self)
        ask_again_for_lost(self, pieces)
        return made

    store.initialize = and_sweep


def _not_endless(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's way to fetch the objects of a message, but not of one that no honest server sends: they would fill the site's disk."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    def pull_some(names: list[str], *args: Any, **settings: Any) -> Any:
        if len(names) > MOST_PIECES:
            raise ObjectPullError(names[0], f"one of more than {MOST_PIECES}")
        return pull(names, *args, **settings)

    return pull_some


def _is_transport(error: Exception) -> bool:
    import httpx

    return isinstance(error, httpx.TransportError)


def main() -> None:
    what = sys.argv.pop(1)
    end_with_parent()
    home = Path(os.environ["FLWR_HOME"])
    if what == "supernode":
        import flwr.supercore.heartbeat as heartbeat
        import flwr.supernode.fleet_http_connection as connection
        import flwr.supernode.start_client_internal as node
        from flwr.supernode.cli import flower_supernode

        from unseen.federation.flower.fleet import fleet_client

        pieces = Pieces(home / "pieces")
        pieces.sweep()
        keep_in_files(importlib.import_module("flwr.supercore.object_store.in_memory_object_store").InMemoryObjectStore, pieces)
        connection.FleetHttpClient = fleet_client(pieces)
        node.time = _QuickClock()
        node.pull_objects = functools.partial(
            _not_endless(node.pull_objects), initial_backoff=0.05, backoff_cap=0.5, max_tries_per_object=None
        )
        connection.HEARTBEAT_DEFAULT_INTERVAL = heartbeat.HEARTBEAT_DEFAULT_INTERVAL = _HEARTBEAT
        connection.make_simple_http_retry_invoker = functools.partial(_persistent, connection.make_simple_http_retry_invoker, home)
        try:
            flower_supernode()
        finally:
            # A SuperNode that lost its way to the server for good would live on in a thread, deaf; whoever started it starts another.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
    else:
        from unseen.federation.flower.gate import listen

        database: Any = importlib.import_module("flwr.supercore.sql_mixin")
        database.SQLITE_PRAGMAS = (("page_size", str(_PAGE)), *database.SQLITE_PRAGMAS)  # of a database that is not there yet
        sessions: Any = importlib.import_module("flwr.supercore.corestate.sql_corestate")
        sessions.OBJECT_PUSH_SESSION_TTL_SECONDS = _GIVING
        state = importlib.import_module("flwr.server.superlink.linkstate.sql_linkstate").SqlLinkState
        _relieve(state)
        _hand_out_again(state)
        _keep_pieces(importlib.import_module("flwr.supercore.object_store.sql_object_store").SqlObjectStore, Pieces(home / "pieces"))
        superlink: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
        superlink.uvicorn = SimpleNamespace(run=functools.partial(listen, Path(sys.argv.pop(1))))
        superlink.flower_superlink()


if __name__ == "__main__":
    main()
