"""A site's way to the server: a SuperNode, whose tasks this process takes up itself.

In process isolation a SuperNode leaves it to others to run a ClientApp. Here nothing that came over the network is run: the app
of a run is never unpacked, and the questions in its messages go to the site's own process.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto
from flwr.proto.node_pb2 import Node as NodeId
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullAppMessagesRequest, PullTaskInputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import push_task_output

from unseen.errors import SiteProcessLost
from unseen.federation.activity import Event, Observer
from unseen.federation.flower.objects import forget, pull, push
from unseen.federation.flower.pieces import Pieces
from unseen.federation.flower.processes import FlowerProcess, ServerLine
from unseen.federation.flower.records import COULD_NOT_ANSWER, from_records, to_records
from unseen.federation.keys import write_secret
from unseen.federation.kits import Kit
from unseen.federation.messages import SignedMessage
from unseen.federation.waiting import Pause

__all__ = ["Node"]

_LEAST, _MOST, _HEARTBEAT = 0.05, 1.0, 10.0  # seconds
_STILL_THERE = "[code: 2004]"  # how Flower refuses a key that it takes for connected
_HELD = "the server still counts this site's last process as connected, and lets this one in within 30 s"
_ARRIVAL = 1800.0  # seconds in which a message must be here whole
# A SuperNode that went away, or a message that it could not give or take.
_LOST = (httpx.HTTPError, FlowerError, ObjectPullError, ObjectPushError, RuntimeError, ValueError, LookupError, TypeError)
Answer = Callable[[SignedMessage], SignedMessage]


class Node:
    """A connected site: brings each question to `answer` and takes the answer back."""

    def __init__(self, kit: Kit, server: str | None, observer: Observer) -> None:
        self._observer = observer
        self._one_at_a_time = threading.Lock()
        self._address = f"127.0.0.1:{_free_port()}"
        home = kit.path / "flower"
        home.mkdir(exist_ok=True, mode=0o700)
        self._pieces = Pieces(home / "pieces")
        self._secret = secrets.token_bytes(32)  # so that no other user of this machine takes up the site's tasks
        (home / "exec.secret").unlink(missing_ok=True)
        write_secret(home / "exec.secret", self._secret)
        self._where, self._line, self._up = server or kit.server, ServerLine(home), False
        self._line.clear()
        self._process = FlowerProcess("supernode", _arguments(kit, self._where, self._address, home), home)

    def serve(self, answer: Answer) -> None:
        """Answer questions until interrupted. A SuperNode that ends is started again, and connects again to a server that was lost."""
        protected = {"/flwr.proto.Runtime/AcquireTask"}
        taker = self._client(SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=protected))
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        told, pause = "", Pause(_LEAST, _MOST)
        with contextlib.closing(taker):
            while True:
                busy = False
                ended = self._process.keep_alive()
                if ended is not None:
                    self._line.clear()
                    self._up = False
                    if ended != told:
                        why = _HELD if ended.startswith(_STILL_THERE) else ended or "the SuperNode ended"
                        self._observer(Event("lost", f"{why}; trying again until it works ({self._process.log} has more)"))
                    told = ended
                if self._look_at_the_line():
                    told = ""
                try:
                    acquired = taker.AcquireTask(request)
                    if acquired.token:
                        busy = True
                        # In a thread: a message whose run has ended may never arrive whole, and must not keep others waiting.
                        threading.Thread(target=self._deliver, args=(acquired.token, answer), daemon=True).start()
                except _LOST:
                    pass  # not up yet, or just lost: what it held comes again
                pause.rest(busy)

    def _look_at_the_line(self) -> bool:
        """Tell when the line comes and goes; whether it is there."""
        if self._line.up != self._up:
            self._up = not self._up
            lost = f"{self._where} does not answer; trying again until it does"
            self._observer(Event("connected", f"to {self._where}") if self._up else Event("lost", lost))
        return self._up

    def _deliver(self, token: str, answer: Answer) -> None:
        client = self._client(RuntimeTokenHttpInterceptor(token))
        done = threading.Event()
        threading.Thread(target=_beat, args=(client, done), daemon=True).start()
        try:
            message, context = _pull(client, self._pieces)
            with self._one_at_a_time:
                reply = self._reply(message, answer)
            push(client, [reply], NodeId(node_id=context.node_id), context.run_id, self._pieces)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except _LOST as error:
            self._observer(Event("note", f"an answer was lost ({type(error).__name__}); the server asks again"))
            with contextlib.suppress(*_LOST):
                push_task_output(client, None, SubStatus.FAILED, type(error).__name__)
        finally:
            done.set()
            client.close()

    def _reply(self, message: Any, answer: Answer) -> Any:
        question = None if message.has_error() else from_records(message.content)
        if question is None:
            return Message(Error(code=COULD_NOT_ANSWER, reason="not a question"), reply_to=message)
        try:
            return Message(to_records(answer(question)), reply_to=message)
        except SiteProcessLost as lost:
            self._observer(Event("failed", str(lost)))
            return Message(Error(code=COULD_NOT_ANSWER, reason="the process ended"), reply_to=message)

    def _client(self, interceptor: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
        return RuntimeHttpClient.from_server_address(
            server_address=self._address, insecure=True, root_certificates=None, interceptors=[version, interceptor]
        )

    def close(self) -> None:
        self._process.close()
        with contextlib.suppress(OSError):
            self._pieces.sweep()  # nothing of a question or an answer stays


def _pull(client: Any, pieces: Pieces) -> tuple[Message, Context]:
    """The message of a task."""
    given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, given.run.run_id, given.context.node_id
    context = context_from_proto(given.context)
    pulled = client.PullMessages(PullAppMessagesRequest())
    if not pulled.messages_list:
        raise RuntimeError("a task without a message")
    tree, node = pulled.message_object_trees[0], NodeId(node_id=context.node_id)
    try:
        message = pull(client, tree, node, context.run_id, pieces, _ARRIVAL, max_tries_per_object=None)
    except ObjectPullError:  # what came of it does not stay
        forget(client, tree.object_id, node, context.run_id)
        raise
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context


def _beat(client: Any, done: threading.Event) -> None:
    """Long work must not look like a lost process."""
    while not done.wait(_HEARTBEAT):
        with contextlib.suppress(*_LOST):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def _arguments(kit: Kit, server: str, address: str, home: Path) -> list[str]:
    host, _, port = address.rpartition(":")
    options = {
        "--superlink": server,
        "--root-certificates": kit.path / "ca.pem",
        "--auth-supernode-private-key": kit.path / "node.key",
        "--isolation": "process",
        "--superexec-auth-secret-file": home / "exec.secret",
        "--host": host,
        "--port": port,
    }
    return [str(word) for pair in options.items() for word in pair]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
