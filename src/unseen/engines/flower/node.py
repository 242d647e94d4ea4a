"""A site's way to the server: a SuperNode, whose tasks this process takes up itself.

In process isolation a SuperNode leaves it to others to run a ClientApp. Here nothing that came over the network is run: the app
of a run is never unpacked, and the letters in its messages go to the site's own worker.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.error import Error
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from unseen.engines.flower.mail import from_records, to_records
from unseen.engines.flower.process import FlowerProcess
from unseen.federation.folder import Kit
from unseen.federation.keys import write_secret
from unseen.federation.letters import Sealed

__all__ = ["Node"]

_POLL, _HEARTBEAT = 0.1, 10.0  # seconds
_LOST = (httpx.HTTPError, FlowerError)
Answer = Callable[[Sealed], Sealed]


class Node:
    """A connected site: brings each letter to `answer` and takes the answer back."""

    def __init__(self, kit: Kit, server: str | None, say: Callable[[str], None]) -> None:
        self._say = say
        self._address = f"127.0.0.1:{_free_port()}"
        home = kit.path / "flower"
        home.mkdir(exist_ok=True, mode=0o700)
        self._secret = secrets.token_bytes(32)  # so that no other user of this machine takes up the site's tasks
        (home / "exec.secret").unlink(missing_ok=True)
        write_secret(home / "exec.secret", self._secret)
        self._process = FlowerProcess("supernode", _arguments(kit, server or kit.server, self._address, home), home)

    def serve(self, answer: Answer) -> None:
        """Answer letters until interrupted. A SuperNode that ends is started again; a lost server is its affair."""
        protected = {"/flwr.proto.Runtime/AcquireTask"}
        taker = self._client(SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=protected))
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        while True:
            ended = self._process.keep_alive()
            if ended is not None:
                self._say(f"the SuperNode ended and is started again; its last words: {ended}")
            try:
                acquired = taker.AcquireTask(request)
                if acquired.token:
                    self._deliver(acquired.token, answer)
                    continue
            except _LOST:
                pass  # not up yet, or just lost: what it held comes again
            time.sleep(_POLL)

    def _deliver(self, token: str, answer: Answer) -> None:
        client = self._client(RuntimeTokenHttpInterceptor(token))
        done = threading.Event()
        threading.Thread(target=_beat, args=(client, done), daemon=True).start()
        try:
            message, context, _, _ = pull_task_input(client)
            push_message(client, _reply(message, answer), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        finally:
            done.set()
            client.close()

    def _client(self, interceptor: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
        return RuntimeHttpClient.from_server_address(
            server_address=self._address, insecure=True, root_certificates=None, interceptors=[version, interceptor]
        )

    def close(self) -> None:
        self._process.close()


def _reply(message: Any, answer: Answer) -> Any:
    letter = None if message.has_error() else from_records(message.content)
    if letter is None:
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason="not a letter"), reply_to=message)
    return Message(to_records(answer(letter)), reply_to=message)


def _beat(client: Any, done: threading.Event) -> None:
    """Long work must not look like a lost process."""
    while not done.wait(_HEARTBEAT):
        with contextlib.suppress(*_LOST, RuntimeError):
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
