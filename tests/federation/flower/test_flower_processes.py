"""How a Flower process is kept going: what makes it try again, and what its log says when it ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.retry import make_simple_http_retry_invoker

from unseen.federation import waiting
from unseen.federation.flower import processes
from unseen.federation.flower.pieces import MOST_PIECES
from unseen.federation.flower.processes import _NOT_LET_IN, FlowerProcess, ServerLine, _not_endless, _persistent


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
