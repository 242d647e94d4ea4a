"""A server that lies to the sites: each lie ends in a refusal, and no site's words can be read from what it was given."""

from __future__ import annotations

import hashlib
import json
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sums_in_memory import ASKED, KEYS, SumInMemory, added, context_of, words_of
from unseen.errors import RefusedReply
from unseen.federation.sums.context import SumContext, pack
from unseen.federation.sums.roster import PublicKeys, Roster
from unseen.federation.sums.server import ServerSum
from unseen.federation.sums.shamir import recover
from unseen.federation.sums.site import SiteSum, bound_to
from unseen.federation.sums.site_secrets import SiteSecrets, fits_mask_key, fits_seal, pair_key, self_key
from unseen.federation.sums.words import Words, add_streams


def keys_of(run: SumInMemory) -> dict[str, Any]:
    """The question of step 2."""
    if run.server.step == 1:
        run.run(until=1)
    keys: dict[str, Any] = json.loads(run.server.questions()["00"])["keys"]
    return keys


def own_keys(context: SumContext, site: str, key: Ed25519PrivateKey) -> dict[str, str]:
    """Keys of the server's own making, under a site's name."""
    return SiteSecrets(context, site, bytes(32)).public(key).plain()


def test_keys_that_the_site_did_not_sign_are_refused() -> None:
    run = SumInMemory(4)
    keys, stranger = keys_of(run), Ed25519PrivateKey.from_private_bytes(bytes(32))
    forged = {
        "the server's own keys": {**keys, "01": own_keys(run.context, "01", stranger)},
        "a changed masking key": {**keys, "01": {**keys["01"], "mask": keys["01"]["mask"][::-1]}},
        "a changed box key": {**keys, "01": {**keys["01"], "box": "00" * 32}},
        "a changed seal": {**keys, "01": {**keys["01"], "seal": "00" * 32}},
        "two sites exchanged": {**keys, "01": keys["02"], "02": keys["01"]},
        "of another round": {**keys, "01": own_keys(context_of(4, round_number=2), "01", KEYS["01"])},
        "of another ask": {**keys, "01": own_keys(context_of(4, ask=2), "01", KEYS["01"])},
        "of another study": {**keys, "01": own_keys(context_of(4, study="6" * 64), "01", KEYS["01"])},
        "among other sites": {**keys, "01": own_keys(context_of(5), "01", KEYS["01"])},
    }
    for lie, shown in forged.items():
        for site in ("00", "03"):
            with pytest.raises(RefusedReply, match=r"keys that 0[12] did not sign for this sum"):
                run.sites[site].shares(pack({"keys": shown}))
                pytest.fail(lie)
    assert run.sites["00"].shares(pack({"keys": keys}))  # a refusal costs nothing: the honest question is answered still


def test_other_sites_too_few_sites_and_a_key_twice_are_refused() -> None:
    run = SumInMemory(4)
    keys, site = keys_of(run), run.sites["00"]
    twice = PublicKeys.signed(*(bytes.fromhex(keys["01"][part]) for part in ("mask", "mask", "seal")), run.context, "02", KEYS["02"])
    refused = {
        "do not take part": {**keys, "40": own_keys(context_of(41), "40", KEYS["40"])},
        "of 2 of 4 sites; 3 are needed": {name: keys[name] for name in ("00", "01")},
        "other keys of this site": {name: keys[name] for name in ("01", "02", "03")},
        "other keys of this site than": {**keys, "00": own_keys(run.context, "00", KEYS["00"])},
        "a key is there twice": {**keys, "02": twice.plain()},
    }
    for reason, shown in refused.items():
        with pytest.raises(RefusedReply, match=reason):
            site.shares(pack({"keys": shown}))


