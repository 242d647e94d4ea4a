"""Gaussian noise on a grid, for numbers that leave a site.

The low bits of floating-point noise tell what it was added to (Mironov, "On significance of the least significant bits for
differential privacy", 2012). So numbers are whole steps of a grid here, noise is a whole number of steps, and both are added as
integers. One multiplication by the grid, a power of two, makes floats of the sum.

The noise is the discrete Gaussian: step x has a probability in proportion to exp(-x^2 / (2 sigma^2)). It bounds the Renyi divergence
of every order as the continuous one does (Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", 2020,
Theorem 4; numbers are drawn independently, so divergences of a vector add up to the squared L2 distance).

It is drawn exactly, many at a time:
- A table proposes a cell of 2^m neighbouring steps by 16 random bits; m more bits choose the step in it, and one its sign. One entry
  of the table means "beyond its end": another is looked up, and the end is added. So the tail has no end.
- The proposal is taken with the ratio of the wanted to the proposed probability. Floats decide where they are sure. Where they are
  not (once in 10^11), and beyond the table's end, exact arithmetic decides, with as many random bits as it takes.
What is left is the generator: AES-256 in counter mode, under a fresh key from the operating system.
"""

from __future__ import annotations

import functools
import math
import os
from bisect import bisect_left
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

__all__ = ["DiscreteGaussian", "GridNoise"]

_FINENESS = 32  # a standard deviation is 2^32 to 2^33 steps of the grid
_TABLE_BITS = 16
_TABLE = 2**_TABLE_BITS
_REACH = math.sqrt(2 * _TABLE_BITS * math.log(2))  # so many sigmas hold the table; beyond is less than 2^-16 of the peak
_DOUBT = 2.0**-40  # floats are at most 2^-45 wrong about a ratio
_AT_ONCE = 2**16  # proposals, so that they stay in the processor's cache


class GridNoise:
    """The noise of one answer, with a key of its own."""

    def __init__(self, sigma: float) -> None:
        self.grid = math.ldexp(1.0, math.frexp(sigma)[1] - 1 - _FINENESS)
        self._gaussian = DiscreteGaussian(sigma / self.grid, os.urandom(32))

    def added_to(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values on the grid with noise. They are rounded towards zero, so their norm does not grow. Each is below 2^53 steps."""
        steps = np.trunc(values / self.grid).astype(np.int64)
        steps += self._gaussian.draw(len(steps))
        return steps.astype(np.float64) * self.grid


@dataclass(frozen=True)
class _Proposal:
    """A table of cells. The ratio of the wanted to the proposed probability is peak / entries[cell] * exp(...), at most 1."""

    cell_at: NDArray[np.uint8]  # for each of 2^16 numbers; the last cell is "beyond"
    entries: tuple[int, ...]  # of each cell in the table
    peak: int
    bits: int  # of the step within its cell


@functools.lru_cache(maxsize=8)
def _proposal(sigma: float) -> _Proposal:
    """Cells of sigma / 32 to sigma / 16, or of one step.

    A cell has more entries than peak * exp(-start^2 / (2 sigma^2)), the most that any of its steps asks for. "Beyond" has one entry.
    Its ratio is at most 1 as well: c times beyond the end, (c * end + start)^2 >= c * end^2 + start^2, and exp(-end^2 / (2 sigma^2))
    is at most 2^-16.
    """
    bits = max(0, math.frexp(sigma)[1] - 5)
    cells = math.ceil(_REACH * sigma / 2**bits) + 1
    heights = [math.exp(-((cell * 2.0**bits / sigma) ** 2) / 2) for cell in range(cells)]

    def entries(peak: int) -> list[int]:
        return [math.floor(peak * height * (1 + 2**-40)) + 1 for height in heights]

    peak = bisect_left(range(1, _TABLE), _TABLE, key=lambda peak: sum(entries(peak)))  # the largest that leaves one entry
    table = entries(peak)
    table[0] += _TABLE - 1 - sum(table)
    cell_at = np.repeat(np.arange(cells + 1, dtype=np.uint8), [*table, 1])
    return _Proposal(cell_at, tuple(table), peak, bits)


class DiscreteGaussian:
    """Draws whole numbers with probabilities in proportion to exp(-x^2 / (2 sigma^2)); 1/4 <= sigma < 2^47. A key gives the same again."""

    def __init__(self, sigma: float, key: bytes) -> None:
        self._sigma, self._proposal = sigma, _proposal(sigma)
        self._ratios = self._proposal.peak / np.array([*self._proposal.entries, 1.0])
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def draw(self, number: int) -> NDArray[np.int64]:
        drawn = np.empty(number, dtype=np.int64)
        have = 0
        while have < number:
            some = self._accepted(min(_AT_ONCE, (number - have) * 17 // 16 + 16))[: number - have]
            drawn[have : have + len(some)] = some
            have += len(some)
        return drawn

    def _accepted(self, proposals: int) -> NDArray[np.int64]:
        table = self._proposal
        words, coins = self._words(proposals), self._words(proposals)
        cells = table.cell_at[words & np.uint64(_TABLE - 1)].astype(np.int64)
        times = self._times_beyond(cells)
        within = (words >> np.uint64(_TABLE_BITS + 1)).astype(np.int64) & (2**table.bits - 1)
        sizes = ((times * len(table.entries) + cells) << table.bits) + within
        ratios = self._ratios[cells] * np.exp((sizes / self._sigma) ** 2 * -0.5)
        gaps = ratios - coins * 2.0**-64
        taken = gaps > 0
        for one in np.flatnonzero((np.abs(gaps) < _DOUBT) | (times > 0)):
            taken[one] = self._takes(int(sizes[one]), int(cells[one]), int(times[one]), int(coins[one]))
        negative = (words >> np.uint64(_TABLE_BITS)).astype(np.int64) & 1
        taken &= (sizes | (1 - negative)) > 0  # zero has one sign
        signed = np.where(negative, -sizes, sizes)
        accepted: NDArray[np.int64] = signed[taken]
        return accepted

    def _times_beyond(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """How often each proposal went beyond the table's end; its cell is replaced by where it ended up."""
        table = self._proposal
        times = np.zeros_like(cells)
        beyond = np.flatnonzero(cells == len(table.entries))
        while len(beyond):
            times[beyond] += 1
            cells[beyond] = table.cell_at[self._words(len(beyond)) & np.uint64(_TABLE - 1)]
            beyond = beyond[cells[beyond] == len(table.entries)]
        return times

    def _takes(self, size: int, cell: int, times: int, coin: int) -> bool:
        """Whether a uniform number that begins with the bits of `coin` is below the ratio, exactly."""
        exponent = Fraction(size * size) / (2 * Fraction(self._sigma) ** 2)
        factor = Fraction(self._proposal.peak * _TABLE**times, self._proposal.entries[cell])
        bits = 64
        while True:
            digits = Context(prec=bits)
            power = digits.exp(digits.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))
            ratio, error = factor * Fraction(power), Fraction(1, 4**bits)  # the error is below 10^-60 where this says 10^-38
            if Fraction(coin + 1, 2**bits) <= ratio - error:
                return True
            if Fraction(coin, 2**bits) >= ratio + error:
                return False
            coin, bits = coin << 64 | int(self._words(1)[0]), bits + 64

    def _words(self, number: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * number)), dtype="<u8")
