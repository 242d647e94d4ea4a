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

from federation_in_memory import Town
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.codec import same_bits
from unseen.data.domain import DomainDataset
from unseen.errors import NoReplies, RefusedReply
from unseen.federation.checking import Checker, read_answer
from unseen.federation.engine import Terms
from unseen.federation.letters import Letter, Sealed, open_letter, seal
from unseen.methods.feddag import Up as FedDAGUp
from unseen.methods.fedprox import Up
from unseen.training import Result, Silent, train
from unseen.world import build_world

MANY = settings(max_examples=2500, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PATHS = ("../../etc/passwd", "/etc/passwd", "a" * 20 + "/../x.safetensors", "..", "a\0b", "C:\\x", "")


def experiment(name: str = "fedprox", rounds: int = 2) -> Experiment:
    return Experiment(SETTINGS[name].build(), "tiny", "c", rounds=rounds)


def go(town: Town, out: str, rounds: int = 2, terms: Terms | None = None, name: str = "fedprox") -> Result:
    told = experiment(name, rounds)
    return train(told, town.folder / out, watch=Silent(), elsewhere=town.federate(told, terms))


def signed(town: Town, client: str, change: Callable[[Letter], Letter]) -> Callable[[str, Sealed], Sealed | str]:
    """A site that is itself hostile: its answers are changed and properly signed."""
    desk = town.post.desks[client]

    def tamper(name: str, sealed: Sealed) -> Sealed:
        header = json.loads(sealed.header)
        if name != client or "card" in header:
            return sealed
        return seal(change(Letter(header, sealed.payload)), desk._key, "answer")

    return tamper


def altered(**tensors: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Letter], Letter]:
    def change(letter: Letter) -> Letter:
        try:
            up = Up.from_bytes(letter.payload)
        except ValueError:
            return letter
        model = {k: tensors["all"](v) if v.is_floating_point() else v for k, v in up.model.items()}
        return Letter(letter.header, dataclasses.replace(up, model=model).to_bytes())  # type: ignore[type-var]

    return change