def test_a_key_that_agrees_on_nothing_is_refused_by_everyone() -> None:
    run = SumInMemory(4)
    keys = keys_of(run)
    good = bytes.fromhex(keys["01"]["mask"])
    for mask, box in ((bytes(32), good), (good, bytes(32)), (good, b"\1" + bytes(31))):
        lie = PublicKeys.signed(mask, box, bytes(32), run.context, "01", KEYS["01"]).plain()
        with pytest.raises(RefusedReply, match="agree on nothing"):
            run.sites["00"].shares(pack({"keys": {**keys, "01": lie}}))
        server = ServerSum(run.context, ASKED)
        server.take("01", pack({"keys": lie}))
        assert server.missing == {"01": "keys that agree on nothing"}


def test_each_step_is_answered_once_and_in_order() -> None:
    run = SumInMemory(4)
    keys = keys_of(run)
    fresh = SiteSum(run.context, "00", KEYS["00"])
    for early in (lambda: fresh.shares(pack({"keys": keys})), lambda: fresh.take_shares(b"", ASKED), lambda: fresh.consent(b"")):
        with pytest.raises(RefusedReply, match="after step 0"):
            early()
    with pytest.raises(RefusedReply, match="step 3 was not asked"):
        fresh.mask(words_of("00"))
    run.run(until=2)
    with pytest.raises(RefusedReply, match=r"step 2 \(shares\) of a secure sum, which was asked in another way before"):
        run.sites["00"].shares(pack({"keys": {name: keys[name] for name in ("00", "01", "02")}}))
    question = run.server.questions()["00"]
    run.sites["00"].take_shares(question, ASKED)
    for other in ((question, hashlib.sha256(b"another question").digest()), (question + b" ", ASKED)):
        with pytest.raises(RefusedReply, match="asked in another way before"):
            run.sites["00"].take_shares(*other)


def test_an_old_step_of_another_sum_is_refused() -> None:
    old, now = SumInMemory(3), SumInMemory(3)
    now.context = context_of(3, ask=2)
    now.sites = {name: SiteSum(now.context, name, KEYS[name]) for name in now.sites}
    now.server = ServerSum(now.context, ASKED)
    old.run()
    now.run(until=1)
    with pytest.raises(RefusedReply, match="did not sign for this sum"):
        now.sites["00"].shares(old.asked["00", 2])
    now.run(until=4)
    with pytest.raises(RefusedReply, match="did not sign as they were shown here"):
        now.sites["00"].unmask(old.asked["00", 5])
    now.run()
    assert now.total == added([*now.sites])


def test_boxes_of_others_missing_boxes_and_other_sites_are_refused() -> None:
    run = SumInMemory(4)
    run.run(until=2)
    asked = json.loads(run.server.questions()["00"])
    boxes = asked["boxes"]
    lies = [
        {**asked, "boxes": {name: boxes[name] for name in ("01", "02")}},
        {**asked, "boxes": {**boxes, "00": boxes["01"]}},
        {**asked, "boxes": {**boxes, "01": boxes["01"][:-2]}},
        {**asked, "sharing": ["00", "01"], "boxes": {"01": boxes["01"]}},
        {**asked, "sharing": ["01", "02", "03"]},
        {**asked, "sharing": ["00", "01", "02", "03", "04"]},
        {**asked, "sharing": ["03", "02", "01", "00"]},
        {**asked, "sharing": ["00", "00", "01", "02", "03"]},
        {**asked, "sharing": "00"},
        {**asked, "more": 1},
    ]
    for lie in lies:
        with pytest.raises(RefusedReply):
            run.sites["00"].take_shares(pack(lie), ASKED)


def test_exchanged_boxes_are_not_opened_and_give_nothing() -> None:
    run = SumInMemory(4)
    run.run(until=2)
    boxes = run.server._boxes
    boxes["01"]["00"], boxes["02"]["00"] = boxes["02"]["00"], boxes["01"]["00"]  # two senders to one site
    boxes["03"]["01"], boxes["03"]["02"] = boxes["03"]["02"], boxes["03"]["01"]  # one sender to two sites
    run.run(until=4)
    given = {name: json.loads(run.answer(name, 5, question)) for name, question in run.server.questions().items()}
    assert {name: sorted(answer["own"]) for name, answer in given.items()} == {
        "00": ["00", "03"], "01": ["00", "01", "02"], "02": ["00", "01", "02"], "03": ["00", "01", "02", "03"],
    }  # fmt: skip


