"""The discrete Gaussian against its exact probabilities and a slow sampler; numbers on a grid."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare, norm

from unseen.federation.site import noise
from unseen.federation.site.noise import DiscreteGaussian, GridNoise

KEY = bytes(range(32))


def probabilities(sigma: float, reach: int) -> NDArray[np.float64]:
    """Of -reach to reach, from the definition."""
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * sigma**2))
    every = np.exp(-(np.arange(-20 * math.ceil(sigma), 20 * math.ceil(sigma) + 1.0) ** 2) / (2 * sigma**2)).sum()
    return np.asarray(weights / every)


def surprise(drawn: NDArray[np.int64], sigma: float) -> float:
    """The p-value of a chi-square test against the exact probabilities; what is expected less than 10 times is one class."""
    reach = int(6 * sigma) + 3
    expected = probabilities(sigma, reach) * len(drawn)
    counted = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)
    many = expected >= 10
    found = [*counted[many], len(drawn) - counted[many].sum()]
    wanted = [*expected[many], len(drawn) - expected[many].sum()]
    return float(chisquare(found[: -1 if wanted[-1] < 1e-3 else None], wanted[: -1 if wanted[-1] < 1e-3 else None], sum_check=False).pvalue)


@pytest.mark.parametrize("sigma", [0.25, 0.7, 1.0, 3.3, 31.9, 32.0, 100.5, 2000.0])
def test_draws_follow_the_exact_probabilities(sigma: float) -> None:
    assert surprise(DiscreteGaussian(sigma, KEY).draw(500_000), sigma) > 1e-3


def test_a_wrong_sigma_would_be_seen() -> None:
    assert surprise(DiscreteGaussian(3.3, KEY).draw(500_000), 3.35) < 1e-6


def test_the_tail_beyond_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a table of 64 entries, which ends at 2.9 sigmas, one draw in some 60 goes beyond it, and some twice."""
    monkeypatch.setattr(noise, "_TABLE_BITS", 6)
    monkeypatch.setattr(noise, "_TABLE", 64)
    monkeypatch.setattr(noise, "_REACH", math.sqrt(2 * 6 * math.log(2)))
    monkeypatch.setattr(noise, "_proposal", noise._proposal.__wrapped__)
    gaussian = DiscreteGaussian(2.0, KEY)
    drawn = gaussian.draw(100_000)
    end = len(gaussian._proposal.entries)
    assert end == 7 and 0 < (np.abs(drawn) >= end).sum() < 200
    assert surprise(drawn, 2.0) > 1e-3


def test_at_full_fineness_values_and_low_bits() -> None:
    """A sigma of 2^32 steps and more: the shape is the normal one, and the low bits are even."""
    sigma = 1.37 * 2**32
    drawn = DiscreteGaussian(sigma, KEY).draw(1_000_000)
    edges = norm.ppf(np.arange(1, 200) / 200) * sigma
    assert chisquare(np.bincount(np.searchsorted(edges, drawn), minlength=200)).pvalue > 1e-3
    for shift in (0, 8, 16, 22):
        assert chisquare(np.bincount(drawn >> shift & 255, minlength=256)).pvalue > 1e-3
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4e-3


def slow_discrete_gaussian(sigma: Fraction, rng: random.Random) -> int:
    """Canonne, Kamath and Steinke 2020, Algorithms 1 to 3, in whole numbers."""

    def bernoulli_exp(gamma: Fraction) -> bool:
        if gamma > 1:
            return all(bernoulli_exp(Fraction(1)) for _ in range(math.floor(gamma))) and bernoulli_exp(gamma - math.floor(gamma))
        k = 1
        while rng.randrange(k * gamma.denominator) < gamma.numerator:
            k += 1
        return k % 2 == 1

    def laplace(scale: int) -> int:
        while True:
            low = rng.randrange(scale)
            if not bernoulli_exp(Fraction(low, scale)):
                continue
            high = 0
            while bernoulli_exp(Fraction(1)):
                high += 1
            size, negative = low + scale * high, rng.randrange(2)
            if size or not negative:
                return -size if negative else size

    scale = math.floor(sigma) + 1
    while True:
        candidate = laplace(scale)
        if bernoulli_exp((abs(candidate) - sigma**2 / scale) ** 2 / (2 * sigma**2)):
            return candidate


def test_against_the_slow_exact_sampler() -> None:
    sigma, rng = Fraction(5, 2), random.Random(3)
    slow = np.array([slow_discrete_gaussian(sigma, rng) for _ in range(10_000)])
    fast = DiscreteGaussian(2.5, KEY).draw(100_000)
    table = [np.bincount(np.clip(drawn, -7, 7) + 7, minlength=15) for drawn in (slow, fast)]
    assert chi2_contingency(table).pvalue > 1e-3
    assert surprise(slow, 2.5) > 1e-3


