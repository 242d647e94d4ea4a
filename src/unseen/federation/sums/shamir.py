"""Shamir's secret sharing: a secret of 32 bytes in shares, of which any `threshold` give it back and fewer tell nothing.

The secret is the value at 0 of a polynomial of degree threshold - 1 over the integers modulo a prime; a share is its value elsewhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice

__all__ = ["BYTES_OF_SHARE", "PRIME", "RANDOM_BYTES", "recover", "split"]

PRIME = 2**256 + 297  # the smallest prime that every secret of 32 bytes lies below
BYTES_OF_SHARE = 33
RANDOM_BYTES = 48  # for one coefficient: so many more than the prime's that their remainder is as good as uniform
_MOST_TRIES = 1000


def split(secret: bytes, holders: Iterable[int], threshold: int, randomness: bytes) -> dict[int, bytes]:
    """A share for each holder, who are numbered from 1. `randomness` holds RANDOM_BYTES for each of threshold - 1 coefficients.

    >>> shares = split(b"s" * 32, [1, 2, 3], 2, bytes(range(48)))
    >>> recover({1: shares[1], 3: shares[3]}, 2)
    b'ssssssssssssssssssssssssssssssss'
    """
    if len(secret) != 32 or len(randomness) != RANDOM_BYTES * (threshold - 1):
        raise ValueError(f"a secret of {len(secret)} bytes with {len(randomness)} random ones for a threshold of {threshold}")
    drawn = [randomness[at : at + RANDOM_BYTES] for at in range(0, len(randomness), RANDOM_BYTES)]
    polynomial = [int.from_bytes(secret, "big"), *(int.from_bytes(one, "big") % PRIME for one in drawn)]
    return {x: _value(polynomial, x).to_bytes(BYTES_OF_SHARE, "big") for x in holders}


def recover(shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool] = lambda secret: True) -> bytes | None:
    """The secret that `fits`, by holders' numbers; None where there are too few shares, or too many of them are wrong.

    A wrong share gives another secret. Where `fits` can tell, other holders' shares are tried.
    """
    if len(shares) < threshold:
        return None
    for some in islice(_choices(sorted(shares), threshold), _MOST_TRIES):
        value = _at_zero({x: int.from_bytes(shares[x], "big") for x in some})
        if value < 2**256 and fits(secret := value.to_bytes(32, "big")):
            return secret
    return None


def _choices(holders: Sequence[int], threshold: int) -> Iterator[tuple[int, ...]]:
    """Whose shares are tried one after the other: all choices where they are few enough.

    Else choices without each single holder, then without pairs, for half of the tries. Random ones follow, so that no holder is in all.
    """
    if math.comb(len(holders), threshold) <= _MOST_TRIES:
        yield from combinations(holders, threshold)
        return
    few = range(min(2, len(holders) - threshold) + 1)
    left_out = chain.from_iterable(combinations(holders, number) for number in few)
    without = (tuple([one for one in holders if one not in out][:threshold]) for out in left_out)
    yield from islice(dict.fromkeys(without), _MOST_TRIES // 2)
    draw = random.Random(0)  # noqa: S311 - the same at each trial; it draws no secret
    while True:
        yield tuple(draw.sample(holders, threshold))


def _value(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _at_zero(points: Mapping[int, int]) -> int:
    """Lagrange's formula: sum over i of y_i times the product over j of x_j / (x_j - x_i)."""
    total = 0
    for i, y in points.items():
        above, below = 1, 1
        for j in points:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        total = (total + y * above * pow(below, -1, PRIME)) % PRIME
    return total