def test_a_box_that_is_sent_back_to_its_sender_is_not_opened() -> None:
    """Both ways between two sites have keys of their own: one key would encrypt two boxes, and open a site's own box as the other's."""
    run = SumInMemory(4)
    run.run(until=2)
    run.server._boxes["01"]["00"] = run.server._boxes["00"]["01"]
    run.run(until=4)
    given = json.loads(run.answer("00", 5, run.server.questions()["00"]))
    assert sorted(given["own"]) == ["00", "02", "03"]


def test_another_question_for_one_site_leaves_a_sum_that_is_noise() -> None:
    """Otherwise a server could ask the others in such a way that their answers are known, and read the one that is left."""
    run = SumInMemory(4)
    run.run(until=2)
    many = 4096
    run.words = {name: Words("layout", np.zeros(1, np.uint64), np.full(many, 7, np.uint32)) for name in run.sites}
    for name, question in run.server.questions().items():
        site = run.sites[name]
        site.take_shares(question, hashlib.sha256(b"made for 02").digest() if name == "02" else ASKED)
        run.server.take(name, site.mask(run.words[name].copy()))
    run.server.advance()
    for name, question in run.server.questions().items():
        run.server.take(name, run.answer(name, 4, question))
    assert run.server.missing == {"02": "a signature that does not fit the survivors"}
    run.server.advance()
    run.one_step()
    assert np.mean(run.server.result.narrow == 28) < 0.01 and len(np.unique(run.server.result.narrow)) > 0.99 * many


def subsets(names: list[str]) -> list[list[str]]:
    return [list(some) for some in chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))]


def test_too_few_survivors_or_others_are_not_signed() -> None:
    run = SumInMemory(4, {"03": 2})
    run.run(until=3)
    for survivors in [*subsets(["00", "01", "02", "03"])]:
        if survivors != ["00", "01", "02"]:
            with pytest.raises(RefusedReply):
                run.sites["00"].consent(pack({"survivors": survivors}))
    assert run.sites["00"].consent(pack({"survivors": ["00", "01", "02"]}))


def test_a_server_that_shows_different_survivors_gets_no_share_of_anyone() -> None:
    """Half of the sites are told that 03 survived, half that it did not: both kinds of its shares would be given."""
    run = SumInMemory(4)
    run.run(until=3)
    everyone, without = ["00", "01", "02", "03"], ["00", "01", "02"]
    shown = {"00": everyone, "01": without, "02": without, "03": everyone}
    signatures = {name: json.loads(run.answer(name, 4, pack({"survivors": seen})))["signature"] for name, seen in shown.items()}
    for name, some in ((name, some) for name in shown for some in subsets(everyone)):
        with pytest.raises(RefusedReply):
            run.sites[name].unmask(pack({"signatures": {one: signatures[one] for one in some}}))
    for name, seen in shown.items():
        with pytest.raises(RefusedReply, match="asked in another way before"):
            run.sites[name].consent(pack({"survivors": without if seen == everyone else everyone}))


