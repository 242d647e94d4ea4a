"""A site at work: one process that talks to the server (without torch), one that holds the data and does the work."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unseen.engines.frames import read_frame, write_frame
from unseen.errors import BadInput, WorkerLost
from unseen.federation.kits import open_kit
from unseen.federation.messages import SignedMessage

__all__ = ["Site", "join"]


@dataclass(frozen=True)
class Site:
    """What a site brings."""

    kit: str
    folder: str
    data: str
    domain: str | None = None
    size: int | None = None
    policy: str | None = None
    evaluates: bool = False
    device: str = "auto"


class Worker:
    """The process with the data. If it ends in the middle of a message, it is started again and the message is given once more."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._log = Path(site.folder) / "site.log"
        self.about: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "unseen.federation.site.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        try:
            self.about, _ = self._call(asdict(self._site), b"")
        except (EOFError, BrokenPipeError) as error:
            raise BadInput(f"the site's worker ended before it was ready; {self._log} says why") from error
        if "bad_input" in self.about:
            raise BadInput(self.about["bad_input"])

    def _call(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdin is not None and self._process.stdout is not None
        write_frame(self._process.stdin, header, body)
        return read_frame(self._process.stdout)

    def answer(self, signed: SignedMessage) -> SignedMessage:
        header = {"header": signed.header, "signature": signed.signature.hex()}
        try:
            reply, payload = self._call(header, signed.payload)
        except (EOFError, BrokenPipeError):
            self.close()
            try:
                self._start()
                reply, payload = self._call(header, signed.payload)
            except (EOFError, BrokenPipeError, BadInput) as error:
                why = f": {error}" if isinstance(error, BadInput) else ""
                raise WorkerLost(f"the site's worker ended twice over one question{why}; {self._log} says more") from error
        return SignedMessage(reply["header"], payload, bytes.fromhex(reply["signature"]))

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError, OSError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def join(site: Site, server: str | None, say: Callable[[str], None]) -> None:
    """Check the data, connect, and answer until interrupted."""
    os.umask(0o077)  # the processes started from here inherit it
    kit = open_kit(Path(site.kit), Path(site.folder))
    worker = Worker(site)
    try:
        for warning in worker.about["warnings"]:
            say(f"warning: {warning}")
        say(f"{kit.client}: {worker.about['samples']} samples; joining {server or kit.server} (Ctrl-C to leave)")
        from unseen.federation.flower.node import Node

        node = Node(kit, server, say)
        try:
            node.serve(worker.answer)
        finally:
            node.close()
    finally:
        worker.close()
