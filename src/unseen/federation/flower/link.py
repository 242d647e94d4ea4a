"""The server's way to the sites: a Flower run whose ServerApp is this very process.

The SuperLink runs in process isolation, where somebody else takes up the task of a run; that somebody is `unseen run`. So the
method, its records and its checkpoint stay in one process that a user can watch, stop and resume, and Flower carries the messages.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.task_identity import TaskIdentity

from unseen.federation.flower.members import Members
from unseen.federation.flower.objects import forget, pull, push
from unseen.federation.flower.owner import control_client, runtime_client
from unseen.federation.flower.pieces import MOST_PIECES, Pieces
from unseen.federation.flower.records import COULD_NOT_ANSWER, MESSAGE_TYPE, from_records, to_records
from unseen.federation.kits import Federation
from unseen.federation.messages import SignedMessage
from unseen.federation.waiting import Pause

__all__ = ["FlowerCarrier"]

_APP = """
[project]
name = "unseen-messages"
version = "1.0.0"
description = "Carries messages. The code that reads them is installed where it runs."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "unseen"
[tool.flwr.app.components]
serverapp = "unseen_messages.nothing:app"
clientapp = "unseen_messages.nothing:app"
[tool.flwr.app.config]
"""
_LEAST, _MOST, _LOOK_AROUND, _HEARTBEAT = 0.02, 1.0, 2.0, 10.0  # seconds
_PATIENCE = 20.0  # seconds to wait for the content of an answer, once its head is there, before others have their turn
_ABSENT = 60.0  # seconds to wait for a site that is not connected
_LATE = 3000.0  # seconds in which a late answer is looked for, to be thrown away; what comes later goes with the run
_BACK_SOON = 30.0  # seconds in which a SuperLink that ended may be back, with the run as it was
# The SuperLink is away, lost what was being sent, or gave the run up.
_AGAIN = (httpx.HTTPError, FlowerError, ObjectPushError, ObjectPullError, ConnectionError)


def _patient() -> Any:
    """How calls are tried again. Flower's own way takes a refusal for the user's Ctrl-C; here it is the caller's to deal with."""
    return RetryInvoker(
        lambda: exponential(base_delay=0.2, max_delay=2),
        recoverable_exceptions=httpx.TransportError,
        max_tries=None,
        max_time=_BACK_SOON,
    )


