"""One exchange over Flower, with a link that loses things: what is lost is asked again, what a site cannot answer is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.app import Error
from flwr.common.constant import ErrorCode

from unseen.federation.flower import link as link_module
from unseen.federation.flower.link import _RoundTrip
from unseen.federation.flower.records import COULD_NOT_ANSWER, to_records
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
    exchange, came = _RoundTrip({"a": MESSAGE}, {"a": b"key"}, seconds), list[tuple[str, SignedMessage | str]]()
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


def test_a_site_that_is_away_or_late() -> None:
    assert outcome(Link([], dict), 0.05)[0][1] in ("not connected", "no answer within 0.05 s")
    never = Link([])
    never.replies = lambda numbers, until: iter(())  # type: ignore[method-assign]
    assert outcome(never, 0.05) == [("a", "no answer within 0.05 s")] and never.sent == 1


def test_a_site_that_connected_anew_is_asked_anew() -> None:
    """Its question was lost with the process that was asked."""
    times = iter(["then", "then", "now"])
    link = Link([], lambda: {b"key": (7, next(times, "now"))})
    link.replies = lambda numbers, until: iter([("2", Reply(to_records(MESSAGE)))] if "2" in numbers else [])  # type: ignore[method-assign]
    assert outcome(link) == [("a", MESSAGE)] and link.sent == 2
