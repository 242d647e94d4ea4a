"""Sums among sites that are lost, restarted or wrong at any step: the sum is exact, or there is none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from scipy.stats import chi2

from sums_in_memory import ASKED, BOXES, SumInMemory, added, context_of, kept_of, site_sum, words_of
from unseen.errors import BadInput, NoReplies, RefusedReply
from unseen.federation.sums.context import derive, pack
from unseen.federation.sums.partners import partners_of
from unseen.federation.sums.roster import Roster
from unseen.federation.sums.server import ServerSum
from unseen.federation.sums.site import bound_to
from unseen.federation.sums.site_secrets import SiteSecrets
from unseen.federation.sums.words import Words, add_streams

STEPS = range(1, 5)


def steps(sites: int) -> list[int]:
    """At three sites each is needed, so nothing is shared out, and there is nothing to consent to or to unmask."""
    return [1, 2] if sites == 3 else [1, 2, 3, 4]


def test_where_every_site_is_needed_there_are_two_steps() -> None:
    assert {n: context_of(n).steps for n in (3, 4, 5, 6, 40)} == {n: steps(n) for n in (3, 4, 5, 6, 40)}
    assert [n for n in range(3, 64) if context_of(n).threshold == n] == [3]


def losses(sites: int) -> Iterator[dict[str, int]]:
    """Who is lost from which step on: nobody, each site at each step, and two, one of them the first, at each pair of steps."""
    names = [*context_of(sites).sites]
    yield {}
    for some in [*combinations(names, 1), (names[0], names[2])]:
        yield from (dict(zip(some, steps, strict=True)) for steps in product(STEPS, repeat=len(some)))


@pytest.mark.parametrize("sites", [3, 4, 5])
def test_every_loss_at_every_step_leaves_the_exact_sum_or_none(sites: int) -> None:
    needed, sums = {3: 3, 4: 3, 5: 4}[sites], 0
    for lost in losses(sites):
        run = SumInMemory(sites, lost)
        there = [sum(lost.get(name, 9) > step for name in run.sites) for step in steps(sites)]
        if min(there) < needed:
            good = next(number for number in there if number < needed)
            with pytest.raises(NoReplies, match=rf"{good} of {sites} sites gave a usable answer .* {needed} are needed .*in time"):
                run.run()
        else:
            run.run()
            survivors = [name for name in run.sites if lost.get(name, 9) > 2]
            assert run.server.survivors == survivors and run.total == added(survivors), lost
            assert run.server.missing == {name: "no answer in time" for name, step in lost.items() if step <= steps(sites)[-1]}
            sums += 1
    lost_after_the_words = 3 * 2 + 2 * 2  # three sites alone and two together, at the two steps that three sites do not have
    assert sums == {3: 1 + lost_after_the_words, 4: 1 + 4 * 4, 5: 1 + 5 * 4}[sites]


def test_seven_sites_survive_the_loss_of_two_at_different_steps() -> None:
    run = SumInMemory(7, {"00": 3, "06": 2})  # of seven, five are needed
    run.run()
    assert run.server.survivors == ["00", "01", "02", "03", "04", "05"] and run.total == added(run.server.survivors)


@pytest.mark.parametrize("lost", [{}, {"01": 2}, {"03": 1}, {"00": 4}])
def test_restarted_before_every_call_everyone_goes_on(lost: dict[str, int]) -> None:
    calm, restarted = SumInMemory(4, lost), SumInMemory(4, lost, restart=True)
    restarted.sites = {n: site_sum(calm.context, n, site.to_bytes()) for n, site in calm.sites.items()}  # of the same seeds
    calm.run(), restarted.run()
    assert restarted.total == calm.total == added(calm.server.survivors)
    assert restarted.answers == calm.answers and restarted.asked == calm.asked


def test_the_same_question_gets_the_same_answer_at_any_time() -> None:
    run = SumInMemory(3)
    run.run()
    before = dict(run.answers)
    for (name, step), question in {**run.asked}.items():
        assert run.answer(name, step, question) == before[name, step]
    assert run.total == added([*run.sites])


def test_a_server_that_is_killed_within_a_step_asks_the_same_again() -> None:
    run, before = SumInMemory(4), (None, b"")
    for step in STEPS:
        first = run.server.questions()
        for name in ("02", "00"):
            run.server.take(name, run.answer(name, step, first[name]))
        run.server = ServerSum(run.context, ASKED, *before)
        assert run.server.questions() == first
        run.one_step()
        before = kept_of(run.server)
    assert run.total == added([*run.sites])
    assert ServerSum(run.context, ASKED, *before).result.narrow.tolist() == run.total[1]


def test_a_step_that_too_few_answered_can_be_asked_again() -> None:
    for step in steps(3):
        run = SumInMemory(3)
        run.run(until=step - 1)
        run.lost = {"01": step}
        with pytest.raises(NoReplies, match="01: no answer in time"):
            run.one_step()
        assert run.server.expected == ["01"]
        run.lost = {}
        run.run()
        assert run.total == added([*run.sites]) and run.server.missing == {}


def test_a_sum_among_fewer_than_the_study_asks_for_waits_for_more() -> None:
    """Until the words are there: a site that fails later is in the sum."""
    for step in STEPS:
        run = SumInMemory(5)
        run.server = ServerSum(run.context, ASKED, fewest=5)
        run.run(until=step - 1)
        run.lost = {"01": step}
        if step <= 2:
            with pytest.raises(NoReplies, match=r"4 of 5 sites .* 5 are needed"):
                run.one_step()
            assert run.server.expected == ["01"]
            run.lost = {}
        run.run()
        assert run.total == added([*run.sites]) and len(run.server.survivors) == 5


def test_a_restarted_site_masks_no_other_words_with_the_same_masks() -> None:
    run = SumInMemory(3, restart=True)
    run.run(until=2)
    site = run.site("01")
    assert site.mask(run.words["01"].copy()) == run.answers["01", 2]
    with pytest.raises(RefusedReply, match="gave another answer before"):
        run.site("01").mask(words_of("02"))


def test_a_site_that_wrote_its_answer_down_but_not_its_state_goes_on() -> None:
    """It was killed between the two: its words are known to have been asked for, and are given again from where they lie."""
    run = SumInMemory(3)
    run.run(until=1)
    questions = run.server.questions()
    site = run.sites["01"]
    site.take_keys(questions["01"], ASKED)
    kept = site.to_bytes()
    run.server.take("01", site.mask(run.words["01"].copy()))
    run.sites["01"] = site_sum(run.context, "01", kept)
    run.run()
    assert run.total == added([*run.sites])


def test_what_was_kept_of_another_sum_is_not_taken() -> None:
    one, other = context_of(3), context_of(3, ask=2)
    kept = site_sum(one, "00").to_bytes()
    with pytest.raises(RefusedReply, match="of another one"):
        site_sum(other, "00", kept)
    with pytest.raises(RefusedReply, match="another secure sum"):
        ServerSum(other, ASKED, ServerSum(one, ASKED).to_bytes())
    with pytest.raises(RefusedReply, match="another secure sum"):
        ServerSum(one, bytes(32), ServerSum(one, ASKED).to_bytes())


@pytest.mark.parametrize("sites", [3, 4])
def test_masked_words_are_the_words_and_known_masks_and_nothing_else(sites: int) -> None:
    """Worked out again from the seeds, in Python's integers: own mask among four, plus for later names, minus for earlier ones."""
    run = SumInMemory(sites)
    run.run(until=2)
    kept = {name: SiteSecrets(run.context, name, bytes.fromhex(site._state["seed"]), BOXES[name]) for name, site in run.sites.items()}
    roster = Roster.read(run.context, run.sites["01"]._state["roster"])
    bound = bound_to(roster, ASKED)

    def stream(key: bytes) -> list[int]:
        zeros = Words("", np.zeros(2, np.uint64), np.zeros(3, np.uint32))
        add_streams(zeros, [key])
        return zeros.narrow.tolist()

    def pair(one: str, other: str) -> bytes:
        public = X25519PublicKey.from_public_bytes(roster.keys[other].mask)
        both = sorted([roster.keys[one].mask, roster.keys[other].mask])
        return derive(X25519PrivateKey.from_private_bytes(kept[one].mask).exchange(public), "pair", bound, *both)

    assert pair("00", "01") == pair("01", "00")
    masked = Words.from_bytes(run.answers["01", 2]).narrow.tolist()
    added_on = [stream(pair("01", later)) for later in ("02", "03")[: sites - 2]]
    added_on += [stream(derive(kept["01"].own, "self", bound))] if sites == 4 else []
    taken_off, plain = stream(pair("01", "00")), words_of("01").narrow.tolist()
    assert masked == [(word + sum(more) - less) % 2**32 for word, less, *more in zip(plain, taken_off, *added_on, strict=True)]