HOSTILE: dict[str, Callable[[Letter], Letter]] = {
    "garbage": lambda letter: Letter(letter.header, b"\x00garbage" * 10),
    "truncated": lambda letter: Letter(letter.header, letter.payload[: len(letter.payload) // 2]),
    "a pickle": lambda letter: Letter(
        letter.header, b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93."
    ),
    "nan": altered(all=lambda t: t * math.nan),
    "infinity": altered(all=lambda t: t + math.inf),
    "wrong shape": altered(all=lambda t: torch.cat([t.reshape(-1), t.reshape(-1)])),
    "wrong dtype": altered(all=lambda t: t.to(torch.float16)),
    "integers": altered(all=lambda t: t.to(torch.int64)),
    "one tensor less": lambda letter: Letter(letter.header, _without_one(letter.payload)),
    "more samples than there are": lambda letter: Letter(letter.header, _with_samples(letter.payload, 10**15)),
    "negative samples": lambda letter: Letter(letter.header, _with_samples(letter.payload, -1)),
    "a path as memory": lambda letter: Letter({**letter.header, "staged": {"Kept": "../../x"}}, letter.payload),
    "memory of no kind": lambda letter: Letter({**letter.header, "staged": [1]}, letter.payload),
    "another question": lambda letter: Letter({**letter.header, "nonce": "0" * 32}, letter.payload),
    "another site": lambda letter: Letter({**letter.header, "from": "a"}, letter.payload),
    "no status": lambda letter: Letter({k: v for k, v in letter.header.items() if k != "status"}, letter.payload),
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


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_site_is_left_out_and_the_run_goes_on(attack: str, tiny: DomainDataset, tmp_path: Path) -> None:
    town = Town(tmp_path, tiny, "c")
    town.post.tamper = signed(town, "b", HOSTILE[attack])
    attacked = go(town, "attacked", rounds=1)
    assert attacked.records[0]["missing"].keys() == {"b"}
    town.post.tamper = lambda client, sealed: "no answer" if client == "b" and "card" not in json.loads(sealed.header) else sealed
    assert same_bits(attacked.state, go(town, "lost", rounds=1).state)


def test_weights_of_another_network_of_the_run_do_not_stop_the_server(tiny: DomainDataset, tmp_path: Path) -> None:
    def generator_as_teacher(letter: Letter) -> Letter:
        try:
            up = FedDAGUp.from_bytes(letter.payload)
        except ValueError:
            return letter
        if up.generator is None:  # in warm-up
            return letter
        return Letter(letter.header, dataclasses.replace(up, teacher=up.generator).to_bytes())  # type: ignore[type-var]

    town = Town(tmp_path, tiny, "c")
    town.post.tamper = signed(town, "b", generator_as_teacher)
    last = go(town, "attacked", rounds=2, name="feddag").records[-1]
    assert "teacher differs in shape or type" in last["missing"]["b"]


def test_replayed_exchanged_and_oversized_answers_are_refused(tiny: DomainDataset, tmp_path: Path) -> None:
    town = Town(tmp_path, tiny, "c")
    go(town, "first", rounds=1)
    old = next(answer for client, _, answer in town.post.carried if client == "b" and answer.payload)
    town.post.tamper = lambda client, sealed: old if client == "b" and sealed.payload else sealed
    assert "another question" in go(town, "replayed", rounds=1).records[0]["missing"]["b"]
    first: dict[str, Sealed] = {}
    town.post.tamper = lambda client, sealed: first.setdefault(client, sealed) if client == "b" and sealed.payload else sealed
    before, after = go(town, "replayed-within").records  # the answer of round 1 again in round 2, and as a score
    assert not before["missing"] and "another question" in after["missing"]["b"]
    mine: dict[str, Sealed] = {}
    town.post.tamper = lambda client, sealed: mine.setdefault("b", sealed) if client in "ab" and sealed.payload else sealed
    assert "signature" in go(town, "exchanged", rounds=1).records[0]["missing"]["a"]  # that of b, which came first
    town.post.tamper = lambda client, sealed: sealed
    with pytest.raises(NoReplies, match="at most 100 are taken"):
        go(town, "small", rounds=1, terms=Terms(most_bytes=100))


def test_too_few_answers_end_the_run_with_the_state_kept(tiny: DomainDataset, tmp_path: Path) -> None:
    town = Town(tmp_path, tiny, "c")
    go(town, "run", rounds=1)
    town.post.tamper = lambda client, sealed: "no answer within 5 s" if client == "b" and sealed.payload else sealed
    told = experiment(rounds=2)
    with pytest.raises(
        NoReplies, match=r"1 of 2 clients gave a usable answer to train, 2 are needed.*b: no answer within 5 s.*round 1 is kept"
    ):
        train(told, tmp_path / "run", resume=True, watch=Silent(), elsewhere=town.federate(told, Terms(minimum_clients=2)))
    town.post.tamper = lambda client, sealed: sealed
    again = train(told, tmp_path / "run", resume=True, watch=Silent(), elsewhere=town.federate(told))
    assert same_bits(again.state, go(town, "whole").state)


@pytest.fixture(scope="module")
def question(tiny: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Town, Letter]:
    """A town, and a question that its site a has answered."""
    town = Town(tmp_path_factory.mktemp("town"), tiny, "c")
    go(town, "run", rounds=1)
    sealed = next(letter for client, letter, _ in town.post.carried if client == "a" and '"train"' in letter.header)
    return town, open_letter(sealed, town.federation.signing.public_key(), "question", 10**9)


@MANY
@given(header=st.text(max_size=200), payload=st.binary(max_size=200), signature=st.binary(min_size=60, max_size=64))
def test_a_site_answers_nothing_that_is_not_signed(question: tuple[Town, Letter], header: str, payload: bytes, signature: bytes) -> None:
    town, _ = question
    answer = town.post.desks["a"].answer(Sealed(header, payload, signature))
    assert json.loads(answer.header)["status"] == "refused" and not answer.payload


@MANY
@given(data=st.data(), value=JSON | st.sampled_from(PATHS))
def test_a_site_survives_any_signed_question(question: tuple[Town, Letter], data: st.DataObject, value: Any) -> None:
    town, letter = question
    key = data.draw(st.sampled_from([*letter.header, "versions.Kept", "keep.0", "experiment.method", "schema.classes"]))
    header = {**letter.header, "nonce": data.draw(st.text("0123456789abcdef", min_size=32, max_size=32))}
    top, dot, below = key.partition(".")
    header[top] = value if not dot else [value] if top == "keep" else {**header[top], below: value}
    if header == {**letter.header, "nonce": header["nonce"]} or (
        key in ("last", "clients", "ask", "round") and type(value) is type(letter.header[key])
    ):
        return  # a question that may well be answered
    before = sorted(p for p in town.folder.rglob("*") if "memory" not in p.parts and ".head" not in p.name)
    answer = town.post.desks["a"].answer(seal(Letter(header, letter.payload), town.federation.signing, "question"))
    assert json.loads(answer.header)["status"] in ("refused", "failed"), (key, value)
    assert not answer.payload
    assert sorted(p for p in town.folder.rglob("*") if "memory" not in p.parts and ".head" not in p.name) == before


def test_a_question_is_answered_once_but_a_lost_answer_is_given_again(question: tuple[Town, Letter]) -> None:
    town, letter = question
    sealed, answer = next((asked, given) for client, asked, given in reversed(town.post.carried) if client == "c")
    assert town.post.desks["c"].answer(sealed) == answer
    assert town.desk("c").answer(sealed) == answer  # the process died with its answer: the same again
    answer = town.post.desks["a"].answer(seal(letter, town.federation.signing, "question"))
    assert "asked before" in json.loads(answer.header)["reason"]
    again = town.desk("a").answer(seal(letter, town.federation.signing, "question"))  # after a restart of the site too
    assert "asked before" in json.loads(again.header)["reason"]


@MANY
@given(position=st.integers(0), flip=st.integers(1, 255), cut=st.integers(0, 50))
def test_changed_payloads_are_refused_or_harmless(
    question: tuple[Town, Letter], position: int, flip: int, cut: int, tiny: DomainDataset
) -> None:
    """Without the signature: a site that flips bits of its own answer gets at most other finite numbers through."""
    checker = _checker(tiny)
    payload = bytearray(_an_answer(question))
    payload[position % len(payload)] ^= flip
    try:
        up = read_answer(Up, bytes(payload[: len(payload) - cut]))
        checker.refuse_misfit(up, up, 40)
    except RefusedReply:
        return
    assert isinstance(up, Up) and all(torch.isfinite(v).all() for v in up.model.values() if v.is_floating_point())
    assert up.samples is None or 0 <= up.samples <= 40


_CHECKERS: dict[int, Checker] = {}


def _checker(tiny: DomainDataset) -> Checker:
    if id(tiny) not in _CHECKERS:
        _CHECKERS[id(tiny)] = Checker(build_world(dataclasses.replace(experiment(), data=tiny)))
    return _CHECKERS[id(tiny)]


def _an_answer(question: tuple[Town, Letter]) -> bytes:
    return next(answer.payload for client, letter, answer in question[0].post.carried if client == "a" and '"train"' in letter.header)
