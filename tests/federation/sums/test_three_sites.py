"""Sums in which each site is needed: two exchanges make one, and a server that lies, alone or with a site, reads no one."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from sums_in_memory import ASKED, BOXES, KEYS, SumInMemory, added, site_sum
from unseen.errors import NoReplies, RefusedReply
from unseen.federation.sums.context import pack
from unseen.federation.sums.roster import PublicKeys, Roster
from unseen.federation.sums.server import ServerSum
from unseen.federation.sums.site import SiteSum, bound_to
from unseen.federation.sums.site_secrets import SiteSecrets, pair_key
from unseen.federation.sums.words import Words, add_streams

MANY = 4096
SEVENS = Words("layout", np.zeros(1, np.uint64), np.full(MANY, 7, np.uint32))


def secrets_of(site: SiteSum, name: str) -> SiteSecrets:
    return SiteSecrets(site._context, name, bytes.fromhex(site._state["seed"]), BOXES[name])


def looks_random(words: Words) -> bool:
    return bool(np.mean(words.narrow == 7) < 0.01 and len(np.unique(words.narrow)) > 0.99 * MANY)


def test_two_exchanges_give_the_sum() -> None:
    run = SumInMemory(3)
    run.run()
    assert sorted({step for _, step in run.answers}) == [1, 2] and run.total == added(["00", "01", "02"])


def test_no_secret_is_shared_out() -> None:
    """Shares of three sites' secrets would be of use to nobody but a thief."""
    run = SumInMemory(3)
    run.run(until=1)
    assert all(json.loads(answer)["boxes"] == {} for answer in run.answers.values())
    question = json.loads(run.server.questions()["00"])
    assert question["boxes"] == {}
    for boxes in ({"01": "00" * 82}, {"00": ""}, [], None):
        with pytest.raises(RefusedReply, match="boxes of a secure sum"):
            run.sites["00"].take_keys(pack(question | {"boxes": boxes}), ASKED)
    with_a_box = pack({"keys": json.loads(run.answers["00", 1])["keys"], "boxes": {"01": "00" * 82}})
    server = ServerSum(run.context, ASKED)
    server.take("00", with_a_box)
    assert "boxes of a secure sum" in server.missing["00"]


@pytest.mark.parametrize("step", ["consent", "unmask"])
@pytest.mark.parametrize(
    "said", [{"survivors": ["00", "01"]}, {"survivors": ["00", "01", "02"]}, {"signatures": {}}, {"signatures": None}, {}, []]
)
@pytest.mark.parametrize("until", [0, 1, 2])
def test_there_is_nothing_to_consent_to_and_nothing_to_unmask(step: str, said: Any, until: int) -> None:
    """A signature of two survivors might be of use to a server in a larger sum."""
    run = SumInMemory(3)
    run.run(until=until)
    with pytest.raises(RefusedReply, match=rf"\({step}\), which a secure sum that needs all of its 3 sites does not have"):
        getattr(run.sites["00"], step)(pack(said))
    run.run()
    assert run.total == added([*run.sites])


def test_two_sites_never_make_a_sum() -> None:
    """Neither the keys of two, nor the words of two: the masks that each shares with the third one are on them."""
    for two in combinations(("00", "01", "02"), 2):
        run = SumInMemory(3)
        run.words = {name: SEVENS.copy() for name in run.sites}
        run.run(until=1)
        asked = json.loads(run.server.questions()[two[0]])
        fewer = asked | {"keys": {name: held for name, held in asked["keys"].items() if name in two}}
        with pytest.raises(RefusedReply, match="3 are needed"):
            run.sites[two[0]].take_keys(pack(fewer), ASKED)
        total = Words("layout", np.zeros(1, np.uint64), np.zeros(MANY, np.uint32))
        for name, question in run.server.questions().items():
            words = Words.from_bytes(run.answer(name, 2, question))
            assert looks_random(words)
            if name in two:
                total.add(words)
        assert looks_random(total)


@pytest.mark.parametrize("sites", [4, 5, 40])
def test_where_no_site_may_be_lost_there_is_no_sum_of_fewer(sites: int) -> None:
    """Whoever is called lost: sums of nearly equal answers, each without another site, would tell single ones."""
    whole = SumInMemory(sites, may_lose=False)
    whole.run()
    assert sorted({step for _, step in whole.answers}) == [1, 2] and whole.total == added([*whole.sites])
    for lost in ("00", "03"):
        run = SumInMemory(sites, may_lose=False)
        run.words = {name: SEVENS.copy() for name in run.sites}
        run.run(until=1)
        questions = run.server.questions()
        asked, there = json.loads(questions["01"]), [name for name in run.sites if name != lost]
        with pytest.raises(RefusedReply, match=rf"keys of {sites - 1} of {sites} sites; {sites} are needed"):
            run.sites["01"].take_keys(pack(asked | {"keys": {name: asked["keys"][name] for name in there}}), ASKED)
        run.lost = {lost: 2}
        with pytest.raises(NoReplies, match=rf"{lost}: no answer in time.*no site may be left out .* sums_may_lose_sites"):
            run.one_step()
        total = Words("layout", np.zeros(1, np.uint64), np.zeros(MANY, np.uint32))
        for name in there:
            total.add(Words.from_bytes(run.answers[name, 2]))
        assert looks_random(total)
        for step in ("consent", "unmask"):
            with pytest.raises(RefusedReply, match=rf"needs all of its {sites} sites"):
                getattr(run.sites["01"], step)(pack({"survivors": there}))
        run.lost = {}
        run.run()  # the site is back
        assert run.server.survivors == [*run.sites]


