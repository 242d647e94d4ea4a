"""One exchange over Flower, with a link that loses things: what is lost is asked again, what a site cannot answer is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from unseen.errors import SiteProcessLost
from unseen.federation.flower import link as link_module
from unseen.federation.flower.link import _RoundTrip
from unseen.federation.flower.node import Node
from unseen.federation.flower.records import COULD_NOT_ANSWER, MESSAGE_TYPE, from_records, to_records
from unseen.federation.messages import SignedMessage

MESSAGE = SignedMessage("{}", b"payload", b"signature")


class Reply:
    """As much of a Flower message as an exchange looks at."""

    def __init__(self, content: Any = None, error: Error | None = None) -> None:
        self.content, self.error = content, error

    def has_error(self) -> bool:
        return self.error is not None


class Link:
    """Connected to one site, and answering each sending with the next of the given replies."""

    def __init__(self, replies: list[Any], nodes: Callable[[], dict[bytes, tuple[int, str]]] = lambda: {b"key": (7, "then")}) -> None:
        self.given, self.sent, self.nodes = iter(replies), 0, nodes

    def send(self, node: int, message: SignedMessage, seconds: float) -> str:
        assert (node, message) == (7, MESSAGE)
        self.sent += 1
        return str(self.sent)

    def replies(self, numbers: set[str], until: float) -> Iterator[tuple[str, Any]]:
        for number in sorted(numbers):
            yield number, next(self.given)


def outcome(link: Any, seconds: float = 5.0) -> list[tuple[str, SignedMessage | str]]:
    exchange, came = _RoundTrip({"a": MESSAGE}, lambda: {"a": b"key"}, seconds), list[tuple[str, SignedMessage | str]]()
    while not exchange.over:
        came += exchange.go_on(link)
    return [*came, *exchange.late()]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_LOOK_AROUND", 0.0)


def test_what_was_lost_on_the_way_is_asked_again() -> None:
    away = Reply(error=Error(code=ErrorCode.NODE_UNAVAILABLE, reason="lost"))
    link = Link([None, away, Reply(to_records(MESSAGE))])
    assert outcome(link) == [("a", MESSAGE)] and link.sent == 3


def test_what_a_site_cannot_answer_is_not_asked_again() -> None:
    link = Link([Reply(error=Error(code=COULD_NOT_ANSWER, reason="the process ended"))])
    assert outcome(link) == [("a", "failed by the site: its process ended")] and link.sent == 1
    assert outcome(Link([Reply({})])) == [("a", "the answer cannot be read")]


def test_a_site_that_is_away_is_not_waited_for_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_ABSENT", 0.01)
    away = Link([], dict)
    assert outcome(away, seconds=5.0) == [("a", "not connected")] and away.sent == 0


def test_a_site_that_is_there_and_late_is_left_out_at_the_deadline() -> None:
    never = Link([])
    never.replies = lambda numbers, until: iter(())  # type: ignore[method-assign]
    assert outcome(never, 0.05) == [("a", "no answer within 0.05 s")] and never.sent == 1


def test_a_site_replies_to_the_message_that_brought_the_question() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 7
    node, said = Node.__new__(Node), list[str]()  # without its process
    node._say = said.append
    asked, answer = Message(to_records(MESSAGE), 7, MESSAGE_TYPE), SignedMessage("{}", b"answer", b"signature")
    asked.metadata.__dict__["_message_id"] = "the one asked"

    def lost(question: SignedMessage) -> SignedMessage:
        raise SiteProcessLost("it ended twice")

    replies = [
        node._reply(asked, lambda question: answer if question == MESSAGE else question),
        node._reply(asked, lost),
        node._reply(Message(RecordDict(), 7, MESSAGE_TYPE), lambda question: answer),
    ]
    assert from_records(replies[0].content) == answer
    assert [reply.metadata.reply_to_message_id for reply in replies] == ["the one asked", "the one asked", ""]
    assert [reply.error.code for reply in replies[1:]] == [COULD_NOT_ANSWER] * 2 and said == ["it ended twice"]


def test_a_site_that_connected_anew_is_asked_anew() -> None:
    """Its question was lost with the process that was asked."""
    times = iter(["then", "then", "now"])
    link = Link([], lambda: {b"key": (7, next(times, "now"))})
    link.replies = lambda numbers, until: iter([("2", Reply(to_records(MESSAGE)))] if "2" in numbers else [])  # type: ignore[method-assign]
    assert outcome(link) == [("a", MESSAGE)] and link.sent == 2