def test_the_words_of_one_site_look_uniform_whatever_they_are() -> None:
    many = 200_000
    for plain in (np.zeros(many, np.uint32), np.full(many, 2**31 - 1, np.uint32)):
        run = SumInMemory(3)
        run.words["01"] = Words("layout", np.zeros(2, np.uint64), plain)
        run.words |= {name: Words("layout", np.zeros(2, np.uint64), np.zeros(many, np.uint32)) for name in ("00", "02")}
        run.run()
        masked = Words.from_bytes(run.answers["01", 2]).narrow
        for shift in (0, 12, 24):  # the low, the middle and the high byte
            counts = np.bincount(masked >> np.uint32(shift) & np.uint32(255), minlength=256)
            statistic = float(((counts - many / 256) ** 2 / (many / 256)).sum())
            assert statistic < chi2.ppf(1 - 1e-6, 255)
        assert np.array_equal(run.server.result.narrow, plain)


def test_two_sums_of_the_same_words_have_other_masks() -> None:
    one, other = SumInMemory(3), SumInMemory(3)
    one.run(), other.run()
    assert one.total == other.total and one.answers["00", 2] != other.answers["00", 2]


def test_a_site_whose_answer_has_another_layout_is_left_out_alone() -> None:
    run = SumInMemory(4)
    run.words["02"] = words_of("02", layout="another")
    run.run()
    assert run.server.survivors == ["00", "01", "03"] and run.total == added(run.server.survivors)
    assert "differs from the others' in the fields" in run.server.missing["02"]
    few = SumInMemory(3)
    few.words["02"] = words_of("02", layout="another")
    with pytest.raises(NoReplies, match=r"2 of 3 sites .* differs from the others"):
        few.run()


