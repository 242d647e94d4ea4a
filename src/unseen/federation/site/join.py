"""A site at work: one process that talks to the server (without torch), one that holds the data and does the work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import Timeout

from unseen.engines.child import ChildEnded, ChildProcess
from unseen.errors import BadInput, SiteProcessLost
from unseen.federation.activity import BoundedLog, Event, Observer, nobody
from unseen.federation.folder.place import parse_carrier
from unseen.federation.folder.site import answer_letters
from unseen.federation.kits import Kit, open_kit
from unseen.federation.messages import SignedMessage
from unseen.federation.site.by_hand import WHILE_AT_WORK, at_work, pending

__all__ = ["SiteSettings", "join"]

# Seconds without a question after which the process with the data ends. During a study it would have to make its networks anew.
_AT_REST, _DURING_A_STUDY = 10.0, 3600.0
_LOOK = 1.0  # seconds between two looks for what people have approved


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

    def __init__(self, site: SiteSettings, observer: Observer = nobody) -> None:
        self._site, self._observer = site, observer
        self._log = Path(site.folder) / "site.log"
        self.about: dict[str, Any] = {}
        self._process: ChildProcess | None = None
        self._closed, self._hellos, self._at_rest = False, 0, True
        self._one_at_a_time = threading.Lock()
        self._bedtime: threading.Timer | None = None
        self._start()
        self._site = replace(site, approve=())  # once is enough
        self._rest_after(_AT_REST)

    def _start(self) -> ChildProcess:
        BoundedLog(self._log).bound()
        self._process = ChildProcess("unseen.federation.site.process", log=self._log)
        try:
            self.about, _ = self._process.call(asdict(self._site) | {"hellos": self._hellos}, tell=self._told)
        except ChildEnded as ended:
            self._process.stop()
            raise BadInput(f"the site's process ended before it was ready; {self._log} says why") from ended
        if "bad_input" in self.about:
            self._process.stop()
            raise BadInput(self.about["bad_input"])
        return self._process

    def _told(self, event: dict[str, Any]) -> None:
        self._observer(Event(**event))

    def answer(self, signed: SignedMessage) -> SignedMessage:
        header = {"header": signed.header, "signature": signed.signature.hex()}
        with self._at_work():
            try:
                reply, payload = (self._process or self._start()).call(header, signed.payload, self._told)
            except (ChildEnded, BadInput) as ended:
                if self._process is not None:
                    self._process.stop()
                if self._closed:
                    raise SiteProcessLost("the site left while it worked on a question") from ended
                self._observer(Event("note", f"the process with the data ended and is started again; {self._log} says more"))
                try:
                    reply, payload = self._start().call(header, signed.payload, self._told)
                except (ChildEnded, BadInput) as error:
                    why = f": {error}" if isinstance(error, BadInput) else ""
                    raise SiteProcessLost(f"the site's process ended twice over one question{why}; {self._log} says more") from error
            self._hellos, self._at_rest = reply["hellos"], reply["at_rest"]
        return SignedMessage(reply["header"], payload, bytes.fromhex(reply["signature"]))

    def take_up_approvals(self) -> None:
        """What people have approved since. A site at rest reads its rules anew for it."""
        with self._at_work():
            if self._at_rest and self._process is not None:
                self._process.stop()
                self._process = None
            try:
                reply, _ = (self._process or self._start()).call({"approvals": True}, tell=self._told)
                self._at_rest = reply["at_rest"]
            except (ChildEnded, BadInput) as error:
                self._process = None
                if not self._closed:
                    self._observer(Event("failed", f"approvals were not taken up: {error or 'the process with the data ended'}"))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """One thing at a time, and no rest until a while after it."""
        with self._one_at_a_time:
            if self._bedtime is not None:
                self._bedtime.cancel()
            yield
            self._rest_after(_AT_REST if self._at_rest else _DURING_A_STUDY)

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


def join(site: SiteSettings, server: str | None, carrier: str, observer: Observer) -> None:
    """Check the data, connect, and answer until interrupted."""
    os.umask(0o077)  # the processes started from here inherit it
    folder = Path(site.folder)
    kit = open_kit(Path(site.kit), folder)
    try:
        with at_work(folder):
            _join(site, kit, server, carrier, observer)
    except Timeout:
        raise BadInput(f"{folder} is in use by another `unseen join`; {WHILE_AT_WORK}") from None


def _join(site: SiteSettings, kit: Kit, server: str | None, carrier: str, observer: Observer) -> None:
    letters = parse_carrier(carrier)
    observer(Event("note", f"checking the data in {site.data}"))
    process, ended = SiteProcess(site, observer), threading.Event()
    try:
        for warning in process.about["warnings"]:
            observer(Event("note", f"warning: {warning}"))
        threading.Thread(target=_look_for_approvals, args=(kit.path, process, ended), daemon=True).start()
        observer(Event("note", f"{process.about['samples']} samples; joining {letters or server or kit.server}"))

        def say(message: str) -> None:
            observer(Event("note", message))

        if letters is not None:
            observer(Event("connected", f"letters go through {letters}"))
            answer_letters(kit, letters, process.answer, say)
            return
        from unseen.federation.flower.node import Node

        node = Node(kit, server, observer)
        try:
            node.serve(process.answer)
        finally:
            node.close()
    finally:
        ended.set()
        process.close()


def _look_for_approvals(folder: Path, process: SiteProcess, ended: threading.Event) -> None:
    while not ended.wait(_LOOK):
        if any(pending(folder)):
            process.take_up_approvals()
