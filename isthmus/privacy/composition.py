"""Privacy losses of many rounds added up, so that rounding is small against the delta that is asked for.

The loss of one round is a distribution on the multiples of an interval that is no better than the true one ("connect
the dots": Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022), from the hockey-stick curves of `dp_accounting`.
n rounds are its n-th power of convolution, by the fast Fourier transform.

**Why not as it is.**  The transform is off by some n 2^-53 of the *largest* mass, everywhere.  Far out, where the
masses lie that a small delta is made of, nothing but this noise is left, of either sign: after 10^5 rounds at a rate
of .01 with a multiplier of 2, the library's epsilon of delta = 10^-14 had a true delta of 3.4 * 10^-13.

**What is done instead.**  With `K(t) = log E exp(t L)`, the tilted law `exp(t l - K(t)) P(L = l)` is a law again,
tilted laws add up as plain ones do, and

    delta(epsilon) = exp(K(t) - t epsilon) E_t[exp(-t (L - epsilon)) (1 - exp(-(L - epsilon)))_+].

With the t of Chernoff's bound the bulk of the tilted law is at epsilon, so that the noise is some n 2^-53 of delta
itself.  Whatever t is, the result is an upper bound: each mass is raised by what the transform may have lost (`_lost`
proves how much that is), and what was cut off counts as if it had the largest weight.  Where this is not small a
smaller t is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq, minimize_scalar

from isthmus.privacy.event_json import DpEvent, _unsampled, dpa

RELATIVE = 1e-14
"""What the rounding of masses of one round may hide of delta, relative to it."""
_SHIFT = 1e-14
"""What rounding may hide of a loss in one round: the curves are computed to a few units of 10^-16, relative."""
_UNIT = 2.0**-53
_FOURIER = 12 * _UNIT
"""What a transform of 2^k numbers may lose, k times and relative to their length: Higham, Accuracy and Stability of
Numerical Algorithms, theorem 24.2, has 6.7 units for steps of two; steps of three to eleven are fewer and cost more."""
_POWER = 16 * _UNIT
"""What a complex power may lose, relative, for each unit of its exponent's size."""
_FAR = 45.0
"""Masses below exp(-FAR) of a tilted law may come to lie elsewhere."""
_DEEP = 60.0
"""Losses that count less than exp(-DEEP) of the least one are counted as so much together."""
SMALL, _TRIES = 1e-4, 12
"""The part of delta that may be lost before another tilt is tried, and how many are."""
_SHORT, _MOST = 1000, 1 << 27
"""Multiples of the interval that are all kept, and that no computer should be asked for."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class _RoundLoss:
    """The loss of one round: the multiples of the interval that have a mass, its logarithm, and an infinite loss's."""

    at: Numbers
    logs: Numbers
    infinite: float


def cost(parts: Mapping[DpEvent, int], replaced: bool, interval: float, asked: str, given: float) -> float:
    """The epsilon (or delta) of all these rounds, the larger one of both directions; an upper bound.

    >>> from isthmus.privacy.accounting import epsilon
    >>> one = {dpa.PoissonSampledDpEvent(1 - 1e-9, dpa.GaussianDpEvent(1.0)): 1}
    >>> abs(cost(one, False, 1e-4, "epsilon", 1e-5) - epsilon(noise_multiplier=1.0, delta=1e-5)) < 1e-4
    True
    """
    kinds = dpa.pld.privacy_loss_mechanism.AdjacencyType
    sides = {True: [kinds.REPLACE], False: [kinds.REMOVE, kinds.ADD]}[replaced]
    return max(_one_way([(_round(leaf, side, interval), n) for leaf, n in parts.items()], interval, asked, given)
               for side in sides)  # fmt: skip


def _one_way(rounds: Sequence[tuple[_RoundLoss, int]], interval: float, asked: str, given: float) -> float:
    """The cost in one direction: what is infinite costs its whole mass of delta."""
    if any(losses.infinite >= 1 for losses, _ in rounds):
        return {"epsilon": math.inf, "delta": 1.0}[asked]
    infinite = -math.expm1(math.fsum(n * math.log1p(-losses.infinite) for losses, n in rounds))
    total = _Total(rounds, interval)
    if asked == "delta":
        return min(1.0, total.delta(given - _SHIFT * total.n) * (1 + RELATIVE * total.n) + infinite)
    target = (given - infinite) / (1 + RELATIVE * total.n)
    if target <= 0:
        return math.inf
    return total.epsilon(math.log(target)) + _SHIFT * total.n


