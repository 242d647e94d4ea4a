"""The page on localhost, made anew whenever a run below the folder has moved on."""

from __future__ import annotations

import hashlib
import html
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from unseen.errors import BadInput
from unseen.report.between import Stands
from unseen.report.collect import collect
from unseen.report.page import render_page
from unseen.runs.listing import BENCH_FILE

__all__ = ["Watched", "page_server"]

_HOST = "127.0.0.1"
_LOOKED_AT = ("run.json", "records.jsonl", BENCH_FILE)


class Watched:
    """A folder's page, kept until something in the folder changes."""

    def __init__(self, folder: Path, force: bool = False, standings: Callable[[], Sequence[Stands]] = tuple) -> None:
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}; give the --out of `unseen run` or `unseen bench`")
        self.folder, self.force, self.standings = folder, force, standings
        self._lock = threading.Lock()
        self._stamp, self._page = "", ""

    def stamp(self) -> str:
        """Changes when a round is finished, a run begins or one is removed."""
        found = []
        for file in sorted(f for name in _LOOKED_AT for f in self.folder.rglob(name)):
            try:
                stat = file.stat()
            except FileNotFoundError:  # it was replaced or removed just now
                continue
            found.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
        found += [f"{one.study} {one.state} {one.round} {sorted(one.waiting)}" for one in self.standings()]
        return hashlib.sha256("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest()

    def page(self) -> str:
        with self._lock:
            now = self.stamp()
            if now != self._stamp:
                self._page = self._render()
                self._stamp = now
            return self._page

    def _render(self) -> str:
        try:
            found = collect(self.folder, force=self.force, unfinished=True)
            return render_page(found, f"Runs in {self.folder.absolute().name}", live=True, standings=self.standings())
        except BadInput as bad:  # no run has begun yet, or two kinds are mixed: said here, and looked at again
            return f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><pre>{html.escape(str(bad))}</pre>'


def page_server(watched: Watched, port: int) -> ThreadingHTTPServer:
    """A server that answers this machine alone. Port 0 takes a free one."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in (_HOST, "localhost"):
                self.send_error(403)  # another site's name that was made to point here
            elif self.path == "/":
                self._send(watched.page(), "text/html")
            elif self.path == "/stamp":
                self._send(watched.stamp(), "text/plain")
            else:
                self.send_error(404)

        def _send(self, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """A line per look would bury the address."""

    try:
        return ThreadingHTTPServer((_HOST, port), Answer)
    except (OSError, OverflowError) as error:
        raise BadInput(f"port {port} cannot be used ({error}); choose another with --port, or 0 for a free one") from error
