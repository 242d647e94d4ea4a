"""One exchange over Flower, with a link that loses things: what is lost is asked again, what a site cannot answer is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import Context, ObjectTree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.task_identity import TaskIdentity

from unseen.errors import SiteProcessLost
from unseen.federation.activity import Event
from unseen.federation.flower import link as link_module
from unseen.federation.flower import node as node_module
from unseen.federation.flower.link import FlowerCarrier, _Link, _outcome, _patient, _RoundTrip
from unseen.federation.flower.members import Members
from unseen.federation.flower.node import Node
from unseen.federation.flower.pieces import Pieces
from unseen.federation.flower.records import COULD_NOT_ANSWER, MESSAGE_TYPE, from_records, to_records
from unseen.federation.kits import init
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
        self.withdrawn: list[str] = []

    def send(self, messages: dict[int, SignedMessage], seconds: float) -> list[str]:
        assert messages == {7: MESSAGE}
        self.sent += 1
        return [str(self.sent)]

    def replies(self, numbers: set[str], until: float) -> Iterator[tuple[str, Any]]:
        for number in sorted(numbers):
            yield number, next(self.given)

    def withdraw(self, numbers: Collection[str]) -> None:
        self.withdrawn += numbers


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
    assert outcome(link) == [("a", MESSAGE)] and link.sent == 3 and link.withdrawn == ["1", "2"]


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
    node, said = Node.__new__(Node), list[Event]()  # without its process
    node._observer = said.append
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
    assert [reply.error.code for reply in replies[1:]] == [COULD_NOT_ANSWER] * 2 and [event.text for event in said] == ["it ended twice"]


def test_a_site_that_connected_anew_is_asked_anew() -> None:
    """Its question was lost with the process that was asked."""
    times = iter(["then", "then", "now"])
    link = Link([], lambda: {b"key": (7, next(times, "now"))})
    link.replies = lambda numbers, until: iter([("2", Reply(to_records(MESSAGE)))] if "2" in numbers else [])  # type: ignore[method-assign]
    assert outcome(link) == [("a", MESSAGE)] and link.sent == 2 and link.withdrawn == ["1"]


def test_the_question_of_a_connection_that_is_gone_is_withdrawn_and_its_answer_still_counts() -> None:
    """A site that works on it may be done before it looks at the new one. That it is gone is no reason to ask a third time."""
    for reply in (Reply(to_records(MESSAGE)), Reply(error=Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason="withdrawn"))):
        times, came = iter(["then", "now"]), {"1": reply}
        link = Link([], lambda times=times: {b"key": (7, next(times, "now"))})  # type: ignore[misc]

        def replies(numbers: set[str], until: float, link: Link = link, came: dict[str, Reply] = came) -> Iterator[tuple[str, Any]]:
            yield from [(number, came.pop(number)) for number in numbers & came.keys()] if link.sent > 1 else []

        link.replies = replies  # type: ignore[method-assign]
        answered = reply.error is None
        assert outcome(link, 60.0 if answered else 0.2) == [("a", MESSAGE if answered else "no answer within 0.2 s")]
        assert link.sent == 2 and set(link.withdrawn) == {"1"}


def test_a_removed_site_is_not_waited_for() -> None:
    link, keys = Link([]), iter([{"a": b"key"}, {}])
    link.replies = lambda numbers, until: iter(())  # type: ignore[method-assign]
    exchange = _RoundTrip({"a": MESSAGE}, lambda: next(keys), 60.0)
    assert list(exchange.go_on(link)) == [] and link.sent == 1  # type: ignore[arg-type]
    assert list(exchange.go_on(link)) == [("a", "no longer a member of the federation")] and exchange.over  # type: ignore[arg-type]


def test_a_late_answer_is_not_fetched_and_neither_it_nor_its_question_stays() -> None:
    """Or a slow site would fill the server's disk, one answer a round. And a question that lost a piece would go out again for ever."""
    asked, forgotten = list[set[str]](), list[str]()

    def pulled(request: Any) -> Any:
        asked.append(set(request.message_ids))
        heads = [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=number)) for number in asked[-1] & {"late"}]
        return SimpleNamespace(messages_list=heads, message_object_trees=[ObjectTree(object_id="of late")])

    client = SimpleNamespace(PullMessages=pulled)
    client.ConfirmMessageReceived = lambda request: forgotten.append(request.message_object_id)
    link: Any = _Link.__new__(_Link)  # without its run
    link._arriving, link._late = {"half": ObjectTree(object_id="of half")}, {"long ago": 0.0}
    link._patient, link._run, link._node = client, 1, None
    link.give_up(["half", "late"])
    assert forgotten == ["of half", "half", "late"]
    assert list(link.replies({"new"}, 0.0)) == []
    assert asked == [{"new", "late"}] and forgotten[3:] == ["of late"] and not link._late and not link._arriving