@dataclass(frozen=True)
class _Tilted:
    """A tilted law of the sum: masses at first, first + 1, ... intervals, and what each of them may have lost."""

    t: float
    log_mean: float
    interval: float
    first: int
    masses: Numbers
    lost: float
    rounding: float
    """Of the exponents of all rounds together."""

    def log_delta(self, epsilon: float) -> float:
        """An upper bound."""
        counted, lost = self._inner(epsilon)
        rounding = self.rounding + 8 * _UNIT * abs(self.t * epsilon)
        return self.log_mean - self.t * epsilon + math.log(counted + lost) + rounding

    def clear(self, epsilon: float) -> bool:
        """Whether what may have been lost is little of delta: no other tilt would say much else."""
        counted, lost = self._inner(epsilon)
        return lost <= SMALL * counted

    def epsilon(self, log_target: float) -> float:
        """The least epsilon >= 0 whose delta is at most the target, from above."""
        if self.log_delta(0.0) <= log_target:
            return 0.0
        high = max(self.interval, (self.log_mean - log_target) / self.t)  # Chernoff's bound
        while self.log_delta(high) > log_target:
            high *= 2
        near = {"xtol": 1e-6 * self.interval, "rtol": 1e-12}
        root = brentq(lambda x: self.log_delta(x) - log_target, 0.0, high, **near)
        return float(root) * (1 + 1e-12) + 1e-6 * self.interval

    def _inner(self, epsilon: float) -> tuple[float, float]:
        """The mean under the tilted law, and what it may lack."""
        start = min(max(0, math.floor(epsilon / self.interval) + 1 - self.first), len(self.masses))
        reach = math.ceil(min(_DEEP / (self.t * self.interval), float(len(self.masses)))) + 1
        some = self.masses[start : start + reach]
        beyond = np.maximum((self.first + start + np.arange(len(some))) * self.interval - epsilon, 0.0)
        weights = np.exp(-self.t * beyond) * -np.expm1(-beyond)
        return float(some @ weights), self.lost * float(weights.sum()) + math.exp(-_DEEP) + 2 * math.exp(-_FAR)


class _Total:
    """The sum of the losses of rounds, seen through tilted laws."""

    def __init__(self, rounds: Sequence[tuple[_RoundLoss, int]], interval: float) -> None:
        self.interval, self.n = interval, sum(n for _, n in rounds)
        self.parts = [(losses.at, losses.logs, n) for losses, n in rounds]

    def epsilon(self, log_target: float) -> float:
        """Of this delta, from above."""
        return self._best(lambda t, k: (k - log_target) / t, lambda law: (epsilon := law.epsilon(log_target), epsilon))

    def delta(self, epsilon: float) -> float:
        """Of this epsilon, from above."""
        log_delta = self._best(lambda t, k: k - t * epsilon, lambda law: (law.log_delta(epsilon), epsilon))
        return math.exp(min(0.0, log_delta))

    def _best(self, bound: Callable[[float, float], float], ask: Callable[[_Tilted], tuple[float, float]]) -> float:
        """The least answer, with the exponent for which a Chernoff bound of (t, K(t)) is least, or smaller ones."""
        t, best = _search(lambda t: bound(t, self.log_mean(t)), self.interval)[0], math.inf
        for _ in range(_TRIES):
            law = self._law(t)
            value, place = ask(law)
            best = min(best, value)
            if law.clear(place):
                break
            t /= 8
        return best

    def log_mean(self, t: float) -> float:
        """K(t), of all rounds together."""
        return math.fsum(n * _log_sum(t * self.interval * at + logs) for at, logs, n in self.parts)

    def _law(self, t: float) -> _Tilted:
        """The tilted law of the sum."""
        laws, largest = [], 0.0
        for at, logs, n in self.parts:
            exponents = t * self.interval * at + logs
            masses = np.exp(exponents - _log_sum(exponents))
            laws.append((at, masses, n, round(float(masses @ at))))
            there = masses > math.exp(-_DEEP)
            largest += n * float((np.abs(exponents) + 2 * np.abs(logs))[there].max())
        middle = sum(n * centre for *_, n, centre in laws)
        low, high = self._window(t, laws)
        size = int(next_fast_len(high - low + 1, real=True))
        waves = [(rfft(_around(at - centre, masses, size)), _norm(masses), n) for at, masses, n, centre in laws]
        sums = irfft(math.prod(wave**n for wave, _, n in waves), size)
        masses = np.maximum(np.roll(sums, -((low - middle) % size))[: high - low + 1], 0.0)
        lost, rounding = _lost(waves, size) + _FOURIER * math.log2(size) * _norm(sums), 8 * _UNIT * largest
        return _Tilted(t, self.log_mean(t), self.interval, low, masses, lost, rounding)

    def _window(self, t: float, laws: Sequence[tuple[Numbers, Numbers, int, int]]) -> tuple[int, int]:
        """Multiples outside of which the tilted law has a mass of 2 exp(-FAR) at most, by Chernoff's bound."""
        low, high = (sum(n * int(at[end]) for at, _, n, _ in laws) for end in (0, -1))
        if high - low <= _SHORT:
            return low, high
        known = self.log_mean(t)
        above = _search(lambda s: (self.log_mean(t + s) - known + _FAR) / s, self.interval)[1]
        below = _search(lambda s: (self.log_mean(t - s) - known + _FAR) / s, self.interval)[1]
        low, high = max(low, math.floor(-below / self.interval)), min(high, math.ceil(above / self.interval))
        if high - low > _MOST:
            raise OverflowError("the losses are too many multiples of the interval")
        return low, high