@given(sigma=st.floats(0.25, 2.0**46))
def test_no_proposal_is_taken_too_rarely(sigma: float) -> None:
    """Within a cell its first step asks for most; beyond the end the ratio is at most 1 too. All 2^16 numbers name a cell."""
    table = noise._proposal(sigma)
    cells = len(table.entries)
    width = 2**table.bits
    heights = [math.exp(-((cell * width / sigma) ** 2) / 2) for cell in range(cells)]
    assert all(table.peak * height < entries for height, entries in zip(heights, table.entries, strict=True))
    for times in (1, 2, 3):
        first = math.exp(-((times * cells * width / sigma) ** 2) / 2) * 2.0 ** (16 * times)
        assert table.peak * first <= table.entries[0]
    assert sum(table.entries) == 2**16 - 1 and np.array_equal(np.bincount(table.cell_at), [*table.entries, 1])
    assert width == 1 or 16 <= sigma / width < 32


def test_floats_and_exact_arithmetic_decide_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = DiscreteGaussian(1.37 * 2**32, KEY).draw(3000)
    monkeypatch.setattr(noise, "_DOUBT", 2.0)  # so all are in doubt
    assert np.array_equal(DiscreteGaussian(1.37 * 2**32, KEY).draw(3000), quick)


@pytest.mark.parametrize(("more", "taken"), [([0], True), ([2**64 - 1], False)])
def test_a_coin_that_falls_on_the_ratio_gets_more_bits(more: list[int], taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian = DiscreteGaussian(4.0, KEY)
    table, size = gaussian._proposal, 3
    ratio = Fraction(table.peak, table.entries[size]) * Fraction(math.exp(-Fraction(size**2, 32)))  # right to 2^-53 of itself
    asked: list[int] = []

    def words(number: int) -> NDArray[np.uint64]:
        asked.append(number)
        return np.array(more, dtype=np.uint64)

    monkeypatch.setattr(gaussian, "_words", words)
    close = [coin for coin in range(int(ratio * 2**64) - 2000, int(ratio * 2**64) + 2000) if _asks(gaussian, size, coin, asked)]
    assert len(close) == 1  # of 4000 neighbours, one begins as the ratio does
    assert gaussian._takes(size, size, 0, close[0]) is taken
    assert gaussian._takes(size, size, 0, close[0] - 1) and not gaussian._takes(size, size, 0, close[0] + 1)


def _asks(gaussian: DiscreteGaussian, size: int, coin: int, asked: list[int]) -> bool:
    asked.clear()
    gaussian._takes(size, size, 0, coin)
    return bool(asked)


@given(sigma=st.floats(0.5, 20), shift=st.integers(1, 12), order=st.floats(1.01, 60))
def test_divergence_is_bounded_as_the_continuous_one(sigma: float, shift: int, order: float) -> None:
    """Canonne, Kamath and Steinke, Theorem 4, which the accountant relies on, from the definition."""
    at = np.arange(-60 * math.ceil(sigma) - 800, 60 * math.ceil(sigma) + 801.0)
    log_p, log_q = (-((at - centre) ** 2) / (2 * sigma**2) for centre in (0, shift))
    total = np.logaddexp.reduce(order * log_p + (1 - order) * log_q) - np.logaddexp.reduce(log_p)
    assert total / (order - 1) <= order * shift**2 / (2 * sigma**2) * (1 + 1e-9) + 1e-9


@given(sigma=st.floats(1e-30, 1e30), values=st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_sums_lie_on_the_grid_and_values_do_not_grow(sigma: float, values: list[float]) -> None:
    grid_noise = GridNoise(sigma)
    assert math.frexp(grid_noise.grid)[0] == 0.5 and 2**32 <= sigma / grid_noise.grid < 2**33
    noised = grid_noise.added_to(np.array(values) * sigma)
    steps = noised / grid_noise.grid
    assert np.array_equal(steps, np.round(steps)) and np.abs(steps).max() < 2**53
    drawn: list[NDArray[np.int64]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_noise._gaussian, "draw", lambda number: drawn.append(np.zeros(number, np.int64)) or drawn[-1])
        rounded = grid_noise.added_to(np.array(values) * sigma)
    assert len(drawn) == 1 and np.all(np.abs(rounded) <= np.abs(np.array(values) * sigma))
    assert np.all(np.abs(rounded - np.array(values) * sigma) < grid_noise.grid)


def test_a_key_gives_the_same_noise_and_no_answer_shares_one() -> None:
    assert np.array_equal(DiscreteGaussian(9.0, KEY).draw(99), DiscreteGaussian(9.0, KEY).draw(99))
    assert not np.array_equal(GridNoise(1.0).added_to(np.zeros(9)), GridNoise(1.0).added_to(np.zeros(9)))
    with pytest.raises(ValueError, match="key"):
        DiscreteGaussian(9.0, KEY[:16])