@pytest.mark.parametrize("liar", ["00", "02"])  # the first to answer, or a later one
def test_a_site_with_more_words_than_its_layout_is_left_out_alone(liar: str) -> None:
    run = SumInMemory(4)
    run.words[liar] = words_of(liar, narrow=9)
    run.run()
    assert run.total == added([name for name in run.sites if name != liar]) and [*run.server.missing] == [liar]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        pack({"keys": {}, "boxes": {}}),
        pack({"keys": {}, "boxes": {"00": "zz"}}),
        pack({"own": 1, "masking": []}),
    ],
)
@pytest.mark.parametrize("step", STEPS)
def test_a_wrong_answer_costs_its_sender_alone(answer: bytes, step: int) -> None:
    run = SumInMemory(4)
    honest = run.answer

    def tampered(name: str, at: int, question: bytes) -> bytes:
        return answer if (name, at) == ("03", step) else honest(name, at, question)

    run.answer = tampered  # type: ignore[method-assign]
    run.run()
    assert run.total == added([name for name in run.sites if name != "03" or step > 2])
    assert [*run.server.missing] == ["03"]


def test_wrong_shares_of_one_site_are_found_out() -> None:
    """A liar gives other numbers of the field for the shares that it holds. Four of five holders are enough."""
    run = SumInMemory(5)
    honest = run.answer

    def lying(name: str, step: int, question: bytes) -> bytes:
        answer = honest(name, step, question)
        return answer if (name, step) != ("00", 4) else pack({"own": {n: (7).to_bytes(33, "big").hex() for n in run.sites}, "masking": {}})

    run.answer = lying  # type: ignore[method-assign]
    run.run()
    assert run.total == added([*run.sites])


def test_where_too_many_shares_are_wrong_there_is_no_sum() -> None:
    run = SumInMemory(4)
    honest = run.answer

    def lying(name: str, step: int, question: bytes) -> bytes:
        answer = honest(name, step, question)
        return (
            answer
            if (name, step) not in (("00", 4), ("01", 4))
            else pack({"own": {n: (7).to_bytes(33, "big").hex() for n in run.sites}, "masking": {}})
        )

    run.answer = lying  # type: ignore[method-assign]
    with pytest.raises(NoReplies, match="do not give back the secret of 00"):
        run.run()


def test_two_sites_are_too_few() -> None:
    with pytest.raises(BadInput, match="a secure sum of 2 sites; it takes 3"):
        context_of(2)


@pytest.mark.parametrize(("sites", "needed"), [(3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (9, 7), (40, 27)])
def test_more_than_two_thirds_are_needed(sites: int, needed: int) -> None:
    assert context_of(sites).threshold == needed and needed * 3 > 2 * sites >= (needed - 1) * 3


def test_above_thirty_two_sites_each_has_some_partners() -> None:
    run = SumInMemory(40, {"05": 1, "11": 1, "17": 2, "23": 2, "29": 3, "35": 4})
    run.run()
    assert run.server.survivors == [name for name in run.sites if name not in ("05", "11", "17", "23")]
    assert run.total == added(run.server.survivors)
    assert {len(partners) for partners in run.context.partners.values()} == {32} and run.context.shares_needed == 23
    boxes = {name: len(answer) for (name, step), answer in run.answers.items() if step == 1}
    assert max(boxes.values()) < 32 * 190


@pytest.mark.parametrize("number", [3, 32, 33, 40, 100, 1000])
def test_partners_know_of_each_other_and_all_are_connected(number: int) -> None:
    names = [f"{n:04d}" for n in range(number)]
    partners = partners_of(names, b"seed")
    assert all(name in partners[other] and other != name for name in names for other in partners[name])
    seen, edge = {names[0]}, [names[0]]
    while edge:
        edge = [other for name in edge for other in partners[name] if other not in seen and not seen.add(other)]  # type: ignore[func-returns-value]
    assert len(seen) == number
    assert partners == partners_of(names, b"seed") and (number <= 33 or partners != partners_of(names, b"other"))
    assert {len(some) for some in partners.values()} == {min(number - 1, {100: 36, 1000: 48}.get(number, 32))}
