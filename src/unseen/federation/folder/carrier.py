"""The server's end of a folder of letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from unseen.federation.activity import printable
from unseen.federation.folder.place import LetterFolder, SayOnce
from unseen.federation.kits import Federation
from unseen.federation.messages import SignedMessage
from unseen.federation.waiting import Pause

__all__ = ["FolderCarrier"]


class FolderCarrier:
    """Carries messages to the sites of a federation as letters, and finds the answers again after a kill.

    A question lies in the folder until its answer was read and the next one is asked, or the carrier is closed. One without an
    answer stays, and so does what a killed process asked before: such letters may be on their way. They go when a carrier is closed to
    which the site has answered everything.
    """

    def __init__(self, federation: Federation, path: Path, say: Callable[[str], None] = lambda message: None) -> None:
        self._federation, self._key, self._box = federation, federation.signing, federation.box
        once = SayOnce(say)
        self._folders = {site: LetterFolder(path, federation.id, site, once) for site in federation.clients}
        self._asked: dict[str, str] = {}  # by site: its last question
        self._answered: set[str] = set()  # sites whose last question has an answer that was read
        for folder in self._folders.values():
            folder.delete_scratch("question")

    def exchange(self, messages: Mapping[str, SignedMessage], seconds: float) -> Iterator[tuple[str, SignedMessage | str]]:
        until, pause = time.monotonic() + seconds, Pause()
        waiting = {site: self._folders[site].key_of(message) for site, message in messages.items()}
        self._answered -= waiting.keys()
        while True:
            before = len(waiting)
            for site, key in list(waiting.items()):
                answer = self._answer(site, key)
                self._ask(site, key, messages[site], answered=answer is not None)
                if answer is not None:
                    del waiting[site]
                    yield site, answer
                del answer  # or it would lie here while the next one comes
            left = until - time.monotonic()
            if not waiting or left <= 0:
                break
            pause.rest(len(waiting) < before, left)
        for site in waiting:
            yield site, f"no answer within {seconds:g} s"

    def _answer(self, site: str, key: str) -> SignedMessage | str | None:
        folder = self._folders[site]
        answer = folder.read("answer", key, self._federation.public_key(site), self._box)
        if isinstance(answer, str):  # the site could not work on it; asked again, it tries again
            folder.delete("question", key)
            folder.delete("answer", key)
            return printable(f"failed by the site: {answer}")
        if answer is not None:
            self._answered.add(site)
        return answer

    def _ask(self, site: str, key: str, message: SignedMessage, answered: bool) -> None:
        """See to it that the question lies there, and the one before it no longer."""
        folder = self._folders[site]
        lies_there = answered or folder.has("question", key, self._key.public_key()) is not None
        if not lies_there:
            written = folder.write("question", key, message, self._key, self._federation.box_key(site))
            message.rest()
            if not written:
                return
        before = self._asked.get(site, key)
        if before != key:
            folder.delete("question", before)
            folder.delete("answer", before)
        self._asked[site] = key

    def close(self) -> None:
        for site in self._answered:
            folder = self._folders[site]
            for key in folder.keys("question") | folder.keys("answer"):
                folder.delete("question", key)
                folder.delete("answer", key)
        self._answered.clear()
