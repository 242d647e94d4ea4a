"""A site's end of a folder of letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from unseen.errors import SiteProcessLost
from unseen.federation.folder.place import LetterFolder, SayOnce
from unseen.federation.kits import Kit
from unseen.federation.messages import SignedMessage
from unseen.federation.waiting import Pause

__all__ = ["SiteLetters", "answer_letters"]

_GRACE = 60.0  # seconds for which a question must be gone before its answer is taken away: a folder may come back


def answer_letters(
    kit: Kit, path: Path, answer: Callable[[SignedMessage], SignedMessage], say: Callable[[str], None] = lambda message: None
) -> None:
    """Answer the questions in this folder until interrupted."""
    letters, pause = SiteLetters(kit, path, answer, say), Pause()
    while True:
        pause.rest(letters.look())


class SiteLetters:
    """Brings each question to `answer`, and puts the answer into the folder.

    A question whose answer is no longer there is answered again; `answer` gives what it gave before.
    """

    def __init__(self, kit: Kit, path: Path, answer: Callable[[SignedMessage], SignedMessage], say: Callable[[str], None]) -> None:
        self._kit, self._key, self._box = kit, kit.signing, kit.box
        self._answer, self._say = answer, say
        self._folder = LetterFolder(path, kit.federation, kit.client, SayOnce(say))
        self._unsent: tuple[str, SignedMessage | str] | None = None  # an answer that the folder did not take as yet
        self._failed: set[str] = set()  # questions that this process could not work on
        self._gone: dict[str, float] = {}  # answers without a question: since when
        self._folder.delete_scratch("answer")

    def look(self) -> bool:
        """Answer what is there to be answered; whether there was anything."""
        questions, busy = self._folder.keys("question"), False
        for key in sorted(questions):
            busy |= not self._is_answered(key) and self._work(key)
        self._clean(questions)
        return busy

    def _is_answered(self, key: str) -> bool:
        """A failure of an earlier process is none of this one's: it tries again."""
        kind = self._folder.has("answer", key, self._key.public_key())
        return kind == "answer" or (kind == "failure" and key in self._failed)

    def _work(self, key: str) -> bool:
        if self._unsent is None or self._unsent[0] != key:
            question = self._folder.read("question", key, self._kit.server_key, self._box)
            if not isinstance(question, SignedMessage) or self._folder.key_of(question) != key:
                return False
            self._unsent = key, self._reply(key, question)
        message = self._unsent[1]
        if not self._folder.write("failure" if isinstance(message, str) else "answer", key, message, self._key, self._kit.server_box):
            return False
        self._unsent = None
        return True

    def _reply(self, key: str, question: SignedMessage) -> SignedMessage | str:
        try:
            return self._answer(question)
        except SiteProcessLost as lost:
            self._say(str(lost))
            self._failed.add(key)
            return "its process ended"

    def _clean(self, questions: set[str]) -> None:
        """Take away this site's own answers to questions that the server took away."""
        now, orphans = time.monotonic(), self._folder.keys("answer") - questions
        self._gone = {key: self._gone.get(key, now) for key in orphans}
        for key, since in self._gone.items():
            if now - since >= _GRACE:
                self._folder.delete("answer", key)
