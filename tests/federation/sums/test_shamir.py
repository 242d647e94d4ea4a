"""Secret sharing: by hand, by its definition, and with wrong shares."""

from __future__ import annotations

import secrets
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.federation.sums.shamir import PRIME, RANDOM_BYTES, recover, split


def secret_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


def coefficients(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(RANDOM_BYTES, "big") for number in numbers)


def numbers(shares: dict[int, bytes]) -> dict[int, int]:
    return {x: int.from_bytes(share, "big") for x, share in shares.items()}


def test_a_line_and_a_parabola_by_hand() -> None:
    assert numbers(split(secret_of(5), [1, 2, 3], 2, coefficients(7))) == {1: 12, 2: 19, 3: 26}  # 5 + 7 x
    assert numbers(split(secret_of(1), [1, 2, 4], 3, coefficients(2, 3))) == {1: 6, 2: 17, 4: 57}  # 1 + 2 x + 3 x^2
    assert numbers(split(secret_of(2), [1, 2], 2, coefficients(PRIME - 1))) == {1: 1, 2: 0}  # 2 - x
    assert numbers(split(secret_of(1), [2], 2, coefficients(PRIME - 1))) == {2: PRIME - 1}  # 1 - 2: around the end of the field


def test_the_modulus_is_a_prime_above_every_secret() -> None:
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in range(2, 60):  # Miller and Rabin
        powers = [pow(witness, odd * 2**k, PRIME) for k in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
    assert 2**256 < PRIME < 2**264


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_any_so_many_shares_give_the_secret_back(secret: bytes, threshold: int, more: int, random: object) -> None:
    holders = random.sample(range(1, 60), threshold + more)  # type: ignore[attr-defined]
    shares = split(secret, holders, threshold, secrets.token_bytes(RANDOM_BYTES * (threshold - 1)))
    for some in combinations(holders, threshold):
        assert recover({x: shares[x] for x in some}, threshold) == secret
    assert recover({x: shares[x] for x in holders[: threshold - 1]}, threshold) is None


@given(st.integers(0, 2**256 - 1), st.integers(0, 2**256 - 1), st.integers(0, PRIME - 1), st.integers(1, 50))
def test_one_share_of_two_fits_every_secret(true: int, other: int, coefficient: int, holder: int) -> None:
    share = split(secret_of(true), [holder], 2, coefficients(coefficient))
    fitting = (int.from_bytes(share[holder], "big") - other) * pow(holder, -1, PRIME) % PRIME
    assert split(secret_of(other), [holder], 2, coefficients(fitting)) == share


def test_a_wrong_share_is_found_out_and_others_take_its_place() -> None:
    secret = secrets.token_bytes(32)
    shares = split(secret, range(1, 6), 3, secrets.token_bytes(2 * RANDOM_BYTES))
    wrong = {**shares, 1: shares[2], 2: bytes(33)}
    assert recover(wrong, 3) != secret
    assert recover(wrong, 3, lambda found: found == secret) == secret
    assert recover({**wrong, 3: bytes(33)}, 3, lambda found: found == secret) is None


@pytest.mark.parametrize(
    ("holders", "wrong"),
    [(4, [1]), (14, [1]), (14, [2, 7]), (15, [1]), (15, [15]), (15, [2, 7]), (20, [1, 2, 3]), (32, [1]), (32, [1, 2, 3, 4]), (49, [1])],
)
def test_wrong_shares_do_not_end_a_sum_however_many_hold_one(holders: int, wrong: list[int]) -> None:
    """As many are needed as in a sum: more than two thirds."""
    threshold, secret = 2 * holders // 3 + 1, secrets.token_bytes(32)
    shares = split(secret, range(1, holders + 1), threshold, secrets.token_bytes(RANDOM_BYTES * (threshold - 1)))
    given = {**shares, **{one: secrets.token_bytes(32).rjust(33, b"\0") for one in wrong}}
    assert recover(given, threshold, lambda found: found == secret) == secret


@pytest.mark.parametrize(("more", "bad"), [(1, [7]), (2, [7, 30])])
def test_a_wrong_share_is_found_out_where_hardly_any_are_to_spare(more: int, bad: list[int]) -> None:
    """Of 49 holders many gave nothing; 33 + `more` shares came."""
    secret, threshold = secrets.token_bytes(32), 33
    shares = split(secret, range(1, 34 + more), threshold, secrets.token_bytes(RANDOM_BYTES * 32))
    given = {**shares, **{one: bytes(33) for one in bad}}
    assert recover(given, threshold, lambda found: found == secret) == secret
    assert recover({**given, 12: bytes(33)}, threshold, lambda found: found == secret) is None, "and it ends"


def test_randomness_must_be_enough() -> None:
    with pytest.raises(ValueError, match="a secret of 32 bytes with 48 random ones for a threshold of 3"):
        split(bytes(32), [1, 2, 3], 3, bytes(48))
