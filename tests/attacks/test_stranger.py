"""Somebody who reaches a real server's port, with no key, with a site's key, or as another user of its machine.

The server is one process of `unseen serve` over TLS on the loopback address. Its certificate is no secret. What its owner can do on the
same machine is tried along with it: to find out whether something was refused, one has to see that it works for somebody.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.cli.build import build_fab_from_files
from flwr.proto import control_pb2 as control
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import runtime_pb2 as runtime
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from loopback import PATIENCE, Loopback
from site_keys import SiteKey, members, rewrite
from unseen.federation.flower.link import _APP, FlowerCarrier
from unseen.federation.flower.owner import control_client
from unseen.federation.flower.pieces import head_of
from unseen.federation.kits import read_federation
from unseen.federation.messages import SignedMessage

pytestmark = [
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Flower's own
    # A socket that could not connect, while the server starts anew, is left by httpcore to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MESSAGE = SignedMessage("{}", b"payload", b"signature")


class Server:
    """A served federation, and the ways to it."""

    def __init__(self, loopback: Loopback, north: SiteKey) -> None:
        self.loopback, self.path, self.port, self.north = loopback, loopback.path, loopback.port, north
        self.ca = (loopback.path / "ca.pem").read_bytes()

    def client(self, kind: Any, *interceptors: Any) -> Any:
        return kind.from_server_address(
            server_address=f"localhost:{self.port}",
            insecure=False,
            root_certificates=self.ca,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), *interceptors],
        )

    def as_site(self, kind: Any, key: SiteKey) -> Any:
        return self.client(kind, NodeAuthHttpInterceptor(key.private, key.private.public_key()))

    @contextlib.contextmanager
    def as_owner(self) -> Iterator[Any]:
        with contextlib.closing(control_client(self.path)) as client:
            yield client

    def nodes(self) -> dict[bytes, Any]:
        with self.as_owner() as owner:
            return {bytes(n.public_key): n for n in owner.ListNodes(control.ListNodesRequest()).nodes_info if n.status != "unregistered"}

    def runs(self) -> dict[int, str]:
        with self.as_owner() as owner:
            return {number: run.status.status for number, run in owner.ListRuns(control.ListRunsRequest()).run_dict.items()}

    def state_size(self) -> int:
        return sum(file.stat().st_size for file in self.path.glob("state.db*"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    loopback = Loopback(tmp_path_factory.mktemp("served"), ("north", "south"))
    north = SiteKey.hand_out(loopback.path, "north")
    loopback.serve()
    try:
        loopback.until("serve", "serving federation")
        yield Server(loopback, north)
    finally:
        loopback.stop()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(httpx.TransportError):
            if true():
                return
        assert time.monotonic() < end
        time.sleep(0.1)


def run_request(size: int = 10) -> control.StartRunRequest:
    fab, _ = build_fab_from_files({"pyproject.toml": _APP.encode(), "x/y.py": b"# " + secrets.token_hex(size).encode()})
    return control.StartRunRequest(fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab))


def control_calls(node: int, run: int) -> dict[str, Any]:
    return {
        "ListNodes": control.ListNodesRequest(),
        "ListRuns": control.ListRunsRequest(),
        "StopRun": control.StopRunRequest(run_id=run),
        "RegisterNode": control.RegisterNodeRequest(public_key=SiteKey().public, name="evil"),
        "UnregisterNode": control.UnregisterNodeRequest(node_id=node),
        "StartRun": run_request(),
        "ListFederations": control.ListFederationsRequest(),
    }


RUNTIME_CALLS = {
    "AcquireTask": runtime.AcquireTaskRequest(),
    "PullTaskInput": runtime.PullTaskInputRequest(),
    "PullMessages": runtime.PullAppMessagesRequest(),
    "PushMessages": runtime.PushAppMessagesRequest(),
    "PushTaskOutput": runtime.PushTaskOutputRequest(),
    "GetNodes": runtime.GetNodesRequest(),
}


def refuse_all(client: Any, calls: dict[str, Any]) -> None:
    """Each call must be an empty 404: anything else says that somebody heard it."""
    try:
        for name, request in calls.items():
            with pytest.raises(httpx.HTTPStatusError) as refused:
                getattr(client, name)(request)
            assert (refused.value.response.status_code, refused.value.response.content) == (404, b""), name
    finally:
        client.close()


def test_nobody_calls_the_control_and_runtime_interfaces_over_the_port(server: Server) -> None:
    """With no key, with a key of one's own, with a site's, with a token; the owner's run and nodes stay as they are."""
    with server.as_owner() as owner:
        run = owner.StartRun(run_request()).run_id
    nodes, size = server.nodes(), server.state_size()
    stranger = SiteKey()
    calls = control_calls(next(iter(nodes.values())).node_id, run)
    token = RuntimeTokenHttpInterceptor(secrets.token_hex(32))
    for key in (None, stranger, server.north):
        signed = [] if key is None else [NodeAuthHttpInterceptor(key.private, key.private.public_key())]
        refuse_all(server.client(ControlHttpClient, *signed), calls)
        refuse_all(server.client(RuntimeHttpClient, *signed), RUNTIME_CALLS)
        refuse_all(server.client(RuntimeHttpClient, token, *signed), RUNTIME_CALLS)
    with (
        contextlib.closing(server.client(ControlHttpClient)) as client,
        pytest.raises(httpx.HTTPError),
    ):  # also where it ends in mid-sentence
        client.StartRun(run_request(2_000_000))
    assert server.nodes().keys() == nodes.keys() and server.runs() == {run: "pending"}
    assert server.state_size() - size < 100_000
    with server.as_owner() as owner:
        owner.StopRun(control.StopRunRequest(run_id=run))