def test_sites_that_do_not_agree_on_losses_are_in_no_sum_together() -> None:
    """A site on the server's side could tell some that it allows them, and others that it does not."""
    strict, loose = SumInMemory(4, may_lose=False), SumInMemory(4)
    strict.run(until=1), loose.run(until=1)
    mixed = {name: json.loads((strict if name == "00" else loose).answers[name, 1])["keys"] for name in strict.sites}
    with pytest.raises(RefusedReply, match="did not sign for this sum"):
        strict.sites["00"].take_keys(pack({"keys": mixed, "boxes": {}}), ASKED)


def test_words_to_different_questions_stay_masked() -> None:
    run = SumInMemory(3)
    run.run(until=1)
    total = Words("layout", np.zeros(1, np.uint64), np.zeros(MANY, np.uint32))
    for name, question in run.server.questions().items():
        site, asked = run.sites[name], hashlib.sha256(f"made for {name}".encode()).digest()
        site.take_keys(question, asked)
        total.add(Words.from_bytes(site.mask(SEVENS.copy())))
    assert looks_random(total)
    for name, question in run.server.questions().items():
        with pytest.raises(RefusedReply, match="asked in another way before"):
            run.sites[name].take_keys(question, ASKED)


def test_with_one_site_on_its_side_the_server_learns_the_sum_of_the_other_two_and_no_more() -> None:
    """02 shows each of the others other keys of its own, signed, and gives the server all of its secrets."""
    run = SumInMemory(3)
    run.run(until=1)
    second = site_sum(run.context, "02")
    offer = json.loads(second.keys())
    masked: dict[str, Words] = {}
    for name in ("00", "01"):
        asked = json.loads(run.server.questions()[name])
        if name == "01":
            asked = asked | {"keys": {**asked["keys"], "02": offer["keys"]}}
        site = run.sites[name]
        site.take_keys(pack(asked), ASKED)
        masked[name] = Words.from_bytes(site.mask(SEVENS.copy())).copy()
        roster, liar = Roster.read(run.context, asked["keys"]), run.sites["02"] if name == "00" else second
        bound = bound_to(roster, ASKED)
        add_streams(masked[name], minus=[pair_key(secrets_of(liar, "02").mask, roster.keys[name].mask, bound)])
        assert looks_random(masked[name]), "the masks that 00 and 01 share are on it still"
    total = masked["00"]
    total.add(masked["01"])
    assert looks_random(total), "and do not cancel, since the two were shown different keys"


def with_a_bit_that_x25519_ignores(key: bytes) -> bytes:
    return key[:31] + bytes([key[31] | 0x80])


def with_the_point_of_order_two(key: bytes) -> bytes:
    """1 / u, which is a regular key."""
    field = 2**255 - 19
    return pow(int.from_bytes(key, "little"), -1, field).to_bytes(32, "little")


@pytest.mark.parametrize("disguised", [with_a_bit_that_x25519_ignores, with_the_point_of_order_two])
@pytest.mark.parametrize(("victim", "honest", "liar"), [("01", "00", "02"), ("01", "02", "00"), ("00", "01", "02"), ("02", "01", "00")])
def test_another_sites_key_in_disguise_cancels_no_mask(victim: str, honest: str, liar: str, disguised: Any) -> None:
    """Whoever agrees with it agrees on the honest site's secret: the site between the two would add and take off the same stream."""
    run = SumInMemory(3)
    keys = {name: json.loads(run.sites[name].keys())["keys"] for name in (victim, honest)}
    copied = disguised(bytes.fromhex(keys[honest]["mask"]))
    keys[liar] = PublicKeys.signed(copied, bytes(32), run.context, liar, KEYS[liar]).plain()
    run.sites[victim].take_keys(pack({"keys": keys, "boxes": {}}), ASKED)
    words = Words.from_bytes(run.sites[victim].mask(SEVENS.copy()))
    assert looks_random(words)
    assert np.mean(words.narrow & 1 == SEVENS.narrow & 1) == pytest.approx(0.5, abs=0.05), "nor does a mask count twice"


def test_secrets_of_one_sum_open_no_other() -> None:
    """The key for boxes stays for the whole study. A sum whose secrets are all known tells nothing of the next one's."""
    one, other = SumInMemory(3), SumInMemory(3)
    one.run(until=2), other.run(until=2)
    first, then = (secrets_of(run.sites["00"], "00") for run in (one, other))
    assert len({first.mask, then.mask, KEYS["00"].private_bytes_raw(), BOXES["00"]}) == 4
