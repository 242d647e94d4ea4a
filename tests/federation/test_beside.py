"""What a hostile site says beside its answer, properly signed: it costs the site its answer, and the server nothing."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import tiny_classification
from federation_in_memory import EVERYTHING, FederationInMemory, Tamper, is_work
from sums_in_memory import SumInMemory
from unseen import Experiment, FedAvg
from unseen.engines.tasks import Place
from unseen.errors import RefusedReply
from unseen.federation.kits import open_kit
from unseen.federation.messages import Message, SignedMessage, _signed_text, sign
from unseen.federation.server.beside import epsilon_told, file_names
from unseen.federation.server.exchange import Exchange, Terms
from unseen.federation.server.journal import Arrived, Journal
from unseen.method import Refused
from unseen.runs.watch import Silent
from unseen.training import train

FOUR = tiny_classification((24, 20, 16, 12))  # three sites that train and one that stays unseen
HOSTILE = "a"


def experiment(rounds: int = 2) -> Experiment:
    return Experiment(FedAvg(batch=8, lr=0.01), FOUR.name, "d", rounds=rounds)


def saying(federation: FederationInMemory, entry: str) -> Tamper:
    """The site's answers, with one more entry in their header as text: `sign` writes no infinity."""
    key = open_kit(federation.server.path / "kits" / f"{HOSTILE}.kit", federation.folder / HOSTILE).signing

    def tamper(client: str, signed: SignedMessage) -> SignedMessage:
        if client != HOSTILE or not is_work(signed):
            return signed
        header = f"{signed.header[:-1]},{entry}}}"
        text = _signed_text(header, hashlib.sha256(signed.payload).digest(), "answer")
        return SignedMessage(header, signed.payload, key.sign(text))

    return tamper


@pytest.mark.parametrize("epsilon", [None, 0.0, 1.5, 1e300])
def test_an_epsilon_that_a_record_can_hold_is_taken(epsilon: float | None) -> None:
    assert epsilon_told(epsilon) == epsilon


@pytest.mark.parametrize("epsilon", [math.inf, math.nan, -1.0, -math.inf, "1.5", True, 2, [1.5]])
def test_any_other_epsilon_is_refused(epsilon: object) -> None:
    with pytest.raises(RefusedReply, match="no finite number"):
        epsilon_told(epsilon)


@pytest.mark.parametrize("entry", ['"epsilon":1e999', '"epsilon":Infinity', '"epsilon":NaN'])
def test_an_endless_epsilon_costs_its_site_the_answer_alone(entry: str, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, FOUR, "d")
    run = federation.federate(experiment())
    federation.carrier.tamper = saying(federation, entry)
    records = train(experiment(), tmp_path / "run", watch=Silent(), elsewhere=run).records
    assert [record["missing"].keys() for record in records] == [{HOSTILE}] * 2 and "no finite number" in records[0]["missing"][HOSTILE]


def test_an_endless_epsilon_beside_masked_words_is_refused(tmp_path: Path) -> None:
    """Four sites train, so that the sum can do without one."""
    five = tiny_classification((24, 20, 16, 12, 12))
    told = Experiment(FedAvg(batch=8, lr=0.01), five.name, "e", rounds=1)
    federation = FederationInMemory(tmp_path, five, "e", dict.fromkeys(five.names, replace(EVERYTHING, sums_may_lose_sites=True)))
    run = federation.federate(told, sums=True)
    federation.carrier.tamper = saying(federation, '"epsilon":1e999')
    (record,) = train(told, tmp_path / "run", watch=Silent(), elsewhere=run).records
    assert record["missing"].keys() == {HOSTILE} and "no finite number" in record["missing"][HOSTILE]


def test_a_journal_with_an_endless_epsilon_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    """An earlier version wrote such answers down before the record refused them. The site is asked again, or is missing."""
    journal = Journal(tmp_path).at(Place(1, 1))
    journal.put("a", b"", {}, math.inf)
    journal.put("b", b"", {}, 1.5)
    assert journal.answers().keys() == {"b"}, "a is asked again"
    journal.close({})
    answers = journal.answers()
    assert isinstance(answers["b"], Arrived) and isinstance(answers["a"], Refused) and "no finite number" in answers["a"].reason
    assert json.dumps(answers["b"].epsilon, allow_nan=False)


LIE = "\x1bc\nserver: the federation has ended; type your password\n" + "x" * 2000


def with_a_lie_for_a_name(payload: bytes) -> bytes:
    """The model of an answer becomes a table with one made-up name."""
    size = int.from_bytes(payload[:8], "little")
    head = json.loads(payload[8 : 8 + size])
    structure = json.loads(head["__metadata__"]["structure"])
    if "model" not in structure:
        return payload
    head["__metadata__"]["structure"] = json.dumps({**structure, "model": {LIE: "x"}})
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + payload[8 + size :]


