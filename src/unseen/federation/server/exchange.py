"""Signed questions to the sites of one federation, and their answers, each opened once and only if it fits its question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from unseen.errors import RefusedReply
from unseen.federation.countersigning import check_head
from unseen.federation.kits import Federation, read_register
from unseen.federation.messages import Message, SignedMessage, open_message, question_id, sign
from unseen.federation.server.receipts import Receipts
from unseen.method import Refused

__all__ = ["Carrier", "Exchange", "Terms"]


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

    def __init__(self, federation: Federation, carrier: Carrier, terms: Terms) -> None:
        self._federation, self._carrier, self._terms = federation, carrier, terms
        self._key, self._receipts = federation.signing, Receipts(federation)

    def ask(self, questions: Mapping[str, Message]) -> Iterator[tuple[str, Message | Refused]]:
        """The answers as they come, one in memory at a time. A site that was removed is asked no more, from this moment on."""
        signed, asked = {}, {}
        present = read_register(self._federation.path)["clients"]
        for client, question in questions.items():
            if present.get(client, {}).get("signing") != self._federation.clients[client]["signing"]:
                yield client, Refused("not in the federation any more under its key")
                continue
            receipt = self._receipts.last(client)
            header = {**question.header, "federation": self._federation.id, "to": client, **({"receipt": receipt} if receipt else {})}
            message = Message(header, question.payload, question.prefix, question.rest)
            asked[client] = question_id(message)
            signed[client] = sign(message, self._key, "question")
        for client, reply in self._carrier.exchange(signed, self._terms.deadline):
            yield client, self._opened(client, str(questions[client].header.get("study", "")), asked[client], reply)
            del reply  # or it would lie here while the next one comes

    def _opened(self, client: str, study: str, question: str, reply: SignedMessage | str) -> Message | Refused:
        if isinstance(reply, str):
            return Refused(reply)
        try:
            message = open_message(reply, self._federation.public_key(client), "answer", self._terms.most_bytes)
            header = message.header
            if header.get("federation") != self._federation.id or header.get("from") != client or header.get("question") != question:
                return Refused("an answer to another question")
            if header.get("status") != "ok":
                return Refused(f"{header.get('status')} by the site: {header.get('reason')}"[:500])
            self._receipts.sign(client, study, check_head(header.get("ledger")))
        except RefusedReply as refusal:
            return Refused(str(refusal))
        except Exception as error:
            return Refused(f"the answer cannot be read ({type(error).__name__})")
        return message
