"""How a Flower process is kept going: what makes it try again, and what its log says when it ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.app import Message
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager

from unseen.federation import waiting
from unseen.federation.flower import processes
from unseen.federation.flower.pieces import MOST_PIECES
from unseen.federation.flower.processes import _NOT_LET_IN, FlowerProcess, ServerLine, _hand_out_again, _not_endless, _persistent
from unseen.federation.flower.records import MESSAGE_TYPE, to_records
from unseen.federation.messages import SignedMessage


def test_a_broken_handshake_is_tried_again_and_a_wrong_certificate_is_not(tmp_path: Path) -> None:
    invoker, tries, line = _persistent(make_simple_http_retry_invoker, tmp_path), [], ServerLine(tmp_path)
    up: list[bool] = []  # what the process that started this one sees while it waits
    invoker.wait_function = lambda seconds: up.append(line.up)

    def failing(text: str, times: int) -> str:
        tries.append(text)
        if len(tries) <= times:
            raise httpx.ConnectError(text)
        return "connected"

    assert invoker.invoke(failing, "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol", 3) == "connected"
    assert len(tries) == 4 and up == [False] * 3 and line.up
    tries.clear()
    assert invoker.invoke(failing, "[Errno 111] Connection refused", 2) == "connected" and up[3:] == [False] * 2 and line.up
    tries.clear()
    with pytest.raises(httpx.ConnectError):
        invoker.invoke(failing, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", 3)
    assert len(tries) == 1


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", ""),
        ("INFO: all well\n", ""),
        ("\x1b[91mERROR \x1b[0m: it broke\nINFO: Shutting down\n", "ERROR : it broke"),
        ("ERROR: handshake\n[SSL: BAD] certificate has expired\nThe SuperNode ...\n", "[SSL: BAD] certificate has expired"),
        ("Failed.\nClient error '404 Not Found' for url 'https://x:1/v1/fleet/activate-node'\nFor more ...\n", _NOT_LET_IN),
        ("[code: 2004] Failed to activate\nERROR: afterwards\n", "[code: 2004] Failed to activate"),
    ],
)
def test_the_last_words_say_why(log: str, reason: str, tmp_path: Path) -> None:
    process = FlowerProcess("supernode", [], tmp_path)
    process.log.write_text(log)
    assert process.last_words() == reason


def test_a_supernode_waits_anew_for_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message after message it waits for the same, and must not wait longer for each, as for one that never comes."""
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    for module in (processes, waiting):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    clock = processes._QuickClock()
    for _ in range(200):  # messages, half a second of work for each
        clock.sleep(0.5)
        now[0] += 0.5
    assert max(slept) == processes._LEAST
    slept.clear()
    for _ in range(400):  # one that does not come
        clock.sleep(0.5)
    assert slept[0] == processes._LEAST and slept[-1] == processes._MOST


def test_a_site_fetches_no_message_of_endless_pieces() -> None:
    pull, names = _not_endless(lambda names, **settings: (len(names), settings)), [str(number) for number in range(MOST_PIECES + 1)]
    assert pull(names[1:], max_time=1.0) == (MOST_PIECES, {"max_time": 1.0})
    with pytest.raises(ObjectPullError, match="more than 100"):
        pull(names)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_a_question_that_was_lost_while_it_was_handed_out_is_handed_out_again(tmp_path: Path) -> None:
    """Until its site confirmed it; the SuperLink may have been killed in between. One that is confirmed is never given twice."""

    class State(SqlLinkState):  # type: ignore[misc]
        pass

    def superlink() -> State:
        store = SqlObjectStore(str(tmp_path / "state.db"))
        store.initialize()
        state = State(str(tmp_path / "state.db"), NoOpFederationManager(), store)
        state.initialize()
        return state

    _hand_out_again(State)
    state = superlink()
    nodes = [state.create_node("owner", "owner", name.encode(), 30.0) for name in ("north", "south")]
    for node in nodes:
        state.activate_node(node, 30.0)
    run = state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, 1
    names = []
    for number, node in enumerate((nodes[0], nodes[0], nodes[1])):
        question = Message(to_records(SignedMessage("{}", bytes([number]), b"signature")), node, MESSAGE_TYPE)
        question.metadata.__dict__["_message_id"] = question.object_id
        stored, _ = state.store_message_and_object_tree(question, get_object_tree(question), state.start_session(run))
        assert stored
        names.append(question.metadata.message_id)

    def given(node: int) -> list[str]:
        return [message.metadata.message_id for message in state.get_message_ins(node, limit=1)]

    assert given(nodes[0]) == given(nodes[0]) == [names[0]]  # the oldest one first, again
    state = superlink()  # after a kill
    assert given(nodes[0]) == [names[0]]
    state.object_store.delete(names[0])  # what a confirmation does
    assert given(nodes[0]) == [names[1]] and given(nodes[1]) == [names[2]]
    state.object_store.delete(names[1])
    state.object_store.delete(names[2])
    assert given(nodes[0]) == given(nodes[1]) == []
