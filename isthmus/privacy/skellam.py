"""The Skellam mechanism: integer noise that adds up, so that clients can make it together.

Skellam noise of variance v is the difference of two Poisson numbers of mean v / 2; sums of independent Skellam numbers
are Skellam again, and their variances add.  What one client draws is a share of what the total needs.

**Theorem.**  Let integer vectors x, y have `||x - y||_2 <= S`, and let Z have independent Skellam coordinates of
variance v >= 1.  Then every test between x + Z and y + Z is at most as good as the best test between two Gaussians of
standard deviation `sigma(v)` whose means are S apart, where

    1 / sigma(v) = max_k [Phi^-1(F(k)) - Phi^-1(F(k - 1))] = 2 Phi^-1((1 + p) / 2),    p = P(Z_1 = 0) = exp(-v) I_0(v),

so `sigma(v) = sqrt(v) (1 - 1 / (6 v) + ...)`.  By Blackwell's theorem the pair (x + Z, y + Z) can be made from the
pair of Gaussians without knowing which of the two it is.  All that is true of pairs of Gaussians therefore holds for
Skellam noise: composition, adaptive or not, Poisson sampling (add/remove), privacy-loss distributions, Renyi
divergences.  docs/privacy.md has the proof.  The accountant counts Skellam noise as the Gaussian that it is no worse
than (`SkellamDpEvent`).

Agarwal, Kairouz and Liu (2021) bound the Renyi divergence.  The theorem is tighter unless the order times the length
of a shift is more than some 9 v, and needs no conversion from Renyi orders, which costs 5 to 10 % of epsilon.

>>> round(gaussian_scale(100.0) / 10, 5), round(variance_for(10.0), 3)
(0.99833, 100.334)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ive, ndtri, ndtri_exp
from torch import Tensor

from isthmus.base import validate
from isthmus.privacy import event_json
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import DpEvent, SkellamDpEvent
from isthmus.privacy.mechanisms import _OnGrid
from isthmus.privacy.noise import Source

MAX_VARIANCE = 2.0**30
"""The largest variance of a Skellam draw: its table has some 10^6 entries."""
_WORD = 64
_CHUNK = 1 << 18
Integers = NDArray[np.int64]


def skellam(variance: float | Fraction, size: int, noise: Source) -> Integers:
    """`size` independent Skellam integers: each the difference of two Poisson numbers of mean variance / 2."""
    rate = Fraction(variance) / 2
    return _poisson(rate, size, noise) - _poisson(rate, size, noise)


def _poisson(rate: float | Fraction, size: int, noise: Source, word: int = _WORD) -> Integers:
    """`size` independent Poisson integers of this mean, by inversion; `word` is how many digits are drawn at a time."""
    validate.positive(rate=float(rate))
    validate.at_most(MAX_VARIANCE / 2, "half the largest variance: take a coarser grid", rate=float(rate))
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


def _decide(rate: Fraction, value: int, digits: int, noise: Source) -> int:
    """The draw whose first digits are `value`, with as many more as it takes."""
    more = digits
    while True:
        value, digits = value << more | int(_digits(noise, 1, more)[0]), digits + more
        first, lower, before = _thresholds(rate, digits)
        place = bisect_right(lower, value)
        if place < len(lower) and value >= before[place]:
            return first + place


def _digits(noise: Source, size: int, word: int) -> NDArray[np.uint64]:
    """Uniform integers of `word` <= 64 binary digits."""
    halves = noise.integers(1 << 32, 2 * size).numpy().astype(np.uint64).reshape(2, size)
    whole: NDArray[np.uint64] = halves[0] << np.uint64(32) | halves[1]
    return whole >> np.uint64(_WORD - word)


_LARGEST = 2.0**34
"""The largest variance that the theorem is checked for."""
_SLACK = 1e-7
"""Of the scale, for the rounding of float64 in it: the steps are known to 1e-9 of themselves."""
_PLENTY = 2.0**24
"""Above this variance up to a thousandth of the scale is given away, and fewer steps have to be looked at."""
_UNIT = 1 << 20
"""Variances are multiples of 1 / _UNIT: exact as floats and as fractions."""


def gaussian_scale(variance: float) -> float:
    """The standard deviation of the Gaussian that Skellam noise of this variance is no worse than, from below.

    >>> [round(gaussian_scale(v), 4) for v in (1.0, 10.0, 1e6)]
    [0.8044, 3.1074, 999.9997]
    """
    validate.positive(variance=variance)
    remedy = f"give 1 to {_LARGEST:g} squared grid steps, by a finer or a coarser grid"
    validate.check(1 <= variance <= _LARGEST, "variance", variance, remedy)
    _certify(float(variance))
    return 1 / _step(variance)


@lru_cache(maxsize=256)
def variance_for(scale: float) -> float:
    """The least variance, in multiples of 2^-20, whose Skellam noise is no worse than a Gaussian of this scale.

    >>> v = variance_for(3.0)
    >>> gaussian_scale(v) >= 3.0 > gaussian_scale(v - 1e-5)
    True
    """
    validate.positive(scale=scale)
    most = math.sqrt(_LARGEST) / 1.01
    remedy = f"give 1 to {most:.5g} grid steps, by a finer or a coarser grid"
    validate.check(1 <= scale <= most, "noise in grid steps", scale, remedy)
    low, high = 0, math.ceil((scale**2 + 1) * 1.01 * _UNIT)
    while high - low > 1:
        middle = (low + high) // 2
        if _step(max(middle, 1) / _UNIT) * scale <= 1:
            high = middle
        else:
            low = middle
    _certify(high / _UNIT)
    return high / _UNIT


@dataclass(frozen=True)
class Skellam(_OnGrid):
    """Integer Skellam noise on a grid: exact, and the sum of such noise is of the same kind.

    The value is rounded to multiples of `grid`, which moves neighbours apart by at most `sqrt(m) * grid` more, and
    noise of `variance_for(multiplier * (C / grid + sqrt(m)))` is added to the integers.  Guarantee: that of Gaussian
    noise of `multiplier` times the bound of one record, for every value and dimension.  The noise is drawn from the
    run's source, exactly (`isthmus.privacy.skellam`).  In `isthmus.distributed.secagg` clients draw it in
    shares.

    >>> from isthmus.privacy import SeededSource
    >>> from isthmus.privacy.clips import ClippedSum
    >>> released = Skellam(2.0, grid=0.25).release(ClippedSum(torch.zeros(3), 2, 1.0), SeededSource(0))
    >>> bool((released * 4 == (released * 4).round()).all())
    True
    >>> Skellam(2.0, grid=0.25).event()
    SkellamDpEvent(noise_multiplier=2.0)
    """

    multiplier: float
    grid: float

    def noised(self, steps: Tensor, bound: float, noise: Source) -> Tensor:
        """Skellam noise from the run's source."""
        # saturation is a contraction: it never moves two neighbours further apart
        integers = steps.clamp(-(2.0**40), 2.0**40).long()
        return integers + torch.from_numpy(skellam(Fraction(self.variance(bound, len(steps))), len(steps), noise))

    def variance(self, bound: float, m: int) -> float:
        """The variance of the noise of m numbers of bound C, in squared grid steps.

        A quotient of at most 2^40 is off by 2^-13 at most: the root of m is taken that much larger.
        """
        return variance_for(self.multiplier * (bound / self.grid + (1 + 2.0**-12) * math.sqrt(m)) * (1 + 2.0**-50))

    def event(self, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> DpEvent:
        """`SkellamDpEvent(sigma / C)`: sigma is that of the Gaussian it is no worse than."""
        return SkellamDpEvent(float(self.multiplier))

    def describe(self) -> str:
        """The release in words."""
        much = event_json.multiples(self.multiplier)
        return f"Skellam noise (in steps of {self.grid:g}) that hides as much as Gaussian noise of {much}"


# ---------------------------------------------------------------- the theorem


def _step(variance: float) -> float:
    """The largest step of Phi^-1(F), at 0, and no less than 1 / sqrt(v) (the certificate needs that), from above."""
    centre = 2 * float(ndtri(0.5 + math.exp(_log_masses(variance, 0)[0]) / 2))
    slack = 1e-3 * max(0.0, 1 - _PLENTY / variance)
    return max(centre, 1 / math.sqrt(variance)) * (1 + _SLACK + slack)


@lru_cache(maxsize=256)
def _certify(variance: float) -> None:
    """Check for this variance that no step is larger than `_step`: computed near 0, proven beyond."""
    allowed = _step(variance) * (1 - _SLACK / 2)
    last = _proven_from(variance, allowed)
    quantiles = -ndtri_exp(_log_tails(variance, last))  # of P(Z > 0), P(Z > 1), ...
    step = float(np.diff(quantiles).max())
    if step > allowed:
        raise ArithmeticError(f"variance {variance}: a step of {step} is larger than {allowed}, the one at 0")


def _proven_from(v: float, step: float) -> int:
    """The first integer (up to a factor 1.1) from which on the proof of docs/privacy.md bounds all steps."""
    x = 2.0 + math.sqrt(v)
    while True:
        y = x / v
        rate = x * math.asinh(y) - v * y * y / (math.hypot(1.0, y) + 1)  # P(Z >= x) <= exp(-rate)
        z = -float(ndtri_exp(-rate))
        grows = step * math.sqrt(v) * math.asinh(y) * math.hypot(1.0, y) - math.sqrt(2 * rate / v)
        if z > 1 and math.sqrt(v) * grows >= 1 / z and math.asinh((x + 1) / v) <= step * z + step**2 / 2:
            return math.ceil(x)
        x = 1.1 * x + 1


def _log_masses(variance: float, last: int) -> NDArray[np.float64]:
    """log P(Z = k) for k = 0, ..., last: log(exp(-v) I_k(v)).

    Small variances: ratios of Bessel functions by the recurrence that is stable, downwards.  Large ones: Debye's
    expansion with two terms, whose third is below 1e-18 of the mass.
    """
    if variance <= 1e6:
        top = last + 40 + int(4 * math.sqrt(variance))
        ratios = list(accumulate(range(top, 0, -1), lambda r, k: 1 / (2 * k / variance + r), initial=0.0))
        logs = np.cumsum(np.log(np.array(ratios[:0:-1])))[:last]
        return np.concatenate([[0.0], logs]) + math.log(float(ive(0, variance)))
    k = np.arange(last + 1, dtype=np.float64)
    root = np.hypot(k, variance)
    p = (k / root) ** 2
    more = (3 - 5 * p) / (24 * root) + (81 - 462 * p + 385 * p * p) / (1152 * root * root)
    main = k * k / (root + variance) - k * np.arcsinh(k / variance) - 0.5 * np.log(2 * math.pi * root)
    whole: NDArray[np.float64] = main + np.log1p(more)
    return whole


def _log_tails(variance: float, last: int) -> NDArray[np.float64]:
    """log P(Z > k) for k = 0, ..., last: what is left out after the end of the sum is below 1e-17 of it."""
    logs = _log_masses(variance, last + 40 + int(40 * variance / (last + math.sqrt(variance))))
    tails: NDArray[np.float64] = np.logaddexp.accumulate(logs[::-1])[::-1]
    return tails[1 : last + 2]