def test_a_stranger_is_no_site_and_a_site_registers_nobody(server: Server) -> None:
    stranger = SiteKey()
    calls = {
        "ActivateNode": fleet.ActivateNodeRequest(public_key=stranger.public, heartbeat_interval=30),
        "PullMessages": fleet.PullMessagesRequest(),
        "RegisterNode": fleet.RegisterNodeFleetRequest(public_key=stranger.public),
        "UnregisterNode": fleet.UnregisterNodeFleetRequest(node_id=1),
    }
    refuse_all(server.client(FleetHttpClient), calls)
    refuse_all(server.as_site(FleetHttpClient, stranger), calls)
    refuse_all(server.as_site(FleetHttpClient, server.north), {name: calls[name] for name in ("RegisterNode", "UnregisterNode")})
    site = server.as_site(FleetHttpClient, server.north)
    with pytest.raises(httpx.HTTPStatusError, match="401"):  # somebody else's key in a call that this site signed
        site.ActivateNode(calls["ActivateNode"])
    with pytest.raises(httpx.HTTPStatusError, match="401"):  # somebody else's messages
        other = next(node.node_id for key, node in server.nodes().items() if key != server.north.public)
        site.PullMessages(fleet.PullMessagesRequest(node={"node_id": other}))
    site.close()


def drop(server: Server, body: bytes, length: int) -> None:
    """Say as much of a call as this, and go."""
    context = ssl.create_default_context(cadata=server.ca.decode())
    headers = b"".join(header + b": " + value + b"\r\n" for header, value in server.north.headers())
    start = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port)) as plain, context.wrap_socket(plain, server_hostname="localhost") as line:
        line.sendall(start + b"Content-Type: application/protobuf\r\n" + headers + b"\r\n" + body)


