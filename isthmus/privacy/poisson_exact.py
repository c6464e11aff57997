"""Exact draws of Poisson and Skellam integers: no floating-point number decides anything.

**How.**  A Poisson number of mean r is `min {k : U < F(k)}` for a uniform real U and the distribution function F.  U
is drawn as its binary digits, as many as are needed: 64 from the source, and 64 more as long as they do not decide.
F is known as intervals of integers: the weights `w_k = r^(k - mode) mode! / k!` follow from `w_mode = 1` by one
multiplication and one division each, rounded down for the lower and up for the upper end, what lies outside the table
is bounded by a geometric series, and `F(k) = sum_{j <= k} w_j / sum_j w_j` needs no exponential function.

**Why it is exact.**  The first n digits u of U say that U lies in [u, u + 1) 2^-n.  The draw is k as soon as the
upper end of F(k - 1) is at most u 2^-n and the lower end of F(k) at least (u + 1) 2^-n; otherwise more digits are
drawn and the intervals are made narrower than they are.  So every k that is returned is the k of the definition, for
the r that was given (a float or a fraction is a rational number and is taken as it is), and the loop ends with
probability 1, after 64 digits but for about 2^-64 times the length of the table.  Nothing is cut off: every integer
>= 0 can occur.

>>> from isthmus.privacy import SeededSource
>>> poisson(2.5, 6, SeededSource(0)).dtype, bool((skellam(2.0, 1000, SeededSource(0)) == 0).any())
(dtype('int64'), True)
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate
from isthmus.privacy.noise import Noise

MOST = 2.0**30
"""The largest variance of a Skellam draw: its table has some 10^6 entries."""
_WORD = 64
_CHUNK = 1 << 18
Integers = NDArray[np.int64]


def skellam(variance: float | Fraction, size: int, noise: Noise) -> Integers:
    """`size` independent Skellam integers: each the difference of two Poisson numbers of mean variance / 2."""
    rate = Fraction(variance) / 2
    return poisson(rate, size, noise) - poisson(rate, size, noise)


def poisson(rate: float | Fraction, size: int, noise: Noise, word: int = _WORD) -> Integers:
    """`size` independent Poisson integers of this mean, by inversion; `word` is how many digits are drawn at a time."""
    validate.positive(rate=float(rate))
    validate.at_most(MOST / 2, "half the largest variance: take a coarser grid", rate=float(rate))
    validate.non_negative_int(size=size)
    table, out = _cells(Fraction(rate), word), np.empty(size, np.int64)
    for start in range(0, size, _CHUNK):
        part = out[start : start + _CHUNK]
        digits = _digits(noise, len(part), word)
        place = np.searchsorted(table.lower, digits, side="right")
        part[:] = table.first + place
        for index in np.flatnonzero((place == len(table.lower)) | (digits < table.before[place])):
            part[index] = _decide(Fraction(rate), int(digits[index]), word, noise)
    return out


@dataclass(frozen=True)
class _Cells:
    """Integers first, first + 1, ... with lower[j] <= 2^word F(first + j) and before[j] >= 2^word F(first + j - 1)."""

    first: int
    lower: NDArray[np.uint64]
    before: NDArray[np.uint64]


@lru_cache(maxsize=8)
def _cells(rate: Fraction, word: int) -> _Cells:
    first, lower, before = _thresholds(rate, word)
    most = (1 << word) - 1  # what needs more digits than a word is left to `_decide`
    count = max(1, sum(bound <= most for bound in before))
    lower, before = [min(bound, most) for bound in lower[:count]], [min(bound, most) for bound in before[:count]]
    return _Cells(first, np.array(lower, np.uint64), np.array([*before, most], np.uint64))


def _thresholds(rate: Fraction, digits: int) -> tuple[int, list[int], list[int]]:
    """The first integer of a table, floor(2^digits F(k)) from below, and ceil(2^digits F(k - 1)) from above."""
    first, low, high, tail_below, tail_above = _weights(rate, digits + 64)
    below, above = list(accumulate(low)), list(accumulate(high, initial=tail_below))
    most, least = above[-1] + tail_above, below[-1]
    lower = [(bound << digits) // most for bound in below]
    before = [-(-(bound << digits) // least) for bound in above[:-1]]
    return first, lower, before


def _weights(rate: Fraction, bits: int) -> tuple[int, list[int], list[int], int, int]:
    """The first integer, lower and upper ends of 2^bits w_k, and bounds of all weights before and after the table."""
    num, den, mode = rate.numerator, rate.denominator, int(rate)
    up, down = [(1 << bits, 1 << bits)], [(1 << bits, 1 << bits)]
    k = mode
    while up[-1][0] > 0:
        k += 1
        (low, high), by = up[-1], den * k
        up.append((low * num // by, -(-high * num // by)))
    above = -(-up[-1][1] * num // (den * (k + 1) - num))  # w_k rho / (1 - rho) with rho = rate / (k + 1)
    k = mode
    while k > 0 and down[-1][0] > 0:
        low, high = down[-1]
        by = den * k
        down.append((low * by // num, -(-high * by // num)))
        k -= 1
    below = -(-down[-1][1] * den * k // (num - den * k)) if k else 0  # rho = k / rate
    ends = [*reversed(down), *up[1:]]
    return k, [low for low, _ in ends], [high for _, high in ends], below, above


def _decide(rate: Fraction, value: int, digits: int, noise: Noise) -> int:
    """The draw whose first digits are `value`, with as many more as it takes."""
    more = digits
    while True:
        value, digits = value << more | int(_digits(noise, 1, more)[0]), digits + more
        first, lower, before = _thresholds(rate, digits)
        place = bisect_right(lower, value)
        if place < len(lower) and value >= before[place]:
            return first + place


def _digits(noise: Noise, size: int, word: int) -> NDArray[np.uint64]:
    """Uniform integers of `word` <= 64 binary digits."""
    halves = noise.integers(1 << 32, 2 * size).numpy().astype(np.uint64).reshape(2, size)
    whole: NDArray[np.uint64] = halves[0] << np.uint64(32) | halves[1]
    return whole >> np.uint64(_WORD - word)
