"""Signed questions to the sites of one federation, and their answers, each opened once and only if it fits its question."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from unseen.errors import RefusedReply
from unseen.federation.activity import Event, Observer, nobody, printable
from unseen.federation.countersigning import check_head
from unseen.federation.kits import Federation, read_register
from unseen.federation.messages import Message, SignedMessage, open_message, question_id, sign
from unseen.federation.server.receipts import Receipts
from unseen.method import Refused

__all__ = ["Carrier", "Exchange", "Terms", "told_of", "unusable"]


class Carrier(Protocol):
    """Carries messages to the sites and brings each answer as it comes, or says why none came."""

    def exchange(self, messages: Mapping[str, SignedMessage], seconds: float) -> Iterator[tuple[str, SignedMessage | str]]: ...


@dataclass(frozen=True)
class Terms:
    """What the server waits for."""

    deadline: float = 600.0  # seconds for one exchange
    minimum_clients: int = 1  # usable answers without which a round does not count
    most_bytes: int = 2**31 - 1  # of one answer


class Exchange:
    """Asks sites and opens their answers. For every answer the server signs a receipt on the site's ledger, and sends it with the next
    question."""

    def __init__(self, federation: Federation, carrier: Carrier, terms: Terms, observer: Observer = nobody) -> None:
        self._federation, self._carrier, self._terms, self._observer = federation, carrier, terms, observer
        self._key, self._receipts = federation.signing, Receipts(federation)

    def ask(self, questions: Mapping[str, Message]) -> Iterator[tuple[str, Message | Refused]]:
        """The answers as they come, one in memory at a time. A site that was removed is asked no more, from this moment on."""
        signed, asked = {}, {}
        hashes: dict[tuple[int, bytes], bytes] = {}  # what several sites are asked alike is hashed once
        present = read_register(self._federation.path)["clients"]
        for client, question in questions.items():
            if present.get(client, {}).get("signing") != self._federation.clients[client]["signing"]:
                gone = Refused("not in the federation any more under its key")
                self._observer(told_of(client, question, gone))
                yield client, gone
                continue
            receipt = self._receipts.last(client)
            header = {**question.header, "federation": self._federation.id, "to": client, **({"receipt": receipt} if receipt else {})}
            message = Message(header, question.payload, question.prefix, question.rest)
            same = id(question.payload), question.prefix
            message.__dict__["payload_hash"] = hashes[same] = hashes.get(same) or message.payload_hash
            asked[client] = question_id(message)
            signed[client] = sign(message, self._key, "question")
        for client in signed:
            self._observer(told_of(client, questions[client]))
        began = time.monotonic()
        for client, reply in self._carrier.exchange(signed, self._terms.deadline):
            opened = self._opened(client, str(questions[client].header.get("study", "")), asked[client], reply)
            self._observer(told_of(client, questions[client], opened, time.monotonic() - began))
            yield client, opened
            del reply, opened  # or it would lie here while the next one comes

    def _opened(self, client: str, study: str, question: str, reply: SignedMessage | str) -> Message | Refused:
        if isinstance(reply, str):
            return unusable(reply)
        try:
            message = open_message(reply, self._federation.public_key(client), "answer", self._terms.most_bytes)
            header = message.header
            if header.get("federation") != self._federation.id or header.get("from") != client or header.get("question") != question:
                return Refused("an answer to another question")
            if header.get("status") != "ok":
                return unusable(f"{header.get('status')} by the site: {header.get('reason')}")
            self._receipts.sign(client, study, check_head(header.get("ledger")))
        except RefusedReply as refusal:
            return unusable(refusal)
        except Exception as error:
            return Refused(f"the answer cannot be read ({type(error).__name__})")
        return message


def unusable(why: object) -> Refused:
    """An answer that does not count. Why may quote what a site sent, and it goes to screens and into records."""
    return Refused(printable(str(why)))


def told_of(site: str, question: Message, answer: Message | Refused | None = None, seconds: float = 0.0) -> Event:
    """A question that is sent, or what came of it, for whoever looks on."""
    header = question.header
    where: dict[str, Any] = {"site": site, "study": str(header.get("study", "")), "round": header.get("round"), "task": str(header["task"])}
    where |= {"ask": header.get("ask", 0), "step": header.get("step", 0)}
    if answer is None:
        return Event("asked", bytes=len(question.prefix) + len(question.payload), **where)
    if isinstance(answer, Refused):
        return Event("refused", answer.reason, seconds=seconds, **where)
    return Event("answered", bytes=len(answer.payload), seconds=seconds, **where)