def _was_stopped(error: Exception) -> bool:
    """Whether the SuperLink is there but wants no more of this run."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403)


class _Link:
    """One Flower run, taken up by this process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pieces = folder, Pieces(folder / "flower/pieces")
        token = self._take_up(self._start())
        self._patient = runtime_client(folder, RuntimeTokenHttpInterceptor(token))  # Flower's grid does the same, and imports a database
        self._patient._retry_invoker = _patient()
        self._client = runtime_client(folder, RuntimeTokenHttpInterceptor(token))
        given = self._client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, given.run.run_id, given.context.node_id
        self._run, self._node = int(given.run.run_id), Node(node_id=SUPERLINK_NODE_ID)
        self._arriving: dict[str, Any] = {}  # answers of which only the head is here, by the message they answer
        self._late: dict[str, float] = {}  # messages whose answer nobody waits for any more, and until when one may come
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _start(self) -> int:
        fab, _ = build_fab_from_files({"pyproject.toml": _APP.encode(), "unseen_messages/nothing.py": b"# nothing\n"})
        control = control_client(self._folder)
        try:
            request = StartRunRequest(fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab))
            return int(control.StartRun(request).run_id)
        finally:
            control.close()

    def _take_up(self, run: int) -> str:
        """The token of the run's task. Tasks that an earlier process left behind are ended on the way."""
        secret = (self._folder / "secrets/exec.secret").read_bytes()
        protected = {"/flwr.proto.Runtime/AcquireTask"}
        taker = runtime_client(self._folder, SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected))
        try:
            while True:
                acquired = taker.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if acquired.token and acquired.task.run_id == run:
                    return str(acquired.token)
                if not acquired.token:
                    raise ConnectionError("the SuperLink gave this run's task to somebody else; is a flower-superexec running?")
                stray = runtime_client(self._folder, RuntimeTokenHttpInterceptor(acquired.token))
                with contextlib.suppress(*_AGAIN):
                    stray.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="left behind"))
                stray.close()
        finally:
            taker.close()

    def _beat(self) -> None:
        while not self._ended.wait(_HEARTBEAT):
            with contextlib.suppress(*_AGAIN):
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def nodes(self) -> dict[bytes, tuple[int, str]]:
        """The sites that are connected: node and time of connection, by public key."""
        return {
            bytes(n.public_key): (n.node_id, n.last_activated_at)
            for n in self._patient.GetNodes(GetNodesRequest()).nodes
            if n.status == "online"
        }

    def send(self, messages: Mapping[int, SignedMessage], seconds: float) -> list[str]:
        """To each node its message; their names, in the same order."""
        cut: dict[int, Any] = {}
        questions = [Message(to_records(message, cut), node, MESSAGE_TYPE, ttl=seconds + 3600) for node, message in messages.items()]
        names = push(self._patient, questions, self._node, self._run, self._pieces)
        for message in messages.values():
            message.rest()
        return names

    def replies(self, numbers: set[str], until: float) -> Iterator[tuple[str, Any]]:
        """What came in answer to these messages, one in memory at a time; None for one whose content was lost."""
        if not numbers:
            return
        client, run, node = self._patient, self._run, self._node
        self._late = {number: end for number, end in self._late.items() if time.monotonic() < end}
        pulled = client.PullMessages(PullAppMessagesRequest(message_ids=numbers | self._late.keys()))
        for head, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            number = head.metadata.reply_to_message_id
            if number in numbers:
                self._arriving[number] = tree
            else:  # it is late, or answers nothing that was asked
                self._late.pop(number, None)
                forget(client, tree.object_id, node, run)
        for number, tree in list(self._arriving.items()):
            if sum(1 for _ in iterate_object_tree(tree)) > MOST_PIECES:
                del self._arriving[number]
                forget(client, tree.object_id, node, run)
                yield number, f"an answer of more than {MOST_PIECES} pieces"
                continue
            seconds = min(_PATIENCE, max(0.0, until - time.monotonic()))
            try:
                message: Any = pull(client, tree, node, run, self._pieces, seconds)
            except ObjectPullError as error:
                if "timeout" in str(error):
                    continue  # a slow site; it must not keep the others waiting
                forget(client, tree.object_id, node, run)
                message = None
            except ValueError:
                message = "the answer cannot be read"
            del self._arriving[number]
            yield number, message
            del message  # or it would lie here while the next one comes

    def give_up(self, numbers: Collection[str]) -> None:
        """Nobody waits for these answers any more: neither they nor their questions stay at the SuperLink until the run ends."""
        came = {number: tree for number in numbers if (tree := self._arriving.pop(number, None)) is not None}
        self._late |= dict.fromkeys(set(numbers) - came.keys(), time.monotonic() + _LATE)
        for tree in came.values():
            forget(self._patient, tree.object_id, self._node, self._run)
        self.withdraw(numbers)

    def withdraw(self, numbers: Collection[str]) -> None:
        """No site is given these questions any more. One that lost a piece would be handed out for ever, and those after it never."""
        for number in numbers:
            forget(self._patient, number, self._node, self._run)

    def close(self, well: bool = True) -> None:
        self._ended.set()
        with contextlib.suppress(*_AGAIN):
            if well:
                self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))
        self._patient.close()
        self._client.close()


