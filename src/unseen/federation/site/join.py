"""A site at work: one process that talks to the server (without torch), one that holds the data and does the work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unseen.engines.child import ChildEnded, ChildProcess
from unseen.errors import BadInput, SiteProcessLost
from unseen.federation.folder.place import parse_carrier
from unseen.federation.folder.site import answer_letters
from unseen.federation.kits import open_kit
from unseen.federation.messages import SignedMessage

__all__ = ["SiteSettings", "join"]

# Seconds without a question after which the process with the data ends. During a study it would have to make its networks anew.
_AT_REST, _DURING_A_STUDY = 10.0, 3600.0


@dataclass(frozen=True)
class SiteSettings:
    """What a site brings."""

    kit: str
    folder: str
    data: str
    domain: str | None = None
    size: int | None = None
    policy: str | None = None
    evaluates: bool = False
    device: str = "auto"
    approve: tuple[str, ...] = ()  # files of studies that a person at this site has looked at


class SiteProcess:
    """The process with the data. If it ends in the middle of a message, it is started again and the message is given once more.

    While no study is under way it is not there: it is started by the next question. Nothing is lost with it, since all that it must not
    forget is on the disk.
    """

    def __init__(self, site: SiteSettings) -> None:
        self._site = site
        self._log = Path(site.folder) / "site.log"
        self.about: dict[str, Any] = {}
        self._process: ChildProcess | None = None
        self._closed, self._hellos = False, 0
        self._one_at_a_time = threading.Lock()
        self._bedtime: threading.Timer | None = None
        self._start()
        self._site = replace(site, approve=())  # once is enough
        self._rest_after(_AT_REST)

    def _start(self) -> ChildProcess:
        self._process = ChildProcess("unseen.federation.site.process", log=self._log)
        try:
            self.about, _ = self._process.call(asdict(self._site) | {"hellos": self._hellos})
        except ChildEnded as ended:
            self._process.stop()
            raise BadInput(f"the site's process ended before it was ready; {self._log} says why") from ended
        if "bad_input" in self.about:
            self._process.stop()
            raise BadInput(self.about["bad_input"])
        return self._process

    def answer(self, signed: SignedMessage) -> SignedMessage:
        header = {"header": signed.header, "signature": signed.signature.hex()}
        with self._one_at_a_time:
            if self._bedtime is not None:
                self._bedtime.cancel()
            try:
                reply, payload = (self._process or self._start()).call(header, signed.payload)
            except (ChildEnded, BadInput) as ended:
                if self._process is not None:
                    self._process.stop()
                if self._closed:
                    raise SiteProcessLost("the site left while it worked on a question") from ended
                try:
                    reply, payload = self._start().call(header, signed.payload)
                except (ChildEnded, BadInput) as error:
                    why = f": {error}" if isinstance(error, BadInput) else ""
                    raise SiteProcessLost(f"the site's process ended twice over one question{why}; {self._log} says more") from error
            self._hellos = reply["hellos"]
            self._rest_after(_AT_REST if reply["at_rest"] else _DURING_A_STUDY)
        return SignedMessage(reply["header"], payload, bytes.fromhex(reply["signature"]))

    def _rest_after(self, seconds: float) -> None:
        self._bedtime = threading.Timer(seconds, self._rest)
        self._bedtime.daemon = True
        self._bedtime.start()

    def _rest(self) -> None:
        with self._one_at_a_time:
            if self._bedtime is threading.current_thread() and self._process is not None:  # nothing was asked meanwhile
                self._process.stop()
                self._process = None

    def close(self) -> None:
        self._closed = True
        if self._bedtime is not None:
            self._bedtime.cancel()
        if self._process is not None:
            self._process.stop()


def join(site: SiteSettings, server: str | None, carrier: str, say: Callable[[str], None]) -> None:
    """Check the data, connect, and answer until interrupted."""
    os.umask(0o077)  # the processes started from here inherit it
    kit = open_kit(Path(site.kit), Path(site.folder))
    process = SiteProcess(site)
    try:
        for warning in process.about["warnings"]:
            say(f"warning: {warning}")
        for study in process.about["approved"]:
            say(f"{kit.client}: approved study {study[:16]}")
        folder = parse_carrier(carrier)
        where = folder or server or kit.server
        say(f"{kit.client}: {process.about['samples']} samples; joining {where} (Ctrl-C to leave)")
        if folder is not None:
            answer_letters(kit, folder, process.answer, say)
            return
        from unseen.federation.flower.node import Node

        node = Node(kit, server, say)
        try:
            node.serve(process.answer)
        finally:
            node.close()
    finally:
        process.close()