def test_with_one_site_of_four_on_its_side_a_server_gets_one_kind_of_share_alone() -> None:
    """03 signs whatever it is shown. With two honest sites there are three signatures of one set; the last honest one stays alone."""
    run = SumInMemory(4)
    run.run(until=3)
    everyone, without = ["00", "01", "02", "03"], ["00", "02", "03"]  # 01 is the one to be read
    roster, bound = run.server._roster, run.sites["00"]._state["bound"]

    def liar(survivors: list[str]) -> str:
        return run.context.sign("consent", pack([roster.digest.hex(), bound, survivors]), KEYS["03"]).hex()

    shown = {"00": everyone, "01": everyone, "02": without}
    signed = {name: json.loads(run.answer(name, 4, pack({"survivors": seen})))["signature"] for name, seen in shown.items()}
    first = pack({"signatures": {"00": signed["00"], "01": signed["01"], "03": liar(everyone)}})
    given = [json.loads(run.sites[name].unmask(first)) for name in ("00", "01")]
    assert all(answer["masking"] == {} and "01" in answer["own"] for answer in given)
    for signatures in ({"02": signed["02"], "03": liar(without)}, {"02": signed["02"], "03": liar(without), "00": signed["00"]}):
        with pytest.raises(RefusedReply):
            run.sites["02"].unmask(pack({"signatures": signatures}))
    with pytest.raises(RefusedReply, match="asked in another way before"):
        run.sites["00"].unmask(pack({"signatures": {"02": signed["02"], "03": liar(without), "00": liar(without)}}))


def test_signatures_must_be_enough_and_of_survivors() -> None:
    run = SumInMemory(4, {"03": 3})
    run.run(until=4)
    signatures = json.loads(run.server.questions()["00"])["signatures"]
    lies = {
        "2 sites signed; 3 must": {name: signatures[name] for name in ("00", "01")},
        "of others than its survivors": {**signatures, "03": signatures["00"]},
        "01 did not sign": {**signatures, "01": signatures["00"]},
        "of another form": {**signatures, "01": signatures["01"][:-2]},
    }
    for reason, shown in lies.items():
        with pytest.raises(RefusedReply, match=reason):
            run.sites["00"].unmask(pack({"signatures": shown}))
    with pytest.raises(RefusedReply):
        run.sites["00"].unmask(pack({"signatures": list(signatures)}))


def test_no_site_ever_gives_both_kinds_of_share_for_one_site() -> None:
    for lost in ({}, {"01": 3}, {"01": 2}, {"00": 4}):
        run = SumInMemory(4, lost)
        run.run()
        for name in run.sites:
            if (name, 5) in run.answers:
                given = json.loads(run.answers[name, 5])
                assert not given["own"].keys() & given["masking"].keys()
                assert sorted(given["own"]) == run.server.survivors
                assert sorted(given["masking"]) == (["01"] if lost == {"01": 3} else [])


def test_a_site_that_is_called_lost_stays_hidden_under_its_own_mask() -> None:
    """The server has the words of 03 and says that it has not: it gets the masking key of 03, takes all pair masks off, and reads noise."""
    run = SumInMemory(4)
    run.run(until=2)
    many = 4096
    run.words = {name: Words("layout", np.zeros(1, np.uint64), np.full(many, 7, np.uint32)) for name in run.sites}
    questions = run.server.questions()
    hidden = Words.from_bytes(run.answer("03", 3, questions.pop("03"))).copy()
    for name, question in questions.items():
        run.server.take(name, run.answer(name, 3, question))
    run.server.miss("03", "said to be lost")
    run.server.advance()
    run.run()
    roster: Roster = run.server._roster
    shares = {roster.number[name]: given["masking"]["03"] for name, given in run.server._shares.items()}
    secret = recover(shares, 3, lambda found: fits_mask_key(found, roster.keys["03"]))
    assert secret is not None
    bound = bound_to(roster, roster.names, ASKED)
    add_streams(hidden, [pair_key(secret, roster.keys[name].mask, bound) for name in ("00", "01", "02")])  # 03 took them off
    assert np.mean(hidden.narrow == 7) < 0.01 and len(np.unique(hidden.narrow)) > 0.99 * many
    own = {roster.number[name]: given["own"].get("03") for name, given in run.server._shares.items()}
    assert set(own.values()) == {None} and not fits_seal(secret, roster.keys["03"])
    add_streams(hidden, minus=[_own_stream(run, "03", bound)])  # with what nobody gave, it would be the words
    assert (hidden.narrow == 7).all()


def _own_stream(run: SumInMemory, name: str, bound: bytes) -> bytes:
    return self_key(SiteSecrets(run.context, name, bytes.fromhex(run.sites[name]._state["seed"])).own, bound)