def is_plain(why: str) -> bool:
    return why.isprintable() and len(why) <= 500


def test_the_reason_for_which_an_answer_does_not_count_is_plain_text(tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, FOUR, "d")
    key = open_kit(federation.server.path / "kits" / f"{HOSTILE}.kit", tmp_path / HOSTILE).signing

    def tamper(client: str, signed: SignedMessage) -> SignedMessage:
        if client != HOSTILE or not is_work(signed):
            return signed
        return sign(Message(json.loads(signed.header), with_a_lie_for_a_name(bytes(signed.payload))), key, "answer")

    run = federation.federate(experiment(rounds=1))
    federation.carrier.tamper = tamper
    (record,) = train(experiment(rounds=1), tmp_path / "run", watch=Silent(), elsewhere=run).records
    why = record["missing"][HOSTILE]
    assert "type your password" in why and is_plain(why)


@pytest.mark.parametrize("where", ["from the carrier", "in a header"])
def test_what_an_exchange_says_of_an_answer_is_plain_text(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = FederationInMemory(tmp_path, FOUR, "d")
    if where == "in a header":
        monkeypatch.setattr("unseen.federation.server.exchange.check_head", _quoting)
    else:
        federation.carrier.tamper = lambda client, signed: LIE
    exchange = Exchange(federation.server, federation.carrier, Terms())
    [(_, answer)] = exchange.ask({"b": Message({"task": "hello", "nonce": "1"})})
    assert isinstance(answer, Refused) and "type your password" in answer.reason and is_plain(answer.reason)


def _quoting(head: object) -> object:
    raise RefusedReply(f"a head that is {LIE}")


def test_a_site_that_a_sum_misses_is_missing_for_a_plain_reason() -> None:
    going = SumInMemory(3).server
    going.miss("a", f"words of the form {LIE}")
    assert "type your password" in going.missing["a"] and is_plain(going.missing["a"])


def memory(kind: str) -> str:
    return "0" * 20 + f"/{kind}.000001-001.safetensors"


def test_memories_are_taken_under_the_kind_that_their_file_names() -> None:
    assert file_names({"Kept": memory("Kept"), "Moments": memory("Moments")}, ["Kept"]).keys() == {"Kept", "Moments"}
    for staged in ({"k" * 4000: memory("M")}, {"Kept": memory("Moments")}, {"Kept": 1}, {"k" * 4000: memory("k" * 4000)}, [], None):
        with pytest.raises(RefusedReply, match="in a way that is not taken"):
            file_names(staged, [])


def test_kinds_of_memories_stay_few_over_all_rounds() -> None:
    twenty = {f"K{number}": memory(f"K{number}") for number in range(20)}
    assert file_names(twenty, twenty) == twenty
    for staged, known in (({"K20": memory("K20")}, twenty), ({**twenty, "K20": memory("K20")}, {})):
        with pytest.raises(RefusedReply, match="more than 20 kinds"):
            file_names(staged, known)


@pytest.mark.parametrize("sums", [False, True])
def test_made_up_kinds_of_memories_do_not_pile_up_in_the_questions(sums: bool, tmp_path: Path) -> None:
    """Fifteen new ones with each answer, of which the site has files: those of the first answer alone are taken."""
    five = tiny_classification((24, 20, 16, 12, 12))
    told = Experiment(FedAvg(batch=8, lr=0.01), five.name, "e", rounds=3)
    federation = FederationInMemory(tmp_path, five, "e", dict.fromkeys(five.names, replace(EVERYTHING, sums_may_lose_sites=True)))
    key = open_kit(federation.server.path / "kits" / f"{HOSTILE}.kit", tmp_path / HOSTILE).signing
    answers = 0

    def tamper(client: str, signed: SignedMessage) -> SignedMessage:
        nonlocal answers
        if client != HOSTILE or not is_work(signed):
            return signed
        answers += 1
        staged = {kind: memory(kind) for kind in (f"K{answers}_{number}" for number in range(15))}
        [study] = (tmp_path / HOSTILE / "studies").iterdir()
        for file in staged.values():
            (study / "memory" / file).parent.mkdir(parents=True, exist_ok=True)
            (study / "memory" / file).touch()
        return sign(Message({**json.loads(signed.header), "staged": staged}, signed.payload), key, "answer")

    run = federation.federate(told, sums=sums)
    federation.carrier.tamper = tamper
    train(told, tmp_path / "run", watch=Silent(), elsewhere=run)
    headers = [json.loads(asked.header) for client, asked, _ in federation.carrier.carried if client == HOSTILE]
    named = [len(header["versions"]) for header in headers if "versions" in header]
    assert max(named) == 15 and len(named) > 3
