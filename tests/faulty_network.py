"""Networks that fail: a connection that can be cut, and a server that shows a certificate and nothing else."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

from loopback import free_port


class Proxy:
    """A network that can be cut: passes bytes between a site and the server as long as it is whole."""

    def __init__(self, server_port: int) -> None:
        self.port, self._server_port, self._whole = free_port(), server_port, True
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole = False
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self.cut()
        _close(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = self._onwards() if self._whole else None
                if far is None:
                    near.close()
                    continue
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_pass, args=(one, other), daemon=True).start()

    def _onwards(self) -> socket.socket | None:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", self._server_port))
        return None


def _pass(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    one.close()


class CertificateServer:
    """Shows its certificate to whoever connects."""

    def __init__(self, certificate: Path, key: Path, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._show, daemon=True).start()

    def _show(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    self._context.wrap_socket(connection, server_side=True).close()

    def close(self) -> None:
        _close(self._listener)


def _close(listener: socket.socket) -> None:
    listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
    listener.close()
