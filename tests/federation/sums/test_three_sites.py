"""Three sites, where each is needed: nobody is asked who survived, and a server that lies, alone or with one of them, reads no one."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from sums_in_memory import ASKED, BOXES, KEYS, SumInMemory, added, site_sum
from unseen.errors import RefusedReply
from unseen.federation.sums.context import pack
from unseen.federation.sums.roster import Roster
from unseen.federation.sums.site import SiteSum, bound_to
from unseen.federation.sums.site_secrets import SiteSecrets, pair_key, self_key
from unseen.federation.sums.words import Words, add_streams

MANY = 4096
SEVENS = Words("layout", np.zeros(1, np.uint64), np.full(MANY, 7, np.uint32))


def secrets_of(site: SiteSum, name: str) -> SiteSecrets:
    return SiteSecrets(site._context, name, bytes.fromhex(site._state["seed"]), BOXES[name])


def looks_random(words: Words) -> bool:
    return bool(np.mean(words.narrow == 7) < 0.01 and len(np.unique(words.narrow)) > 0.99 * MANY)


def test_three_exchanges_give_the_sum() -> None:
    run = SumInMemory(3)
    run.run()
    assert sorted({step for _, step in run.answers}) == [1, 2, 4] and run.total == added(["00", "01", "02"])


def test_consent_is_not_given_where_nothing_is_to_consent_to() -> None:
    """A signature of two survivors might be of use to a server in a larger sum."""
    run = SumInMemory(3)
    run.run(until=2)
    for survivors in (["00", "01"], ["00", "01", "02"]):
        with pytest.raises(RefusedReply, match=r"step 3 \(consent\) of a secure sum, which one of 3 sites does not have"):
            run.sites["00"].consent(pack({"survivors": survivors}))
    run.run()
    assert run.total == added([*run.sites])


@pytest.mark.parametrize(
    "lie", [{"survivors": ["00", "01"]}, {"signatures": {"02": "00" * 64}}, {"signatures": []}, {"signatures": None}, {}, []]
)
def test_whatever_is_said_of_survivors_is_refused(lie: Any) -> None:
    run = SumInMemory(3)
    run.run(until=2)
    with pytest.raises(RefusedReply):
        run.sites["00"].unmask(pack(lie))
    run.run()
    assert run.total == added([*run.sites])


def test_two_sites_never_make_a_sum() -> None:
    """Neither the keys of two, nor the words of two: the third one's masks are on the sum, and no site gives a share of them."""
    for two in combinations(("00", "01", "02"), 2):
        run = SumInMemory(3)
        run.run(until=1)
        asked = json.loads(run.server.questions()[two[0]])
        fewer = {kind: {name: held for name, held in asked[kind].items() if name in two} for kind in ("keys", "boxes")}
        with pytest.raises(RefusedReply, match="3 are needed"):
            run.sites[two[0]].take_keys(pack(fewer), ASKED)
        run.run(until=2)
        given = [json.loads(run.sites[name].unmask(pack({"signatures": {}}))) for name in two]
        assert all(answer["masking"] == {} and sorted(answer["own"]) == ["00", "01", "02"] for answer in given)


def test_unmasking_before_the_words_is_refused() -> None:
    run = SumInMemory(3)
    run.run(until=1)
    with pytest.raises(RefusedReply, match=r"step 4 \(unmask\) of a secure sum after step 1"):
        run.sites["00"].unmask(pack({"signatures": {}}))


def test_own_masks_alone_do_not_open_words_to_another_question() -> None:
    """Each site is asked something else. The server then has every own mask, and takes them off: what two sites share stays on."""
    run = SumInMemory(3)
    run.run(until=1)
    masked, own = {}, {}
    for name, question in run.server.questions().items():
        site, asked = run.sites[name], hashlib.sha256(f"made for {name}".encode()).digest()
        site.take_keys(question, asked)
        masked[name] = Words.from_bytes(site.mask(SEVENS.copy())).copy()
        own[name] = self_key(secrets_of(site, name).own, bytes.fromhex(site._state["bound"]))  # from the three sites' shares
        assert json.loads(site.unmask(pack({"signatures": {}})))["masking"] == {}
    for name, words in masked.items():
        add_streams(words, minus=[own[name]])
        assert looks_random(words)
    total = masked["00"]
    total.add(masked["01"])
    total.add(masked["02"])
    assert looks_random(total)


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
            asked = {"keys": {**asked["keys"], "02": offer["keys"]}, "boxes": {**asked["boxes"], "02": offer["boxes"]["01"]}}
        site = run.sites[name]
        site.take_keys(pack(asked), ASKED)
        masked[name] = Words.from_bytes(site.mask(SEVENS.copy())).copy()
        given = json.loads(site.unmask(pack({"signatures": {}})))
        assert given["masking"] == {}
        roster, liar = Roster.read(run.context, asked["keys"]), run.sites["02"] if name == "00" else second
        bound = bound_to(roster, ASKED)
        known = [self_key(secrets_of(site, name).own, bound), pair_key(secrets_of(liar, "02").mask, roster.keys[name].mask, bound)]
        add_streams(masked[name], minus=known)
        assert looks_random(masked[name]), "the masks that 00 and 01 share are on it still"
    total = masked["00"]
    total.add(masked["01"])
    assert looks_random(total), "and do not cancel, since the two were shown different keys"


def test_secrets_of_one_sum_open_no_other() -> None:
    """The key for boxes stays for the whole study. A sum whose secrets are all known tells nothing of the next one's."""
    one, other = SumInMemory(3), SumInMemory(3)
    one.run(until=2), other.run(until=2)
    first, then = (secrets_of(run.sites["00"], "00") for run in (one, other))
    assert len({first.mask, first.own, then.mask, then.own}) == 4
    assert {KEYS["00"].private_bytes_raw(), BOXES["00"]}.isdisjoint({first.mask, first.own})
