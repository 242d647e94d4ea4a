"""The server of a federation: a SuperLink that survives being killed, and knows its clients' keys."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import httpx
from flwr.supercore.error import FlowerError

from unseen.federation.flower.link import register_clients
from unseen.federation.flower.processes import FlowerProcess
from unseen.federation.kits import Federation

__all__ = ["serve"]


def serve(federation: Federation, host: str, port: int, say: Callable[[str], None]) -> None:
    """Run the SuperLink until interrupted; one that ends is started again over the same state."""
    os.umask(0o077)
    path = federation.path
    options = {
        "--host": host,
        "--port": port,
        "--ssl-ca-certfile": path / "ca.pem",
        "--ssl-certfile": path / "server.pem",
        "--ssl-keyfile": path / "secrets/server.key",
        "--database": path / "state.db",
        "--isolation": "process",
        "--superexec-auth-secret-file": path / "secrets/exec.secret",
    }
    flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    process = FlowerProcess("superlink", [*(str(word) for pair in options.items() for word in pair), *flags], path / "flower")
    address = f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"  # noqa: S104
    ready = False
    try:
        while True:
            ended = process.keep_alive()
            if ended is not None:
                say(f"the SuperLink ended and is started again {ended}".rstrip())
                ready = False
            if not ready:
                ready = _register(federation, address)
                if ready:
                    say(f"serving federation {federation.id} on {host}:{port} for {', '.join(federation.clients)} (Ctrl-C to stop)")
            time.sleep(0.5)
    finally:
        process.close()


def _register(federation: Federation, address: str) -> bool:
    """Whether the SuperLink is up and knows every client."""
    try:
        register_clients(federation, address)
    except (httpx.HTTPError, FlowerError):
        return False
    return True