def _around(places: Numbers, masses: Numbers, size: int) -> Numbers:
    """The masses on a circle of so many places."""
    circle: Numbers = np.zeros(size)
    np.add.at(circle, places.astype(np.int64) % size, masses)
    return circle


def _norm(x: Numbers) -> float:
    return float(np.linalg.norm(x)) * (1 + 1e-9)


def _lost(waves: Sequence[tuple[NDArray[np.complex128], float, int]], size: int) -> float:
    """What any one mass of the sum may have lost before it was transformed back, proved.

    A wave f_j, the transform of masses p_j, is off by a vector e_j with |e_j| <= FOURIER log2(N) sqrt(N) |p_j|.  The
    product of their powers is off by n_j |e_j| prod_i |f_i|^(n_i) / |f_j| for every j, and a mass is the mean of what
    N waves say: by Cauchy and Schwarz its error is at most n_j |e_j| |prod_i |f_i|^(n_i) / f_j| / N.
    """
    errors = [_FOURIER * math.log2(size) * math.sqrt(size) * length for _, length, _ in waves]
    sizes = [np.log(np.abs(wave) + error) for (wave, _, _), error in zip(waves, errors, strict=True)]
    whole = sum(n * log for (_, _, n), log in zip(waves, sizes, strict=True))
    turns = sum(n * (4 + np.abs(log)) for (_, _, n), log in zip(waves, sizes, strict=True))
    powers = _POWER * 2 * float((turns * np.exp(whole)).sum()) / size
    others = [n * error * math.sqrt(2) * _norm(np.exp(whole - log)) / size
              for (_, _, n), error, log in zip(waves, errors, sizes, strict=True)]  # fmt: skip
    return math.fsum(others) + powers


def _search(bound: Callable[[float], float], interval: float) -> tuple[float, float]:
    """Where a Chernoff bound is least, nearly, and what it is there: it is a bound everywhere."""
    ends = (math.log(1e-6), math.log(100 / interval))
    if not math.isfinite(ends[1]):
        raise OverflowError("the interval is below all numbers")
    found = minimize_scalar(lambda x: bound(math.exp(x)), bounds=ends, method="bounded", options={"xatol": 0.1})
    return math.exp(float(found.x)), float(found.fun)


def _log_sum(exponents: Numbers) -> float:
    """The logarithm of the sum of their exponentials."""
    largest = float(exponents.max())
    return largest + math.log(float(np.exp(exponents - largest).sum()))


# ---------------------------------------------------------------- one round


@lru_cache(maxsize=16)
def _round(leaf: DpEvent, side: object, interval: float) -> _RoundLoss:
    """One round on the grid: its curve at the multiples of the interval, joined by chords, which lie above it."""
    mechanism = _mechanism(leaf, side)
    bounds = mechanism.connect_dots_bounds()
    first, last = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    deltas = np.asarray(mechanism.get_delta_for_epsilon(np.arange(first, last + 1) * interval), dtype=np.float64)
    if isinstance(mechanism, dpa.pld.privacy_loss_mechanism.LaplacePrivacyLoss):
        deltas[-1] = 0.0  # no loss is larger: what is left there is rounding
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]  # rounding may have bent it
    masses = _chords(deltas, interval)
    there = np.flatnonzero(masses)
    return _RoundLoss(first + there.astype(np.float64), np.log(masses[there]), float(deltas[-1]))


def _chords(deltas: Numbers, interval: float) -> Numbers:
    """The masses of the polygon through these points of a curve, rounded up."""
    if len(deltas) == 1:
        return np.array([1 - deltas[0]])
    falls, rise, grow = -np.diff(deltas), math.expm1(interval), math.exp(interval)
    masses = np.empty(len(deltas))
    masses[0] = 1 - deltas[0] - falls[0] / rise + 4 * _UNIT * (1 + falls[0] / rise)
    masses[1:-1] = (falls[:-1] * grow - falls[1:] + 4 * _UNIT * (falls[:-1] * grow + falls[1:])) / rise
    masses[-1] = falls[-1] * grow / rise * (1 + 4 * _UNIT)
    return np.maximum(masses, 0.0)


def _mechanism(leaf: DpEvent, side: object) -> Any:
    """The library's hockey-stick curve of a leaf in one direction."""
    known = dpa.pld.privacy_loss_mechanism
    if isinstance(leaf, dpa.dp_event.MixtureOfGaussiansDpEvent):
        return known.MixtureGaussianPrivacyLoss(
            leaf.standard_deviation, leaf.sensitivities, leaf.sampling_probs, adjacency_type=side
        )
    base, rate = _unsampled(leaf)
    kind = known.GaussianPrivacyLoss
    if isinstance(base, dpa.LaplaceDpEvent):
        kind = known.LaplacePrivacyLoss
    return kind(base.noise_multiplier, sampling_prob=rate, adjacency_type=side)
