"""A secure sum at the server: two exchanges among three sites, four among more. The second brings the answers under masks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from unseen.codec import encode_parts
from unseen.engines.checking import Checker
from unseen.engines.tasks import Place
from unseen.errors import NoReplies, RefusedReply
from unseen.federation.activity import printable
from unseen.federation.messages import Message
from unseen.federation.server.beside import epsilon_told, file_names
from unseen.federation.server.exchange import Exchange
from unseen.federation.server.journal import PlaceJournal, Question
from unseen.federation.study.approvals import Approval
from unseen.federation.study.study import Study
from unseen.federation.study.sum_context import sum_context
from unseen.federation.sums.encoding import decode_mean
from unseen.federation.sums.server import DONE, ServerSum
from unseen.files import write_atomically
from unseen.method import Refused
from unseen.payload import Payload

__all__ = ["Summing", "before_question"]

_WORDS = 2  # the step that brings answers


class Summing:
    """Asks the sites of a study for a sum, and writes down what they answered on average."""

    def __init__(self, study: Study, approvals: Mapping[str, Approval], exchange: Exchange, checker: Checker) -> None:
        self._study, self._approvals, self._exchange, self._checker = study, approvals, exchange, checker

    def ask(
        self,
        up_type: type[Payload],
        down: Payload,
        sites: Sequence[str],
        place: Place,
        journal: PlaceJournal,
        header: Callable[[str, int], dict[str, Any]],
    ) -> None:
        """All steps, or those that are left where the server was killed between two of them. The mean is written down."""
        context, asked = sum_context(self._study, self._approvals, sites, place), journal.question(encode_parts(down))
        kept, fewest = journal.unfinished_sum, self._study.minimum_clients
        words, state = kept.with_suffix(".words"), kept.read_bytes() if kept.exists() else None
        sum_so_far = words.read_bytes() if words.exists() else b""
        going = ServerSum(context, hashlib.sha256(asked.bytes).digest(), state, sum_so_far, fewest)
        del sum_so_far
        told = _Told.read(journal)
        while True:
            step = going.step
            self._one_step(going, asked, header, told)
            if step == _WORDS:
                told.write(journal)
            going.advance()
            if going.step == DONE:  # a server that is killed then asks the last step again: what comes of it is written below
                break
            if step == _WORDS:
                write_atomically(words, going.words_in_parts())
            write_atomically(kept, going.to_bytes())
        try:
            mean = decode_mean(going.result, up_type, down, context, len(going.survivors))
            self._checker.refuse_misfit(mean, down, max(1, *context.counts.values()))
        except RefusedReply as refusal:
            raise NoReplies(f"what the sites answered on average cannot be used: {printable(str(refusal))}") from refusal
        journal.put_sum(encode_parts(mean), {name: told.staged.get(name, {}) for name in going.survivors}, told.epsilon)
        journal.close({name: why for name, why in going.missing.items() if name not in going.survivors})
        kept.unlink()
        words.unlink(missing_ok=True)

    def _one_step(self, going: ServerSum, asked: Question, header: Callable[[str, int], dict[str, Any]], told: _Told) -> None:
        step = going.step
        messages = {
            name: Message(header(name, step), asked.bytes, before_question(content), asked.rest)
            if step == _WORDS
            else Message(header(name, step), content)
            for name, content in going.questions().items()
        }
        for name, reply in self._exchange.ask(messages):
            if isinstance(reply, Refused):
                going.miss(name, reply.reason)
                continue
            try:
                if step == _WORDS:
                    told.note(name, reply.header, messages[name].header["versions"])
                going.take(name, reply.payload)
            except Exception as error:  # whatever goes wrong while an answer is read is a refusal of that answer
                going.miss(name, str(error) if isinstance(error, RefusedReply) else f"the answer cannot be read ({type(error).__name__})")
            finally:
                del reply  # one in memory at a time


class _Told:
    """What the sites said beside their masked answers: the memories that they wrote, and the epsilon that they spent."""

    def __init__(self, staged: dict[str, dict[str, str]], epsilon: dict[str, float]) -> None:
        self.staged, self.epsilon = staged, epsilon

    @classmethod
    def read(cls, journal: PlaceJournal) -> _Told:
        file = journal.unfinished_sum.with_suffix(".told")
        return cls(**json.loads(file.read_text())) if file.exists() else cls({}, {})

    def write(self, journal: PlaceJournal) -> None:
        write_atomically(journal.unfinished_sum.with_suffix(".told"), json.dumps({"staged": self.staged, "epsilon": self.epsilon}))

    def note(self, name: str, header: Mapping[str, Any], known: Collection[str]) -> None:
        staged, epsilon = file_names(header.get("staged"), known), epsilon_told(header.get("epsilon"))
        self.staged[name] = staged
        if epsilon is not None:
            self.epsilon[name] = epsilon


def before_question(content: bytes) -> bytes:
    """A step of the sum as it stands before the question itself, in one payload."""
    return len(content).to_bytes(8, "little") + content