class FlowerCarrier:
    """Carries messages to the sites of a federation. A lost SuperLink, run or site costs time, not the exchange."""

    def __init__(self, federation: Federation, say: Callable[[str], None] = lambda message: None) -> None:
        self._folder, self._say = federation.path, say
        self._members = Members(federation.path)
        self._link: _Link | None = None

    def exchange(self, messages: Mapping[str, SignedMessage], seconds: float) -> Iterator[tuple[str, SignedMessage | str]]:
        round_trip, pause = _RoundTrip(messages, self._members.keys, seconds), Pause(_LEAST, _MOST)
        while not round_trip.over:
            try:
                self._link = self._link or _Link(self._folder)
                busy = False
                for outcome in round_trip.go_on(self._link):
                    busy = True
                    yield outcome
                    del outcome
                if not round_trip.over:
                    pause.rest(busy)
            except _AGAIN as error:
                self._say(self._why(error))
                self._drop()
                round_trip.forget_sent()
                time.sleep(1.0)
        with contextlib.suppress(*_AGAIN):
            if self._link is not None:
                self._link.give_up(round_trip.open)
        yield from round_trip.late()

    def _why(self, error: Exception) -> str:
        if self._link is not None and _was_stopped(error):
            return "the Flower run that carried the questions was stopped; they are sent again in a new one"
        why = f"the server does not answer ({type(error).__name__}); trying again"
        return f"{why}. Is `unseen serve --dir {self._folder}` running on this machine?" if isinstance(error, httpx.ConnectError) else why

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close(well=False)
            self._link = None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _RoundTrip:
    """One question to several sites, until each answered or the time is up."""

    def __init__(self, messages: Mapping[str, SignedMessage], keys: Callable[[], Mapping[str, bytes]], seconds: float) -> None:
        self._waiting, self._keys, self._seconds = dict(messages), keys, seconds
        self._sent: dict[str, str] = {}  # message -> client
        self._newest: dict[str, str] = {}  # client -> message
        self._connection: dict[str, tuple[int, str]] = {}  # of each client when it was last sent to
        self._began = self._last_look = time.monotonic()
        self._seen = dict.fromkeys(messages, self._began)  # when each client was last connected
        self._last_look -= _LOOK_AROUND

    @property
    def over(self) -> bool:
        return not self._waiting or time.monotonic() - self._began > self._seconds

    @property
    def open(self) -> list[str]:
        """Messages without an answer."""
        return list(self._sent)

    def forget_sent(self) -> None:
        """The run that carried the questions is gone: they are sent again."""
        self._sent.clear()
        self._connection.clear()

    def go_on(self, link: _Link) -> Iterator[tuple[str, SignedMessage | str]]:
        """Send what is to be sent; the answers that came, and who is not there."""
        now = time.monotonic()
        if now - self._last_look >= _LOOK_AROUND:
            self._last_look = now
            yield from self._send(link, link.nodes(), now)
        for number, message in link.replies(set(self._sent), self._began + self._seconds):
            client = self._sent.pop(number, None)
            if client is None or client not in self._waiting:
                continue
            outcome = _outcome(message)
            if outcome is None:
                link.withdraw([number])
                if self._newest[client] == number:
                    self._connection.pop(client, None)  # it is asked again
            else:
                del self._waiting[client]
                yield client, outcome
            del message, outcome

    def _send(self, link: _Link, nodes: Mapping[bytes, tuple[int, str]], now: float) -> Iterator[tuple[str, str]]:
        """To every site that is connected and was not asked over this connection: a site that was restarted lost its question."""
        keys = self._keys()  # as they are now: a site may have new ones, or be removed
        to: dict[str, int] = {}
        for client in list(self._waiting):
            if client not in keys:
                del self._waiting[client]
                yield client, "no longer a member of the federation"
                continue
            connection = nodes.get(keys[client])
            if connection is None:
                if now - self._seen[client] > min(_ABSENT, self._seconds):
                    del self._waiting[client]
                    yield client, "not connected"
                continue
            self._seen[client] = now
            if self._connection.get(client) != connection:
                to[client], self._connection[client] = connection[0], connection
        if to:
            older = [number for number, client in self._sent.items() if client in to]
            names = link.send({node: self._waiting[client] for client, node in to.items()}, self._seconds)
            self._sent |= dict(zip(names, to, strict=True))
            self._newest |= dict(zip(to, names, strict=True))
            link.withdraw(older)  # when their pieces belong to the new ones too; an answer to one still counts

    def late(self) -> Iterator[tuple[str, str]]:
        return ((client, f"no answer within {self._seconds:g} s") for client in self._waiting)


def _outcome(message: Any) -> SignedMessage | str | None:
    """The answer in a reply, or why there is none; None if the site or its reply was lost on the way."""
    if message is None or isinstance(message, str):
        return message
    if message.has_error():
        return "failed by the site: its process ended" if message.error.code == COULD_NOT_ANSWER else None
    return from_records(message.content) or "the answer cannot be read"
