"""A server that lies to the sites: each lie ends in a refusal, and no site's words can be read from what it was given."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sums_in_memory import ASKED, BOXES, KEYS, SumInMemory, added, context_of, site_sum, words_of
from unseen.errors import RefusedReply
from unseen.federation.sums.context import SumContext, pack
from unseen.federation.sums.roster import PublicKeys, Roster
from unseen.federation.sums.server import ServerSum
from unseen.federation.sums.shamir import recover
from unseen.federation.sums.site import bound_to
from unseen.federation.sums.site_secrets import SiteSecrets, fits_mask_key, fits_seal, pair_key, self_key
from unseen.federation.sums.words import Words, add_streams


def asked_of(run: SumInMemory, site: str = "00") -> dict[str, Any]:
    """The question of step 2, but for the method's own: all sites' keys, and the boxes for this one."""
    if run.server.step == 1:
        run.run(until=1)
    asked: dict[str, Any] = json.loads(run.server.questions()[site])
    return asked


def own_keys(context: SumContext, site: str, key: Ed25519PrivateKey) -> dict[str, str]:
    """Keys of the server's own making, under a site's name."""
    return SiteSecrets(context, site, bytes(32), bytes(32)).public(key).plain()


def test_keys_that_the_site_did_not_sign_are_refused() -> None:
    run = SumInMemory(4)
    asked, stranger = asked_of(run), Ed25519PrivateKey.from_private_bytes(bytes(32))
    keys, other_boxes = asked["keys"], {**run.context.boxes, "02": run.context.boxes["03"]}
    forged = {
        "the server's own keys": {**keys, "01": own_keys(run.context, "01", stranger)},
        "a changed masking key": {**keys, "01": {**keys["01"], "mask": keys["01"]["mask"][::-1]}},
        "a changed seal": {**keys, "01": {**keys["01"], "seal": "00" * 32}},
        "two sites exchanged": {**keys, "01": keys["02"], "02": keys["01"]},
        "of another round": {**keys, "01": own_keys(context_of(4, round_number=2), "01", KEYS["01"])},
        "of another ask": {**keys, "01": own_keys(context_of(4, ask=2), "01", KEYS["01"])},
        "of another study": {**keys, "01": own_keys(context_of(4, study="6" * 64), "01", KEYS["01"])},
        "among other sites": {**keys, "01": own_keys(context_of(5), "01", KEYS["01"])},
        "among sites with other keys for boxes": {**keys, "01": own_keys(replace(run.context, boxes=other_boxes), "01", KEYS["01"])},
    }
    for lie, shown in forged.items():
        with pytest.raises(RefusedReply, match=r"keys that 0[12] did not sign for this sum"):
            run.sites["00"].take_keys(pack({**asked, "keys": shown}), ASKED)
            pytest.fail(lie)
    run.sites["00"].take_keys(pack(asked), ASKED)  # a refusal costs nothing: the honest question is taken still


def test_other_sites_too_few_sites_and_a_key_twice_are_refused() -> None:
    run = SumInMemory(4)
    asked, site = asked_of(run), run.sites["00"]
    keys, boxes = asked["keys"], asked["boxes"]
    twice = PublicKeys.signed(*(bytes.fromhex(keys["01"][part]) for part in ("mask", "seal")), run.context, "02", KEYS["02"])
    refused: dict[str, dict[str, Any]] = {
        "do not take part": {"keys": {**keys, "40": own_keys(context_of(41), "40", KEYS["40"])}},
        "of 2 of 4 sites; 3 are needed": {"keys": {name: keys[name] for name in ("00", "01")}, "boxes": {"01": boxes["01"]}},
        "other keys of this site": {"keys": {name: keys[name] for name in ("01", "02", "03")}},
        "other keys of this site than": {"keys": {**keys, "00": own_keys(run.context, "00", KEYS["00"])}},
        "a key is there twice": {"keys": {**keys, "02": twice.plain()}},
    }
    for reason, lie in refused.items():
        with pytest.raises(RefusedReply, match=reason):
            site.take_keys(pack({**asked, **lie}), ASKED)


def test_a_key_that_agrees_on_nothing_is_refused_by_everyone() -> None:
    run = SumInMemory(4)
    asked = asked_of(run)
    for mask in (bytes(32), b"\1" + bytes(31)):
        lie = PublicKeys.signed(mask, bytes(32), run.context, "01", KEYS["01"]).plain()
        with pytest.raises(RefusedReply, match="agree on nothing"):
            run.sites["00"].take_keys(pack({**asked, "keys": {**asked["keys"], "01": lie}}), ASKED)
        server = ServerSum(run.context, ASKED)
        server.take("01", pack({**json.loads(run.answers["01", 1]), "keys": lie}))
        assert server.missing == {"01": "keys that agree on nothing"}


def test_each_step_is_answered_once_and_in_order() -> None:
    run = SumInMemory(4)
    asked = asked_of(run)
    fresh = site_sum(run.context, "00")
    for early in (lambda: fresh.take_keys(pack(asked), ASKED), lambda: fresh.consent(b""), lambda: fresh.unmask(b"")):
        with pytest.raises(RefusedReply, match="after step 0"):
            early()
    with pytest.raises(RefusedReply, match=r"step 2 \(words\) was not asked"):
        fresh.mask(words_of("00"))
    question, site = pack(asked), run.sites["00"]
    for late in (lambda: site.consent(b""), lambda: site.unmask(b"")):
        with pytest.raises(RefusedReply, match="after step 1"):
            late()
    site.take_keys(question, ASKED)
    fewer = {kind: {name: held for name, held in asked[kind].items() if name != "03"} for kind in ("keys", "boxes")}
    for other in ((question, hashlib.sha256(b"another question").digest()), (question + b" ", ASKED), (pack(fewer), ASKED)):
        with pytest.raises(RefusedReply, match=r"step 2 \(words\) of a secure sum, which was asked in another way before"):
            site.take_keys(*other)
    with pytest.raises(RefusedReply, match="after step 2"):
        site.unmask(pack({"signatures": {}}))


def test_an_old_step_of_another_sum_is_refused() -> None:
    old, now = SumInMemory(4), SumInMemory(4)
    now.context = context_of(4, ask=2)
    now.sites = {name: site_sum(now.context, name) for name in now.sites}
    now.server = ServerSum(now.context, ASKED)
    old.run()
    now.run(until=1)
    with pytest.raises(RefusedReply, match="did not sign for this sum"):
        now.sites["00"].take_keys(old.asked["00", 2], ASKED)
    now.run(until=3)
    with pytest.raises(RefusedReply, match="did not sign as they were shown here"):
        now.sites["00"].unmask(old.asked["00", 4])
    now.run()
    assert now.total == added([*now.sites])


def test_boxes_of_others_missing_boxes_and_other_entries_are_refused() -> None:
    run = SumInMemory(4)
    asked = asked_of(run)
    boxes = asked["boxes"]
    lies = [
        {**asked, "boxes": {name: boxes[name] for name in ("01", "02")}},
        {**asked, "boxes": {**boxes, "00": boxes["01"]}},
        {**asked, "boxes": {**boxes, "01": boxes["01"][:-2]}},
        {**asked, "boxes": [*boxes]},
        {**asked, "keys": [*asked["keys"]]},
        {**asked, "keys": {**asked["keys"], "02": None}},
        {**asked, "more": 1},
        {"keys": asked["keys"]},
    ]
    for lie in lies:
        with pytest.raises(RefusedReply):
            run.sites["00"].take_keys(pack(lie), ASKED)


def test_exchanged_boxes_are_not_opened_and_give_nothing() -> None:
    run = SumInMemory(4)
    run.run(until=1)
    boxes = run.server._boxes
    boxes["01"]["00"], boxes["02"]["00"] = boxes["02"]["00"], boxes["01"]["00"]  # two senders to one site
    boxes["03"]["01"], boxes["03"]["02"] = boxes["03"]["02"], boxes["03"]["01"]  # one sender to two sites
    run.run(until=3)
    given = {name: json.loads(run.answer(name, 4, question)) for name, question in run.server.questions().items()}
    assert {name: sorted(answer["own"]) for name, answer in given.items()} == {
        "00": ["00", "03"], "01": ["00", "01", "02"], "02": ["00", "01", "02"], "03": ["00", "01", "02", "03"],
    }  # fmt: skip


def test_a_box_that_is_sent_back_to_its_sender_is_not_opened() -> None:
    """Both ways between two sites have keys of their own: one key would encrypt two boxes, and open a site's own box as the other's."""
    run = SumInMemory(4)
    run.run(until=1)
    run.server._boxes["01"]["00"] = run.server._boxes["00"]["01"]
    run.run(until=3)
    given = json.loads(run.answer("00", 4, run.server.questions()["00"]))
    assert sorted(given["own"]) == ["00", "02", "03"]


def test_a_box_of_another_sum_is_not_opened() -> None:
    """The key that a box is encrypted with stays the same for the whole study: what is derived from it must not."""
    old, run = SumInMemory(4), SumInMemory(4)
    old.context = context_of(4, round_number=2)
    old.sites = {name: site_sum(old.context, name) for name in old.sites}
    old.server = ServerSum(old.context, ASKED)
    again = SumInMemory(4)  # the same place, with secrets drawn anew: a site that lost its disk
    for one in (old, again, run):
        one.run(until=1)
    boxes = run.server._boxes
    assert len({one.server._boxes["01"]["00"] for one in (old, again, run)}) == 3
    boxes["01"]["00"], boxes["02"]["00"] = old.server._boxes["01"]["00"], again.server._boxes["02"]["00"]
    run.run(until=3)
    given = json.loads(run.answer("00", 4, run.server.questions()["00"]))
    assert sorted(given["own"]) == ["00", "03"]


def test_no_key_encrypts_two_boxes() -> None:
    """The nonce is always the same, so that a key must not be. Of the same secrets come the same boxes; of all others, other keys."""
    used: dict[bytes, bytes] = {}
    for at in (1, 2):
        for _ in range(2):
            context = context_of(4, round_number=at)
            for name in context.sites:
                secret = SiteSecrets(context, name, secrets.token_bytes(32), BOXES[name])
                keys = secret.public(KEYS[name])
                assert secret.boxes(keys) == secret.boxes(keys)
                for to in context.partners[name]:
                    stream = secret._cipher(to, keys, name, to).encrypt(bytes(12), bytes(32), None)
                    assert stream not in used
                    used[stream] = b""


def test_another_question_for_one_site_leaves_a_sum_that_is_noise() -> None:
    """Otherwise a server could ask the others in such a way that their answers are known, and read the one that is left."""
    run = SumInMemory(4)
    run.run(until=1)
    many = 4096
    run.words = {name: Words("layout", np.zeros(1, np.uint64), np.full(many, 7, np.uint32)) for name in run.sites}
    for name, question in run.server.questions().items():
        site = run.sites[name]
        site.take_keys(question, hashlib.sha256(b"made for 02").digest() if name == "02" else ASKED)
        run.server.take(name, site.mask(run.words[name].copy()))
    run.server.advance()
    for name, question in run.server.questions().items():
        run.server.take(name, run.answer(name, 3, question))
    assert run.server.missing == {"02": "a signature that does not fit the survivors"}
    run.server.advance()
    run.one_step()
    assert np.mean(run.server.result.narrow == 28) < 0.01 and len(np.unique(run.server.result.narrow)) > 0.99 * many


def subsets(names: list[str]) -> list[list[str]]:
    return [list(some) for some in chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))]


def test_too_few_survivors_or_others_are_not_signed() -> None:
    run = SumInMemory(4, {"03": 1})
    run.run(until=2)
    for survivors in [*subsets(["00", "01", "02", "03"])]:
        if survivors != ["00", "01", "02"]:
            with pytest.raises(RefusedReply):
                run.sites["00"].consent(pack({"survivors": survivors}))
    assert run.sites["00"].consent(pack({"survivors": ["00", "01", "02"]}))


def test_a_server_that_shows_different_survivors_gets_no_share_of_anyone() -> None:
    """Half of the sites are told that 03 survived, half that it did not: both kinds of its shares would be given."""
    run = SumInMemory(4)
    run.run(until=2)
    everyone, without = ["00", "01", "02", "03"], ["00", "01", "02"]
    shown = {"00": everyone, "01": without, "02": without, "03": everyone}
    signatures = {name: json.loads(run.answer(name, 3, pack({"survivors": seen})))["signature"] for name, seen in shown.items()}
    for name, some in ((name, some) for name in shown for some in subsets(everyone)):
        with pytest.raises(RefusedReply):
            run.sites[name].unmask(pack({"signatures": {one: signatures[one] for one in some}}))
    for name, seen in shown.items():
        with pytest.raises(RefusedReply, match="asked in another way before"):
            run.sites[name].consent(pack({"survivors": without if seen == everyone else everyone}))


def test_with_one_site_of_four_on_its_side_a_server_gets_one_kind_of_share_alone() -> None:
    """03 signs whatever it is shown. With two honest sites there are three signatures of one set; the last honest one stays alone."""
    run = SumInMemory(4)
    run.run(until=2)
    everyone, without = ["00", "01", "02", "03"], ["00", "02", "03"]  # 01 is the one to be read
    roster, bound = run.server._roster, run.sites["00"]._state["bound"]

    def liar(survivors: list[str]) -> str:
        return run.context.sign("consent", pack([roster.digest.hex(), bound, survivors]), KEYS["03"]).hex()

    shown = {"00": everyone, "01": everyone, "02": without}
    signed = {name: json.loads(run.answer(name, 3, pack({"survivors": seen})))["signature"] for name, seen in shown.items()}
    first = pack({"signatures": {"00": signed["00"], "01": signed["01"], "03": liar(everyone)}})
    given = [json.loads(run.sites[name].unmask(first)) for name in ("00", "01")]
    assert all(answer["masking"] == {} and "01" in answer["own"] for answer in given)
    for signatures in ({"02": signed["02"], "03": liar(without)}, {"02": signed["02"], "03": liar(without), "00": signed["00"]}):
        with pytest.raises(RefusedReply):
            run.sites["02"].unmask(pack({"signatures": signatures}))
    with pytest.raises(RefusedReply, match="asked in another way before"):
        run.sites["00"].unmask(pack({"signatures": {"02": signed["02"], "03": liar(without), "00": liar(without)}}))


def test_signatures_must_be_enough_and_of_survivors() -> None:
    run = SumInMemory(4, {"03": 2})
    run.run(until=3)
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
    for lost in ({}, {"01": 2}, {"01": 1}, {"00": 3}):
        run = SumInMemory(4, lost)
        run.run()
        for name in run.sites:
            if (name, 4) in run.answers:
                given = json.loads(run.answers[name, 4])
                assert not given["own"].keys() & given["masking"].keys()
                assert sorted(given["own"]) == run.server.survivors
                assert sorted(given["masking"]) == (["01"] if lost == {"01": 2} else [])


def test_a_site_that_is_called_lost_stays_hidden_under_its_own_mask() -> None:
    """The server has the words of 03 and says that it has not: it gets the masking key of 03, takes all pair masks off, and reads noise."""
    run = SumInMemory(4)
    run.run(until=1)
    many = 4096
    run.words = {name: Words("layout", np.zeros(1, np.uint64), np.full(many, 7, np.uint32)) for name in run.sites}
    questions = run.server.questions()
    hidden = Words.from_bytes(run.answer("03", 2, questions.pop("03"))).copy()
    for name, question in questions.items():
        run.server.take(name, run.answer(name, 2, question))
    run.server.miss("03", "said to be lost")
    run.server.advance()
    run.run()
    roster: Roster = run.server._roster
    shares = {run.context.number[name]: given["masking"]["03"] for name, given in run.server._shares.items()}
    secret = recover(shares, 3, lambda found: fits_mask_key(found, roster.keys["03"]))
    assert secret is not None
    bound = bound_to(roster, ASKED)
    add_streams(hidden, [pair_key(secret, roster.keys[name].mask, bound) for name in ("00", "01", "02")])  # 03 took them off
    assert np.mean(hidden.narrow == 7) < 0.01 and len(np.unique(hidden.narrow)) > 0.99 * many
    own = {run.context.number[name]: given["own"].get("03") for name, given in run.server._shares.items()}
    assert set(own.values()) == {None} and not fits_seal(secret, roster.keys["03"])
    add_streams(hidden, minus=[_own_stream(run, "03", bound)])  # with what nobody gave, it would be the words
    assert (hidden.narrow == 7).all()


def _own_stream(run: SumInMemory, name: str, bound: bytes) -> bytes:
    return self_key(SiteSecrets(run.context, name, bytes.fromhex(run.sites[name]._state["seed"]), BOXES[name]).own, bound)