def test_a_message_that_answers_nothing_is_not_fetched_and_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be waited for in every turn."""
    fetched, forgotten = list[str](), list[str]()
    monkeypatch.setattr(link_module, "pull", lambda client, tree, *_: fetched.append(tree.object_id))
    heads = [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=number)) for number in ("", "asked", "never asked")]
    trees = [ObjectTree(object_id=f"of {head.metadata.reply_to_message_id}") for head in heads]
    client = SimpleNamespace(PullMessages=lambda request: SimpleNamespace(messages_list=heads, message_object_trees=trees))
    client.ConfirmMessageReceived = lambda request: forgotten.append(request.message_object_id)
    link: Any = _Link.__new__(_Link)  # without its run
    link._arriving, link._late, link._patient, link._run, link._node, link._pieces = {}, {}, client, 1, None, None
    assert list(link.replies({"asked"}, 0.0)) == [("asked", None)]
    assert fetched == ["of asked"] and forgotten == ["of ", "of never asked"]


def test_an_answer_with_a_piece_that_never_was_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again; what came of it would lie at the SuperLink until the run ends, and again each time."""

    def lost(*_: object, **__: object) -> None:
        raise ObjectPullError("piece", "the object could not be found")

    monkeypatch.setattr(link_module, "pull", lost)
    head = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="1"))
    pulled = SimpleNamespace(messages_list=[head], message_object_trees=[ObjectTree(object_id="m")])
    confirmed = list[str]()
    client = SimpleNamespace(PullMessages=lambda request: pulled)
    client.ConfirmMessageReceived = lambda request: confirmed.append(request.message_object_id)
    link: Any = _Link.__new__(_Link)  # without its run
    link._arriving, link._late, link._patient, link._run, link._node, link._pieces = {}, {}, client, 1, None, None
    assert list(link.replies({"1"}, 0.0)) == [("1", None)] and confirmed == ["m"]


def test_a_site_keeps_nothing_of_a_question_with_a_piece_that_never_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lost(*_: object, **__: object) -> None:
        raise ObjectPullError("piece", "the object could not be found")

    monkeypatch.setattr(node_module, "pull", lost)
    given = SimpleNamespace(task_id=1, run=SimpleNamespace(run_id=2), context=Context(node_id=7))
    pulled = SimpleNamespace(messages_list=[None], message_object_trees=[ObjectTree(object_id="m")])
    confirmed = list[str]()
    client = SimpleNamespace(PullTaskInput=lambda request: given, PullMessages=lambda request: pulled)
    client.ConfirmMessageReceived = lambda request: confirmed.append(request.message_object_id)
    with pytest.raises(ObjectPullError):
        node_module._pull(client, Pieces(tmp_path / "pieces"))
    assert confirmed == ["m"]


def test_an_answer_of_too_many_pieces_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a piece was fetched")

    monkeypatch.setattr(link_module, "pull", never)
    monkeypatch.setattr(link_module, "MOST_PIECES", 3)
    tree = ObjectTree(object_id="m", children=[ObjectTree(object_id=name) for name in "abc"])
    head = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="1"))
    pulled = SimpleNamespace(messages_list=[head], message_object_trees=[tree])
    confirmed = list[str]()
    client = SimpleNamespace(PullMessages=lambda request: pulled, PullObject=never)
    client.ConfirmMessageReceived = lambda request: confirmed.append(request.message_object_id)
    link: Any = _Link.__new__(_Link)  # without its run
    link._arriving, link._late, link._patient, link._run, link._node = {}, {}, client, 1, None
    assert list(link.replies({"1"}, 0.0)) == [("1", "an answer of more than 3 pieces")]
    assert confirmed == ["m"]  # so that it does not lie there until the run ends
    assert _outcome("an answer of more than 3 pieces") == "an answer of more than 3 pieces"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.HTTPStatusError("", request=httpx.Request("POST", "http://x"), response=httpx.Response(401)), "was stopped"),
        (httpx.HTTPStatusError("", request=httpx.Request("POST", "http://x"), response=httpx.Response(403)), "was stopped"),
        (httpx.HTTPStatusError("", request=httpx.Request("POST", "http://x"), response=httpx.Response(500)), "does not answer"),
        (httpx.ConnectError("refused"), "`unseen serve --dir"),
    ],
)
def test_a_lost_run_costs_a_new_one_and_the_user_is_told_why(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The question is sent again; nobody pressed Ctrl-C."""
    made, said = list[Any](), list[str]()

    class Run(Link):
        def __init__(self, folder: Path) -> None:
            super().__init__([Reply(to_records(MESSAGE))])
            made.append(self)

        def replies(self, numbers: set[str], until: float) -> Iterator[tuple[str, Any]]:
            if len(made) == 1:
                raise error
            return super().replies(numbers, until)

        def give_up(self, numbers: list[str]) -> None:
            assert numbers == []  # all were answered

        def close(self, well: bool = True) -> None:
            pass

    federation = init(tmp_path / "federation", "localhost", ["a"])
    monkeypatch.setattr(link_module, "_Link", Run)
    monkeypatch.setattr(Members, "keys", lambda self: {"a": b"key"})
    monkeypatch.setattr(link_module.time, "sleep", lambda seconds: None)
    assert list(FlowerCarrier(federation, said.append).exchange({"a": MESSAGE}, 60.0)) == [("a", MESSAGE)]
    assert [run.sent for run in made] == [1, 1] and len(said) == 1 and words in said[0]


def test_a_refusal_is_not_tried_again_and_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own way to try again sends the process a SIGINT when its run is gone."""
    monkeypatch.setattr(link_module, "_BACK_SOON", 5.0)
    invoker, tries = _patient(), list[int]()
    invoker.wait_function = lambda seconds: None

    def call(*errors: Exception) -> str:
        tries.append(1)
        if len(tries) <= len(errors):
            raise errors[len(tries) - 1]
        return "answered"

    for status in (401, 403, 404, 500):
        tries.clear()
        with pytest.raises(httpx.HTTPStatusError):
            invoker.invoke(call, httpx.HTTPStatusError("", request=httpx.Request("POST", "http://x"), response=httpx.Response(status)))
        assert len(tries) == 1
    tries.clear()
    assert invoker.invoke(call, httpx.ConnectError("away"), httpx.ReadError("away")) == "answered"
