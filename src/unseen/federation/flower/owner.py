"""The server's own way to its SuperLink: a Unix socket in the federation's folder, which nobody but the folder's owner can open."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

__all__ = ["bind_for_owner", "control_client", "over_socket", "runtime_client"]

NOWHERE = "superlink"  # an address must be given, and is not used
_LONGEST_NAME = 100  # bytes; the name of a socket has room for 104 or 108
_SECONDS = 30.0  # for a call


def _socket(folder: Path) -> Path:
    return (folder / "flower/superlink.sock").absolute()


def _shortened(path: Path, links: str) -> str:
    """The name of a socket, through a link to its folder: a path may be longer than the name of a socket."""
    link = Path(links) / "to"
    link.symlink_to(path.parent, target_is_directory=True)
    return str(link / path.name)


@functools.cache
def _name_for_calls(folder: Path) -> str:
    path = _socket(folder)
    if len(os.fsencode(path)) <= _LONGEST_NAME:
        return str(path)
    links = tempfile.mkdtemp(prefix="unseen-")
    atexit.register(shutil.rmtree, links, ignore_errors=True)
    return _shortened(path, links)


def bind_for_owner(folder: Path) -> socket.socket:
    """The socket on which the SuperLink of this federation answers its owner."""
    path = _socket(folder)
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with tempfile.TemporaryDirectory(prefix="unseen-") as links:
        name = _shortened(path, links)  # before the umask, under which only root could make a link in a new folder
        before = os.umask(0o177)
        try:
            bound.bind(name)
        finally:
            os.umask(before)
    return bound


def over_socket(client: Any, folder: Path) -> Any:
    """One of Flower's clients, turned to that socket."""
    client.close()
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=_name_for_calls(folder)), timeout=_SECONDS)
    return client


def control_client(folder: Path) -> Any:
    return over_socket(_made(ControlHttpClient, "flwr CLI", []), folder)


def runtime_client(folder: Path, interceptor: Any) -> Any:
    return over_socket(_made(RuntimeHttpClient, "flwr-serverapp", [interceptor]), folder)


def _made(kind: Any, component: str, more: Sequence[Any]) -> Any:
    version = RuntimeVersionHttpInterceptor(component_name=component)
    return kind.from_server_address(server_address=NOWHERE, insecure=True, root_certificates=None, interceptors=[version, *more])
