"""Hostile and broken messages: refused, nothing written where it should not be, and the run goes on."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation_in_memory import FederationInMemory, is_work, place_of
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.engines.checking import Checker, read_answer
from unseen.errors import NoReplies, RefusedReply
from unseen.federation.messages import Message, SignedMessage, open_message, sign
from unseen.federation.server.exchange import Terms
from unseen.methods.feddag import Up as FedDAGUp
from unseen.methods.fedprox import Down, Up
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import Result, train
from unseen.world import build_world

MANY = settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PATHS = ("../../etc/passwd", "/etc/passwd", "a" * 20 + "/../x.safetensors", "..", "a\0b", "C:\\x", "")


def experiment(name: str = "fedprox", rounds: int = 2) -> Experiment:
    return Experiment(SETTINGS[name].build(), "tiny", "c", rounds=rounds)


def go(federation: FederationInMemory, out: str, rounds: int = 2, terms: Terms | None = None, name: str = "fedprox") -> Result:
    told = experiment(name, rounds)
    return train(told, federation.folder / out, watch=Silent(), elsewhere=federation.federate(told, terms))


def hostile(
    federation: FederationInMemory, client: str, change: Callable[[Message], Message]
) -> Callable[[str, SignedMessage], SignedMessage | str]:
    """A site that is itself hostile: its answers are changed and properly signed."""
    responder = federation.carrier.responders[client]

    def tamper(name: str, signed: SignedMessage) -> SignedMessage:
        header = json.loads(signed.header)
        if name != client or not is_work(signed):
            return signed
        return sign(change(Message(header, signed.payload)), responder._key, "answer")

    return tamper


def altered(**tensors: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        try:
            up = Up.from_bytes(message.payload)
        except ValueError:
            return message
        model = {k: tensors["all"](v) if v.is_floating_point() else v for k, v in up.model.items()}
        return Message(message.header, dataclasses.replace(up, model=model).to_bytes())  # type: ignore[type-var]

    return change


HOSTILE: dict[str, Callable[[Message], Message]] = {
    "garbage": lambda message: Message(message.header, b"\x00garbage" * 10),
    "truncated": lambda message: Message(message.header, message.payload[: len(message.payload) // 2]),
    "a pickle": lambda message: Message(
        message.header, b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93."
    ),
    "nan": altered(all=lambda t: t * math.nan),
    "infinity": altered(all=lambda t: t + math.inf),
    "wrong shape": altered(all=lambda t: torch.cat([t.reshape(-1), t.reshape(-1)])),
    "wrong dtype": altered(all=lambda t: t.to(torch.float16)),
    "integers": altered(all=lambda t: t.to(torch.int64)),
    "one tensor less": lambda message: Message(message.header, _without_one(message.payload)),
    "no batch norms": lambda message: Message(message.header, _without_norms(message.payload)),
    "more samples than there are": lambda message: Message(message.header, _with_samples(message.payload, 10**15)),
    "negative samples": lambda message: Message(message.header, _with_samples(message.payload, -1)),
    "a path as memory": lambda message: Message({**message.header, "staged": {"Kept": "../../x"}}, message.payload),
    "memory of no kind": lambda message: Message({**message.header, "staged": [1]}, message.payload),
    "another question": lambda message: Message({**message.header, "question": "0" * 64}, message.payload),
    "another site": lambda message: Message({**message.header, "from": "a"}, message.payload),
    "no status": lambda message: Message({k: v for k, v in message.header.items() if k != "status"}, message.payload),
}


def _with_samples(payload: bytes, samples: int) -> bytes:
    try:
        return dataclasses.replace(Up.from_bytes(payload), samples=samples).to_bytes()  # type: ignore[type-var]
    except ValueError:
        return payload


def _without_one(payload: bytes) -> bytes:
    try:
        up = Up.from_bytes(payload)
    except ValueError:
        return payload
    return dataclasses.replace(up, model=dict(list(up.model.items())[1:])).to_bytes()  # type: ignore[type-var]


def _without_norms(payload: bytes) -> bytes:
    try:
        up = Up.from_bytes(payload)
    except ValueError:
        return payload
    model = {name: value for name, value in up.model.items() if not name.startswith("bn")}
    return dataclasses.replace(up, model=model).to_bytes()  # type: ignore[type-var]


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_site_is_left_out_and_the_run_goes_on(attack: str, tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    federation.carrier.tamper = hostile(federation, "b", HOSTILE[attack])
    attacked = go(federation, "attacked", rounds=1)
    assert attacked.records[0]["missing"].keys() == {"b"}
    federation.carrier.tamper = lambda client, signed: "no answer" if client == "b" and is_work(signed) else signed
    assert same_bits(attacked.state, go(federation, "lost", rounds=1).state)


def test_weights_of_another_network_of_the_run_do_not_stop_the_server(tiny: DomainDataset, tmp_path: Path) -> None:
    def generator_as_teacher(message: Message) -> Message:
        try:
            up = FedDAGUp.from_bytes(message.payload)
        except ValueError:
            return message
        if up.generator is None:  # in warm-up
            return message
        return Message(message.header, dataclasses.replace(up, teacher=up.generator).to_bytes())  # type: ignore[type-var]

    federation = FederationInMemory(tmp_path, tiny, "c")
    federation.carrier.tamper = hostile(federation, "b", generator_as_teacher)
    last = go(federation, "attacked", rounds=2, name="feddag").records[-1]
    assert "teacher has not the names, shapes and types of the network 'task'" in last["missing"]["b"]


def test_replayed_exchanged_and_oversized_answers_are_refused(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    go(federation, "first", rounds=1)
    old = next(answer for client, _, answer in federation.carrier.carried if client == "b" and answer.payload)
    federation.carrier.tamper = lambda client, signed: old if client == "b" and signed.payload else signed
    assert "another question" in go(federation, "replayed", rounds=1).records[0]["missing"]["b"]
    first: dict[str, SignedMessage] = {}
    federation.carrier.tamper = lambda client, signed: first.setdefault(client, signed) if client == "b" and signed.payload else signed
    before, after = go(federation, "replayed-within").records  # the answer of round 1 again in round 2, and as a score
    assert not before["missing"] and "another question" in after["missing"]["b"]
    mine: dict[str, SignedMessage] = {}
    federation.carrier.tamper = lambda client, signed: mine.setdefault("b", signed) if client in "ab" and signed.payload else signed
    assert "signature" in go(federation, "exchanged", rounds=1).records[0]["missing"]["a"]  # that of b, which came first
    federation.carrier.tamper = lambda client, signed: signed
    with pytest.raises(NoReplies, match="at most 100 are taken"):
        go(federation, "small", rounds=1, terms=Terms(most_bytes=100))


def test_too_few_answers_end_the_run_with_the_state_kept(tiny: DomainDataset, tmp_path: Path) -> None:
    federation, told, two = FederationInMemory(tmp_path, tiny, "c"), experiment(rounds=2), Terms(minimum_clients=2)
    study = federation.federate(told, two)
    scored: list[str] = []

    def lost(client: str, signed: SignedMessage) -> SignedMessage | str:
        """Of b, everything after its score in round 1."""
        if client == "b" and scored:
            return "no answer within 5 s"
        scored.extend([client] if client == "b" and b"accuracy" in signed.payload else [])
        return signed

    federation.carrier.tamper = lost
    with pytest.raises(
        NoReplies, match=r"1 of 2 clients gave a usable answer to train, 2 are needed.*b: no answer within 5 s.*round 1 is kept"
    ):
        train(told, tmp_path / "run", watch=Silent(), elsewhere=study)
    federation.carrier.tamper = lambda client, signed: signed
    again = train(told, tmp_path / "run", resume=True, watch=Silent(), elsewhere=federation.again(study, two))
    assert same_bits(again.state, go(federation, "whole", terms=two).state)


FILES: dict[Path, list[Path]] = {}  # of a federation, before anything strange was asked


def files(federation: FederationInMemory) -> list[Path]:
    return sorted(p for p in federation.folder.rglob("*") if "memory" not in p.parts)


@pytest.fixture(scope="module")
def question(tiny: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[FederationInMemory, Message]:
    """A federation, and a question that its site a has answered."""
    federation = FederationInMemory(tmp_path_factory.mktemp("federation"), tiny, "c")
    go(federation, "run", rounds=1)
    FILES[federation.folder] = files(federation)
    signed = next(message for client, message, _ in federation.carrier.carried if client == "a" and place_of(message) == (1, 1))
    return federation, open_message(signed, federation.server.signing.public_key(), "question", 10**9)


@MANY
@given(header=st.text(max_size=200), payload=st.binary(max_size=200), signature=st.binary(min_size=60, max_size=64))
def test_a_site_answers_nothing_that_is_not_signed(
    question: tuple[FederationInMemory, Message], header: str, payload: bytes, signature: bytes
) -> None:
    federation, _ = question
    answer = federation.carrier.responders["a"].answer(SignedMessage(header, payload, signature))
    assert json.loads(answer.header)["status"] == "refused" and not answer.payload


@settings(MANY, max_examples=500)
@given(data=st.data(), value=JSON | st.sampled_from(PATHS))
def test_a_site_survives_any_signed_question(question: tuple[FederationInMemory, Message], data: st.DataObject, value: Any) -> None:
    federation, message = question
    key = data.draw(st.sampled_from([*message.header, "versions.Kept", "strange"]))
    header = dict(message.header)
    top, dot, below = key.partition(".")
    header[top] = value if not dot else {**header[top], below: value}
    if header == message.header or (key == "receipt" and not isinstance(value, dict)):
        return  # the question itself, which is answered as before
    answer = federation.carrier.responders["a"].answer(sign(Message(header, message.payload), federation.server.signing, "question"))
    assert json.loads(answer.header)["status"] == "refused", (key, value)
    assert not answer.payload
    assert files(federation) == FILES[federation.folder]


def test_a_lost_answer_is_given_again_and_another_question_at_its_place_is_refused(
    question: tuple[FederationInMemory, Message],
) -> None:
    federation, message = question
    signed, answer = next((asked, given) for client, asked, given in reversed(federation.carrier.carried) if client == "c")
    again = federation.carrier.responders["c"].answer(signed)
    assert again.payload == answer.payload and json.loads(again.header)["status"] == "ok"
    assert federation.responder("c").answer(signed).payload == answer.payload  # the process died with its answer: the same again
    key = federation.server.signing
    for restarted in (False, True):
        responder = federation.responder("a") if restarted else federation.carrier.responders["a"]
        federation.carrier.responders["a"] = responder  # two at once would be two processes over one ledger
        assert responder.answer(sign(message, key, "question")).payload
        other = Message(message.header, Down(model=_scaled(message)).to_bytes())
        assert "was asked another question" in json.loads(responder.answer(sign(other, key, "question")).header)["reason"]


def _scaled(message: Message) -> dict[str, torch.Tensor]:
    return {k: v * 2 for k, v in Down.from_bytes(message.payload).model.items()}


@MANY
@given(position=st.integers(0), flip=st.integers(1, 255), cut=st.integers(0, 50))
def test_changed_payloads_are_refused_or_harmless(
    question: tuple[FederationInMemory, Message], position: int, flip: int, cut: int, tiny: DomainDataset
) -> None:
    """Without the signature: a site that flips bits of its own answer gets at most other finite numbers through."""
    checker = _checker(tiny)
    payload = bytearray(_an_answer(question))
    payload[position % len(payload)] ^= flip
    try:
        up = read_answer(Up, bytes(payload[: len(payload) - cut]))
        checker.refuse_misfit(up, Down(model=getattr(up, "model", {})), 40)
    except RefusedReply:
        return
    assert isinstance(up, Up) and all(torch.isfinite(v).all() for v in up.model.values() if v.is_floating_point())
    assert up.samples is None or 0 <= up.samples <= 40


_CHECKERS: dict[int, Checker] = {}


def _checker(tiny: DomainDataset) -> Checker:
    if id(tiny) not in _CHECKERS:
        _CHECKERS[id(tiny)] = Checker(build_world(dataclasses.replace(experiment(), data=tiny)))
    return _CHECKERS[id(tiny)]


def _an_answer(question: tuple[FederationInMemory, Message]) -> bytes:
    return next(answer.payload for client, message, answer in question[0].carrier.carried if client == "a" and place_of(message) == (1, 1))