def test_a_site_leaves_no_piece_that_nobody_asked_for(server: Server) -> None:
    """Under its own node and another's, for a run that is there and for none, without a session and with one: or it could fill the disk."""
    with server.as_owner() as owner:
        run = owner.StartRun(run_request()).run_id
    body = secrets.token_bytes(100_000)
    content = head_of(len(body)) + body
    name, nodes = hashlib.sha256(content).hexdigest(), server.nodes()
    own, others = (next(node.node_id for key, node in nodes.items() if (key == server.north.public) == mine) for mine in (True, False))
    with contextlib.closing(server.as_site(FleetHttpClient, server.north)) as site:
        for node, number, session in (
            (own, run, "s"),
            (own, run, ""),
            (own, 12345, "s"),
            (own, 2**64 - 1, "s"),
            (others, run, "s"),
            (0, 0, "s"),
        ):
            request = PushObjectRequest(node={"node_id": node}, run_id=number, object_id=name, object_content=content, session_id=session)
            with contextlib.suppress(httpx.HTTPStatusError, FlowerError):
                assert not site.PushObject(request).stored
            assert not list((server.path / "flower/pieces").iterdir()), (node, number)
    whole = PushObjectRequest(node={"node_id": own}, run_id=run, object_id=name, object_content=content, session_id="s").SerializeToString()
    for sent in (len(whole), len(whole) - 1, 90_000, 100):  # and then it is gone
        for _ in range(5):
            drop(server, whole[:sent], len(whole))
    until(lambda: not list((server.path / "flower/pieces").iterdir()))
    with server.as_owner() as owner:
        owner.StopRun(control.StopRunRequest(run_id=run))


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/control/list-nodes", "//v1/control/list-nodes", "/v1//control/list-nodes", "/v1/control/list-nodes/"),
        *("/V1/CONTROL/LIST-NODES", "/v1/%63ontrol/list-nodes", "/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/list-nodes"),
        *(
            "/v1/fleet/pull-messages/../../control/list-nodes",
            "/v1/fleet/pull-messages?/../../control/list-nodes",
            "/v1\\control\\list-nodes",
        ),
        *(
            "https://localhost/v1/control/list-nodes",
            "http://127.0.0.1:8000/v1/control/list-nodes",
            "/docs",
            "/openapi.json",
            "/health",
            "*",
        ),
    ],
)
def test_no_way_of_writing_a_path_gets_round_the_gate(target: str, server: Server) -> None:
    """With the headers of a site, and with some that other gates believe."""
    more = [(b"x-original-url", b"/v1/control/list-nodes"), (b"x-forwarded-for", b"127.0.0.1"), (b"x-forwarded-prefix", b"/v1/control")]
    headers = b"".join(name + b": " + value + b"\r\n" for name, value in [*server.north.headers(), *more])
    request = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Type: application/protobuf\r\n".encode()
    context = ssl.create_default_context(cadata=server.ca.decode())
    with socket.create_connection(("127.0.0.1", server.port)) as plain, context.wrap_socket(plain, server_hostname="localhost") as line:
        line.sendall(request + headers + b"\r\n")
        head, _, body = b"".join(iter(lambda: line.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ") and body == b"" and b"server" not in head.lower()


def test_another_user_of_the_machine_finds_no_way_in(server: Server) -> None:
    """The public port is all that the server's processes listen on; the rest is a socket in a folder that others cannot enter."""
    processes = [server.loopback.processes["serve"].pid, server.loopback.child("serve", "superlink")]
    own = {link.readlink().name for pid in processes for link in readable(Path(f"/proc/{pid}/fd"))}
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                listening.add(int(words[1].rpartition(":")[2], 16))
    assert listening == {server.port}
    found = server.path / "flower/superlink.sock"
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700 == stat.S_IMODE(server.path.stat().st_mode)


def readable(folder: Path) -> Iterator[Path]:
    for link in folder.iterdir():
        with contextlib.suppress(OSError):
            link.readlink()
            yield link


def test_a_stopped_flower_run_is_not_an_interrupt(server: Server) -> None:
    """The exchange goes on in a new run, and says so; this very process would have got the SIGINT."""
    said, outcomes = list[str](), list[Any]()
    carrier = FlowerCarrier(read_federation(server.path), said.append)
    asking = threading.Thread(target=lambda: outcomes.extend(carrier.exchange({"north": MESSAGE}, 3 * PATIENCE)), daemon=True)
    asking.start()
    until(lambda: "running" in server.runs().values())
    first = next(run for run, status in server.runs().items() if status == "running")
    with server.as_owner() as owner:
        assert owner.StopRun(control.StopRunRequest(run_id=first)).success
    until(lambda: any(status == "running" for run, status in server.runs().items() if run != first))
    assert said == ["the Flower run that carried the questions was stopped; they are sent again in a new one"]
    rewrite(server.path, {name: site for name, site in members(server.path).items() if name != "north"})
    asking.join(PATIENCE)
    carrier.close()
    assert outcomes == [("north", "no longer a member of the federation")]


def test_members_come_and_go_while_it_serves_and_lost_nodes_come_back(server: Server) -> None:
    """A removed site is out at once; one that is admitted again, or was unregistered in Flower, is let in without any command."""
    everybody = {**members(server.path), "north": {**members(server.path)["south"], "node": server.north.entry}}
    rewrite(server.path, {"south": everybody["south"]})
    activate = {"ActivateNode": fleet.ActivateNodeRequest(public_key=server.north.public, heartbeat_interval=30)}
    refuse_all(server.as_site(FleetHttpClient, server.north), activate)
    until(lambda: server.north.public not in server.nodes())
    rewrite(server.path, everybody)
    until(lambda: server.north.public in server.nodes())  # over a new state: Flower takes no key twice
    assert "north was unregistered in it" in server.loopback.said("serve") and list(server.path.glob("state.db.broken-*"))
    site = server.as_site(FleetHttpClient, server.north)
    try:
        assert site.ActivateNode(activate["ActivateNode"]).node_id == server.nodes()[server.north.public].node_id
    finally:
        site.close()
